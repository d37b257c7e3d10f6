"""Launch scripts: whatever the words, bash reads them back unchanged; every variant parses; what cannot work is refused."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillserver.cluster import launchers, launchers_batch, launchers_kubernetes, manifest_text
from skillserver.cluster.launchers import Launch, Launcher
from skillserver.errors import BadRequest
from skillserver.tools.cluster import write_launcher

NASTY = ["--name", "it's", "$(touch pwned)", "`touch pwned`", "a\nb", "$HOME ${X} $$ $$(HOME) $(HOME) $$$x", '"q" \\ \\n', "; rm -rf x", "*", "",
         "-x", "é😀\u2028\u0085", "!h", "\n#SBATCH --nodes=99", "EOF", "a\r\nb'\\", "\x01\x7f\t", "%j {x} {{y}}", "'", "\\", "$'a'"]  # fmt: skip
KINDS = ("torchrun", "srun", "accelerate", "lightning", "deepspeed")
VARIANTS: list[dict[str, Any]] = [
    {},
    {"nodes": 1, "options": {"signal_s": 0, "heartbeat_s": 0}},
    {"requeue": False, "options": {"array": "1-9%1"}},
    {
        "container": "image.sif",
        "options": {"array": "1-3,7", "exclude_nodes": "n1,n[3-4]", "cpus_per_gpu": 2, "setup": "export A=1\n", "account": "team"},
    },
    {"container": "nvcr.io#nvidia/pytorch:25.01-py3", "partition": "gpu", "time": "2h"},
]
BATCHES = [pytest.param(kind, variant, id=f"{kind}-{number}") for kind in KINDS for number, variant in enumerate(VARIANTS)]


def read_back(script: str) -> list[str]:
    """What bash makes of the array `program` of a batch script."""
    found = re.search(r"^program=\(.*?\)\n(?=\nwatch)", script, re.S | re.M)
    assert found
    done = subprocess.run(["bash", "-c", found[0] + 'printf "%s\\0" "${program[@]}"'], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def kubelet(text: str) -> str:
    """How the kubelet expands a command: `$$` is a dollar sign, `$(NAME)` a variable."""
    return re.sub(r"\$(\$|\((\w+)\))", lambda found: "$" if found[1] == "$" else f"<{found[2]}>", text)


@pytest.mark.parametrize(("kind", "variant"), BATCHES)
def test_every_batch_script_is_bash_and_keeps_every_word(kind: str, variant: dict[str, Any], tmp_path: Path) -> None:
    script = write_launcher(**{"kind": kind, "script": "my train.py", "args": NASTY, "nodes": 2, **variant}).script
    file = tmp_path / "job.sbatch"
    file.write_bytes(script.encode())
    assert subprocess.run(["bash", "-n", file], capture_output=True).stderr == b""
    assert read_back(script)[-len(NASTY) - 1 :] == ["my train.py", *NASTY]
    assert b"\r" not in file.read_bytes()
    directives = script[: script.index("set -uo pipefail")]
    assert "nodes=99" not in directives


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
@pytest.mark.parametrize(("kind", "variant"), BATCHES)
def test_every_batch_script_passes_shellcheck(kind: str, variant: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    file.write_bytes(write_launcher(**{"kind": kind, "script": "train.py", "args": NASTY, "nodes": 2, **variant}).script.encode())
    done = subprocess.run(["shellcheck", file], capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("target", ["kubernetes-job", "jobset", "pytorchjob"])
@pytest.mark.parametrize("kind", ["torchrun", "accelerate", "lightning", "deepspeed"])
def test_every_manifest_is_yaml_and_the_pod_gets_every_word(kind: str, target: str, nodes: int, tmp_path: Path) -> None:
    result = manifest(kind=kind, target=target, nodes=nodes, args=NASTY, options={"exclude_nodes": "n1,n2", "setup": "export A='$(B) $$'"})
    commands = [found["command"] for document in yaml.safe_load_all(result.script) for found in containers(document)]
    assert commands
    launch = Launch(kind, target, "train.py", NASTY, nodes, setup="export A='$(B) $$'", container="registry/image:1")  # type: ignore[arg-type]
    for command in commands:
        assert [*command[:2], kubelet(command[2])] == ["bash", "-c", launchers_kubernetes.body(launch)]
    program = launchers_kubernetes.body(launch).split(" \\\n  ")[-1].rsplit(" &\npid=$!", 1)[0]
    done = subprocess.run(["bash", "-c", f'printf "%s\\0" {program}'], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["train.py", *NASTY]
    assert subprocess.run(["bash", "-n", "-c", launchers_kubernetes.body(launch)], capture_output=True).stderr == b""


def manifest(**given: Any) -> Launcher:
    return write_launcher(**{"kind": "torchrun", "script": "train.py", "container": "registry/image:1", **given})


def containers(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return value.get("containers", []) + [found for item in value.values() for found in containers(item)]
    return [found for item in value for found in containers(item)] if isinstance(value, list) else []


@pytest.mark.skipif(not shutil.which("kubernetes-validate"), reason="no kubernetes-validate")
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_job_and_its_service_fit_the_schema_of_kubernetes(nodes: int, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(manifest(target="kubernetes-job", nodes=nodes, options={"exclude_nodes": "n1", "cpus_per_gpu": 4}).script)
    done = subprocess.run(["kubernetes-validate", "--strict", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text", ["a\nb\n", " a\nb\n", "a\n\n b\n", "a\nb", "a\nb\n\n", "yes", "1", "", "a: b", "# c",
                                  "é😀\u2028\x85\x07\ufeff", "\ttab\n\tb\n", "a \n b\n",
                                  "---\n...\n", "'\"\\"])  # fmt: skip
def test_yaml_gives_every_string_back(text: str) -> None:
    data = {"a": [{"b": text, "c": [text, text]}, text], "k.io/x": {"d": 1, "e": True, "f": [], "g": {}}}
    assert yaml.safe_load(manifest_text.document(data)) == data


@pytest.mark.parametrize(
    "bad",
    [{"script": "--rdzv"}, {"script": ""}, {"script": "a\nb"}, {"args": ["\0"]}, {"args": ["\ud800"]}, {"partition": "a b"},
     {"partition": "a\n#SBATCH -x"},
     {"options": {"array": "1;2"}}, {"options": {"exclude_nodes": "n1 n2"}}, {"options": {"name": "a/b"}}, {"options": {"account": "-x"}},
     {"container": "a b"}, {"options": {"signal_s": 7200}, "time": 3600}, {"options": {"colour": "red"}}, {"options": {"signal_s": -1}},
     {"target": "jobset"}, {"target": "jobset", "container": "i", "partition": "gpu"}, {"target": "pytorchjob", "container": "i", "kind": "srun"},
     {"target": "jobset", "container": "i", "options": {"name": "Train_1"}},
     {"target": "jobset", "container": "i",
      "options": {"exclude_nodes": "n[1-2]"}},
     {"nodes": 0}, {"kind": "mpirun"}],
)  # fmt: skip
def test_what_cannot_be_launched_or_quoted_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        write_launcher(**{"kind": "torchrun", "script": "train.py", **bad})


def test_a_module_is_started_by_each_launchers_own_flag() -> None:
    script = {kind: write_launcher(kind=kind, script="-m pkg.train").script for kind in KINDS}
    assert "program=(-m pkg.train)" in script["torchrun"]
    assert "program=(--module pkg.train)" in script["deepspeed"]
    assert "program=(python -u -m pkg.train)" in script["srun"]


def test_the_time_is_slurms_and_only_lightning_gets_the_signal_in_its_ranks() -> None:
    assert [launchers_batch.clock(seconds) for seconds in (1, 3661, 90000)] == ["0-00:01:00", "0-01:01:01", "1-01:00:00"]
    assert "--signal=USR1@600" in write_launcher(kind="lightning", script="t.py").script
    assert "scontrol requeue" not in write_launcher(kind="lightning", script="t.py").script
    assert "--signal=B:USR1@600" in write_launcher(kind="torchrun", script="t.py").script


def test_a_chain_of_an_array_is_one_run_and_a_sweep_has_a_folder_for_each_task() -> None:
    chain, sweep = (write_launcher(kind="torchrun", script="t.py", options={"array": array}).script for array in ("1-9%1", "1-9%3"))
    assert 'RUN_DIR="$PWD/runs/$SLURM_JOB_NAME"\n' in chain
    assert 'RUN_DIR="$PWD/runs/$SLURM_JOB_NAME-$SLURM_ARRAY_TASK_ID"\n' in sweep


def test_words_are_quoted_once() -> None:
    assert [launchers.quoted(word) for word in ("a", "a b", "a\r", "")] == ["a", "'a b'", "$'a\\x0d'", "''"]
