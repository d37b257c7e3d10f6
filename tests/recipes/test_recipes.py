"""Every recipe of examples/recipes is run: on real ranks, real files, real signals."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "examples/recipes"
RANKS = Path(__file__).with_name("ranks.py")
PAGES = Path(__file__).resolve().parents[2] / "knowledge_base"
pytestmark = pytest.mark.torch


def recipe(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ranks(what: str, folder: Path, nodes: int = 1, per_node: int = 2) -> str:
    """Run a function of ranks.py under the recipe that emulates nodes; what it printed."""
    argv = [sys.executable, str(RECIPES / "emulate_nodes.py"), f"--nodes={nodes}", f"--per-node={per_node}", str(RANKS), what, str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def notes(what: str, folder: Path) -> list[str]:
    return [(folder / f"{what}-{rank}").read_text() for rank in (0, 1)]


def test_every_recipe_stands_in_a_page_whole() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.rglob("*.md"))
    assert [file.name for file in RECIPES.glob("*.py") if file.read_text(encoding="utf-8").rstrip() not in pages] == []


def test_two_emulated_nodes_have_ranks_of_one_world(tmp_path: Path) -> None:
    ranks("emulated", tmp_path, nodes=2, per_node=1)
    assert sorted(notes("emulated", tmp_path), key=lambda seen: seen[2]) == ["0 0 2 3", "0 1 2 3"]


def test_a_node_that_fails_is_the_launchers_status(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import os, sys; sys.exit(7 if os.environ['EMULATED_NODE'] == '0' else 0)")
    done = subprocess.run([sys.executable, str(RECIPES / "emulate_nodes.py"), "--nodes=1", str(script)], capture_output=True, timeout=120)
    assert done.returncode == 1


def test_one_rank_goes_first_and_the_other_finds_its_work(tmp_path: Path) -> None:
    ranks("first", tmp_path)
    assert notes("first", tmp_path) == ["True False", "False True"]


def test_without_a_group_everybody_goes_first() -> None:
    with recipe("one_rank_first").one_first() as was_first:
        assert was_first


def test_switches_tell_every_rank_the_same(tmp_path: Path) -> None:
    ranks("switched", tmp_path)
    expected = str([(False, False), (True, False), (False, False), (True, True)])
    assert notes("switched", tmp_path) == [expected, expected]
    assert (tmp_path / "stop").exists() and not (tmp_path / "save").exists()


def test_a_signal_to_one_rank_is_told_to_all(tmp_path: Path) -> None:
    ranks("signalled", tmp_path)
    assert notes("signalled", tmp_path) == ["False True False"] * 2


def test_lines_of_many_ranks_stay_whole(tmp_path: Path) -> None:
    lines = ranks("printed", tmp_path).splitlines()
    assert lines.count("[rank0] only one") == 1 and not any("[rank1] only" in line for line in lines)
    assert len(lines) == 2 * 40 * 3 + 1
    assert all(re.fullmatch(r"\[rank[01]\] (only one|\d+ \d x{3000})", line) for line in lines)


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "gpt2"])
def test_a_tiny_model_trains_a_step_on_the_tiny_tokenizer(kind: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig, Qwen3MoeConfig

    big = {"llama": LlamaConfig(num_attention_heads=32, num_key_value_heads=8), "qwen3_moe": Qwen3MoeConfig(), "gpt2": GPT2Config()}[kind]
    tokens = recipe("tiny_tokenizer").make(["the quick brown fox", "jumps over the lazy dog"] * 20, str(tmp_path))
    parameters = recipe("tiny_model").make(big, str(tmp_path), tokens, torch.float32)
    assert 257 <= tokens <= 512 and parameters < 500_000
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "the 狐狸 fox"
    batch = tokenizer(text, return_tensors="pt")
    assert tokenizer.decode(batch["input_ids"][0]) == text
    loss = model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert kind != "llama" or (model.config.num_attention_heads, model.config.num_key_value_heads) == (4, 1)


def test_a_sample_is_fair_repeatable_and_refuses_broken_lines() -> None:
    sample = recipe("tiny_dataset").sample
    lines = [json.dumps({"n": number}) + "\n" for number in range(1000)]
    drawn = sample(lines, 100)
    assert drawn == sample(lines, 100) and len(drawn) == 100
    places = [json.loads(line)["n"] for line in drawn]
    assert places == sorted(places) and 350 < sum(places) / 100 < 650
    with pytest.raises(ValueError, match="line 2 is no JSON"):
        sample(["{}\n", "{broken\n"], 10)


def test_the_same_seed_gives_the_same_run_and_a_restored_state_goes_on() -> None:
    import random

    import numpy
    import torch

    recipes = recipe("reproducible")

    def draw() -> list[float]:
        return [random.random(), float(numpy.random.rand()), torch.rand(1).item()]

    recipes.seed(3)
    first = draw()
    kept = recipes.state()
    after = draw()
    recipes.restore(kept)
    assert draw() == after
    recipes.seed(3)
    assert draw() == first
    recipes.seed(4)
    assert draw() != first


def test_a_shrunk_checkpoint_holds_only_what_is_in_it(tmp_path: Path) -> None:
    import torch

    flat = torch.randn(100_000)
    tied = flat[:1000].view(10, 100)
    torch.save({"model": {"a": tied, "b": tied, "steps": torch.tensor(7)}, "optimizer": {"m": flat}, "epoch": 3}, tmp_path / "big.pt")
    subprocess.run([sys.executable, str(RECIPES / "shrink_checkpoint.py"), tmp_path / "big.pt", tmp_path / "small.pt", "--dtype=bf16"], check=True)
    small = torch.load(tmp_path / "small.pt")
    assert (tmp_path / "big.pt").stat().st_size > 400_000 and (tmp_path / "small.pt").stat().st_size < 6_000
    assert small["epoch"] == 3 and "optimizer" not in small and small["model"]["steps"].dtype == torch.int64
    assert torch.equal(small["model"]["a"], tied.bfloat16())
    assert small["model"]["a"].data_ptr() == small["model"]["b"].data_ptr()


def test_an_fp16_overflow_is_refused() -> None:
    import torch

    with pytest.raises(ValueError, match="70000"):
        recipe("shrink_checkpoint").shrunk({"w": torch.tensor([70000.0])}, torch.float16)


def test_a_quiet_or_missing_log_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, log = recipe("watch_job"), tmp_path / "train.log"
    assert watch.verdict(log, 30)[0] == 1
    log.touch()
    assert watch.verdict(log, 30)[0] == 0
    os.utime(log, (0, 0))
    assert watch.verdict(log, 30)[0] == 1
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nexit 0\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert watch.verdict(log, 30, "train-7b") == (2, "train-7b is neither running nor waiting")


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    disk = recipe("watch_disk")
    assert disk.alarms([str(tmp_path)], 0)[0].startswith(f"{tmp_path}: ")
    assert disk.alarms([str(tmp_path)], 101) == []
    assert disk.alarms(["/nowhere"], 90) == ["/nowhere: No such file or directory"]
    used = int(subprocess.run(["df", "--output=pcent", tmp_path], capture_output=True, text=True, check=True).stdout.split()[1].rstrip("%"))
    assert abs(disk.used_percent(str(tmp_path))[0] - used) <= 1.01


def test_a_process_is_pinned_to_the_cores_of_a_device(tmp_path: Path) -> None:
    pin, allowed = recipe("pin_to_numa"), os.sched_getaffinity(0)
    device, node = tmp_path / "bus/pci/devices/0000:3b:00.0", tmp_path / "devices/system/node/node1"
    device.mkdir(parents=True)
    node.mkdir(parents=True)
    (device / "numa_node").write_text("-1\n")
    assert pin.pin("0000:3B:00.0", tmp_path) == set()
    (device / "numa_node").write_text("1\n")
    core = min(allowed)
    (node / "cpulist").write_text(f"{core},100000-100003\n")
    try:
        assert pin.pin("0000:3B:00.0", tmp_path) == {core} == os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, allowed)
    assert pin.cores_of("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
