"""`skillserver compare` as a person and a script meet it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skillserver import cli
from skillserver.errors import BadRequest
from skillserver.measure.history import Kept, Metric
from skillserver.procedures import kept_results


@pytest.fixture(autouse=True)
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history of five nodes, one of them slow, and a file that is no result."""
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path))
    for number in range(5):
        value = Metric(value=500 if number == 4 else 700 + number, unit="TFLOPS")
        kept_results.keep(Kept(at=f"2026-11-30T10:00:0{number}.000Z", host=f"n{number}", part="NVIDIA H100 80GB HBM3", metrics={"matmul": value}))
    (tmp_path / "history" / "other.json").write_text("{")
    return tmp_path / "history"


def test_the_odd_node_is_named_and_exits_3_when_asked() -> None:
    done = CliRunner().invoke(cli.app, ["compare", "--json", "--fail-on", "warning"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["verdict"], [one["subject"] for one in told["findings"]]) == (3, "warning", ["n4"])
    assert any("other.json: no result" in line for line in told["skipped"])
    assert CliRunner().invoke(cli.app, ["compare"]).exit_code == 0


def test_single_files_and_folders_are_read_and_one_host_is_left_with_its_past(nodes: Path) -> None:
    files = sorted(str(path) for path in nodes.glob("2026*.json"))
    told = json.loads(CliRunner().invoke(cli.app, ["compare", *files[:4], "--json"]).stdout)
    assert (told["verdict"], len(told["hosts"])) == ("ok", 4)
    told = json.loads(CliRunner().invoke(cli.app, ["compare", str(nodes), "--host", "n4", "--json"]).stdout)
    assert (told["verdict"], [one["host"] for one in told["hosts"]]) == ("unknown", ["n4"])


def test_what_is_not_there_is_refused_with_the_hosts_that_are() -> None:
    for arguments in (["/no/such/place"], ["--host", "n77"]):
        done = CliRunner().invoke(cli.app, ["compare", *arguments, "--json"])
        assert isinstance(done.exception, BadRequest)
        assert json.loads(done.stdout)["code"] in ("no_such_place", "unknown_host")
