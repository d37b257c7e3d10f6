"""run_inference_bench against a small real model on this CPU: TTFT grows with the prompt and a known start saves it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skillserver import cli, permissions
from skillserver.errors import BadRequest, NotHere
from skillserver.jobs import manager
from skillserver.tools.serving_bench import run_inference_bench

SERVER = Path(__file__).with_name("small_model_server.py")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home, a runtime folder and permissions of the test's own, without SLURM, with a key."""
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("SKILLSERVER_INFERENCE_KEY", "sk-secret")
    monkeypatch.setattr(manager, "default", manager.Manager())
    for variable in ("SLURM_JOB_ID", "SLURM_CONF"):
        monkeypatch.delenv(variable, raising=False)
    before = permissions.current()
    yield
    permissions.grant(before)


@pytest.mark.torch
def test_a_real_model_is_measured_and_its_cache_and_its_prefill_are_seen(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    server = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        told = run_inference_bench.sync(
            base_url=url,
            prompt_tokens=[32, 1024],
            output_tokens=[8],
            concurrency=[1, 2],
            budget_s=6,
            ttft_ms=60_000,
            python=sys.executable,
            detail=True,
        )
    finally:
        server.kill()
        server.communicate()
    assert (told.state, told.model, told.api) == ("done", "small", "completions")
    short, long = told.by_prompt
    assert [row["counted"] for row in (short, long)] == [32, 1024]
    assert long["ttft_ms_p50"] > 3 * short["ttft_ms_p50"]
    assert told.prefill_tokens_s is not None
    assert [row["what"] for row in told.samples] == ["prompt", "prompt", "output", "prefix", "load", "load"]
    assert told.prefix_cache["cached_tokens"] >= 900
    assert told.prefix_cache["ratio"] < 0.7
    assert told.reason.startswith("100% of requests keep TTFT 60000 ms at concurrency 2")
    kept = json.loads(Path(told.history_file).read_text())
    assert (kept["kind"], kept["part"]) == ("run_inference_bench", f"small at {url}")
    assert {"prefill", "decode alone", "output at concurrency 2"} <= set(kept["metrics"])
    written = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert [path for path in written if "sk-secret" in path.read_text(errors="replace")] == []


def test_a_host_that_may_not_be_called_and_a_server_that_is_not_there_are_refused_before_and_in_the_run() -> None:
    with pytest.raises(NotHere, match=r"no_server: nothing listens at http://127.0.0.1:1/v1"):
        run_inference_bench.sync(base_url="http://127.0.0.1:1/v1", python=sys.executable)
    with pytest.raises(NotHere, match="host_not_permitted"):
        run_inference_bench.sync(base_url="http://8.8.8.8/v1", python=sys.executable)
    with pytest.raises(BadRequest, match="bad_arguments"):
        run_inference_bench.sync(base_url="http://127.0.0.1:1/v1", concurrency=[0])
    permissions.grant(permissions.TEXT_ONLY)
    with pytest.raises(NotHere, match="not_permitted"):
        run_inference_bench.sync(base_url="http://127.0.0.1:1/v1")


def test_a_dry_run_names_the_key_s_variable_and_not_its_value() -> None:
    told = run_inference_bench.sync(base_url="http://127.0.0.1:1/v1", dry_run=True, python=sys.executable)
    assert "SKILLSERVER_INFERENCE_KEY" in told.plan["environment"]
    assert "sk-secret" not in told.model_dump_json()


def test_the_command_line_names_a_host_and_so_permits_it() -> None:
    arguments = ["call", "run_inference_bench", "base_url=http://8.8.8.8/v1", "dry_run=true", f"python={sys.executable}", "--json"]
    refused = CliRunner().invoke(cli.app, arguments)
    assert json.loads(refused.stdout)["code"] == "host_not_permitted"
    allowed = CliRunner().invoke(cli.app, [*arguments, "--allow-host", "8.8.8.8"])
    assert json.loads(allowed.stdout)["plan"]["settings"]["place"]["address"] == "8.8.8.8"
