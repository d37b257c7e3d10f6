"""The command line as a person and as a script meet it: outputs, exit codes, one line on stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ESTIMATE = {"params_total": "7B", "tokens": "2T", "accelerator": "H100-80GB-SXM"}
XID_79 = {"captures": [{"name": "dmesg", "text": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."}]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def run(home: Path, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SKILLSERVER_HOME": str(home), "COLUMNS": "200", **variables}
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "skillserver", *arguments], env=environment, input=stdin, capture_output=True, encoding=encoding, timeout=120
    )


def test_search_and_read_print_markdown(home: Path) -> None:
    assert "debugging/hangs" in run(home, "search", "NCCL", "watchdog", "timeout").stdout
    assert "Bytes per parameter" in run(home, "read", "training/memory").stdout
    assert "training/memory" in run(home, "read").stdout


def test_tools_lists_all_and_describes_one(home: Path) -> None:
    assert "run_all_reduce_bench" in run(home, "tools").stdout
    assert "tokens" in run(home, "tools", "estimate_gpu_hours").stdout
    assert json.loads(run(home, "tools", "estimate_gpu_hours", "--json").stdout)["input_schema"]["properties"]["tokens"]
    wrong = run(home, "tools", "estimate_gpu_hour")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "Valid: estimate_gpu_hours" in wrong.stderr


def test_arguments_come_as_pairs_json_file_or_stdin(home: Path, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps(ESTIMATE))
    ways = [
        [f"{name}={value}" for name, value in ESTIMATE.items()],
        [json.dumps(ESTIMATE)],
        ["--input", json.dumps(ESTIMATE)],
        ["--input", f"@{tmp_path / 'in.json'}"],
        ["--input", "-"],
        ["-"],
    ]
    answers = [run(home, "call", "estimate_gpu_hours", "--json", *way, stdin=json.dumps(ESTIMATE)) for way in ways]
    assert {answer.returncode for answer in answers} == {0}
    assert len({answer.stdout for answer in answers}) == 1
    assert json.loads(answers[0].stdout)["gpu_hours"]["expected"] > 0


def test_people_get_a_table_and_no_json(home: Path) -> None:
    shown = run(home, "call", "check_gpu_health", json.dumps(XID_79)).stdout
    assert shown.splitlines()[0] == "verdict: critical"
    assert "do: " in shown


def test_a_refusal_is_one_line_on_stderr_and_a_document_with_json(home: Path) -> None:
    plain = run(home, "call", "estimate_gpu_hours", json.dumps(ESTIMATE | {"accelerator": "H1000"}))
    assert (plain.returncode, plain.stdout, plain.stderr.count("\n")) == (1, "", 1)
    as_json = run(home, "call", "estimate_gpu_hours", "--json", json.dumps(ESTIMATE | {"accelerator": "H1000"}))
    document = json.loads(as_json.stdout)
    assert as_json.returncode == 1
    assert set(document) == {"code", "message", "next", "valid"}
    assert "H100-80GB-SXM" in document["valid"]


@pytest.mark.parametrize(
    "bad", [["call"], ["call", "x", "--no-such-option"], ["no-such-verb"], ["call", "run_mamf", "--fail-on", "ok"], ["call", "run_mamf", "budget"]]
)
def test_wrong_usage_exits_2(home: Path, bad: list[str]) -> None:
    assert run(home, *bad).returncode == 2


@pytest.mark.parametrize("bad", ["{", "[1]", "@/nowhere.json"])
def test_arguments_that_cannot_be_read_are_refused(home: Path, bad: str) -> None:
    refused = run(home, "call", "search_knowledge", "--input", bad)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr


def test_fail_on_exits_3_at_or_above_the_verdict(home: Path) -> None:
    for level, code in (("", 0), ("warning", 3), ("critical", 3)):
        options = ["--fail-on", level] if level else []
        assert run(home, "call", "check_gpu_health", json.dumps(XID_79), *options).returncode == code


def test_doctor_says_what_is_here_and_what_to_do(home: Path) -> None:
    report = json.loads(run(home, "doctor", "--json").stdout)
    assert report["python"]["version"] == sys.version.split()[0]
    assert {check["name"] for check in report["checks"]} >= {"torch environments", "NVML", "SLURM", "fio", "index", "login node"}
    assert all(check["next"] for check in report["checks"] if not check["ok"])


def test_index_builds_into_a_folder_of_choice(home: Path, tmp_path: Path) -> None:
    built = run(home, "index", "--into", str(tmp_path / "image"), "--json")
    assert built.returncode == 0, built.stderr
    assert any((tmp_path / "image").iterdir())


def test_version_and_help_exit_0(home: Path) -> None:
    assert run(home, "--version").stdout.startswith("skillserver ")
    assert "serve" in run(home, "--help").stdout


def test_a_reader_that_leaves_is_no_error(home: Path) -> None:
    environment = {**os.environ, "SKILLSERVER_HOME": str(home)}
    done = subprocess.run(f"{sys.executable} -m skillserver read | head -n 1", shell=True, env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["call", "search_knowledge", "query=NCCL", "--json"], 0),
        (["call", "read_knowledge", "id=no/page", "--json"], 1),
        (["call", "no_such_tool", "--json"], 1),
        (["call", "check_gpu_health", "--input", "@/nowhere.json", "--json"], 1),
        (["call", "check_gpu_health", "--fail-on", "ok", "--json"], 2),
        (["call", "--json"], 2),
        (["call", "check_gpu_health", "--no-such-option", "--json"], 2),
        (["tools", "no_such_tool", "--json"], 1),
        (["index", "--into", "/proc/nowhere", "--json"], 1),
        (["doctor", "--server", "nonsense", "--json"], 1),
    ],
)
def test_json_means_exactly_one_document_on_stdout_in_every_case(home: Path, arguments: list[str], code: int) -> None:
    done = run(home, *arguments)
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    assert set(document) == ({"code", "message", "next", "valid"} if code else {"text"})
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "ascii"])
def test_characters_that_a_terminal_cannot_show_are_escaped_and_break_nothing(home: Path, encoding: str) -> None:
    odd = json.dumps({"text": "训练 é \U0001f600 \ud800 RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB."})
    for as_json in ([], ["--json"]):
        done = run(home, "call", "explain_error", "-", *as_json, stdin=odd, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert (done.returncode, done.stderr) == (0, "")
        assert "cuda_out_of_memory" in done.stdout
    assert json.loads(done.stdout)["causes"][0]["evidence"][0].endswith(
        "训练 é \U0001f600 \ud800 RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB."
    )
