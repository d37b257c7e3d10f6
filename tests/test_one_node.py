"""A tool as srun starts it on one node: a worker's lines on stdout, the answer of one host, a home of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ALLOWED = {"busy": False, "max_minutes": 1, "pythons": {}, "profiles": {}}


def lines(folder: Path, tool: str, arguments: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    (folder / "common").mkdir()
    (folder / "node").mkdir()
    (folder / "settings.json").write_text(json.dumps(ALLOWED | {"tool": tool, "arguments": arguments, "home": str(folder / "common")}))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-m", "skillserver.one_node", "--settings-file", str(folder / "settings.json")], cwd=folder / "node",
                          env=env, capture_output=True, text=True)  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_the_result_is_what_the_tool_answers_without_what_is_of_this_run(tmp_path: Path) -> None:
    status, said = lines(tmp_path, "check_node", {"parts": ["numa"]})
    assert (status, said[0]["type"], said[-1]["type"], said[-1]["stopped"]) == (0, "hello", "result", False)
    assert [row["part"] for row in said[-1]["payload"]["parts"]] == ["numa"]
    assert not {"state", "job_id", "plan", "samples_file"} & set(said[-1]["payload"])
    assert list((tmp_path / "node/home/jobs").iterdir())
    assert not list((tmp_path / "common").glob("jobs/*"))
    assert (tmp_path / "node/home/history").resolve() == tmp_path / "common/history"


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "kind"),
    [("check_node", {"parts": ["numa"], "python": "/no/such", "budget_s": 1}, "bad_arguments", "BadRequest"),
     ("run_storage_bench", {"path": "/no/such"}, "no_such_folder", "BadRequest")],
)  # fmt: skip
def test_a_refusal_is_one_failure_line(tmp_path: Path, tool: str, arguments: dict[str, Any], code: str, kind: str) -> None:
    status, said = lines(tmp_path, tool, arguments)
    assert (status, said[-1]["type"], said[-1]["code"], said[-1]["kind"]) == (1, "failure", code, kind)
