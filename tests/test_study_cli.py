"""`skillserver study`, and the same path for an agent: prompt and resources."""

import asyncio
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from typer.testing import CliRunner, Result

from skillserver import cli, registry, server
from skillserver.errors import BadRequest, DataBroken, NotHere
from skillserver.knowledge import ticks


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and an English locale."""
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path))
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def study(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["study", *words])


def test_the_list_shows_nineteen_days_and_the_next_one() -> None:
    lines = study().stdout.splitlines()
    assert lines[1].startswith("[ ] Day 1: ")
    assert [line[:4] for line in lines].count("[ ] ") == 19
    assert lines[-1] == "0 of 19 days done. Next: skillserver study 1"


def test_a_tick_is_remembered_and_can_be_taken_away(home: Path) -> None:
    assert study("1", "--done").stdout.splitlines()[-1] == "1 of 19 days done. Next: skillserver study 2"
    study("3", "--done")
    assert [line[:9] for line in study().stdout.splitlines()[1:4]] == ["[x] Day 1", "[ ] Day 2", "[x] Day 3"]
    first = (home / "study" / "1").read_text().strip()
    assert json.loads(study("1", "--json").stdout)["done"] == first == datetime.date.today().isoformat()
    study("1", "--undo")
    study("1", "--undo")
    assert list(ticks.done()) == [3]
    for day in range(1, 20):
        study(str(day), "--done")
    assert study().stdout.splitlines()[-1] == "19 of 19 days done. Look back with skillserver study 19 --answers."


def test_a_day_hides_its_answers_until_they_are_asked_for() -> None:
    hidden, shown = study("4").stdout, study("4", "--answers").stdout
    assert hidden.startswith("# Day 4: networks")
    assert "200 x 1.75 = 350 GB/s" not in hidden
    assert "200 x 1.75 = 350 GB/s" in shown
    assert hidden.splitlines()[-1].endswith("Answers: skillserver study 4 --answers. Done: skillserver study 4 --done)")
    for spelling in ("04", "day 4", "Day-04", "path/day-04-networks", "第 4 天", "第四天", "四"):
        assert study(spelling).stdout == hidden


def test_chinese_by_option_or_by_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    chinese = study("4", "--zh").stdout
    assert chinese.startswith("# 第 4 天：网络")
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert study("4").stdout == chinese
    assert study().stdout.splitlines()[-1] == "已完成 0 天，共 19 天。下一步：skillserver study 1 --zh"
    assert study("4", "--en").stdout.startswith("# Day 4")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert study("4").stdout.startswith("# Day 4")


def test_a_script_gets_records() -> None:
    listed = json.loads(study("--json").stdout)["days"]
    assert listed[3] == {"day": 4, "title": "Day 4: networks, links and collectives", "page": "path/day-04-networks", "done": None}
    day = json.loads(study("4", "--json").stdout)
    assert (day["day"], day["reading"][0], len(day["questions"]) > 3) == (4, "hardware/network#the-three-networks-of-a-node", True)
    assert day["questions"][0]["answer"] not in day["text"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["20"], "unknown_day: the path has no day '20'. Valid: 1 to 19. Next: skillserver study lists the days."),
        (["x" * 99], f"unknown_day: the path has no day '{'x' * 40}...'. Valid: 1 to 19."),
        (["--done"], "bad_usage: --done needs a day. Next: skillserver study 4 --done."),
        (["--answers"], "bad_usage: --answers needs a day."),
        (["4", "--done", "--undo"], "bad_usage: --done and --undo exclude each other."),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str) -> None:
    done = study(*words, "--json")
    assert isinstance(done.exception, BadRequest)
    assert done.exception.sentence().startswith(said)
    assert json.loads(done.stdout)["code"] == said.split(":")[0]


def test_a_broken_tick_and_a_home_that_cannot_be_written_are_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "study").mkdir()
    (home / "study" / "notes.txt").write_text("mine")
    for text in (b"", b"[1, 2]", b"\xff\xfe", b"x" * 10_000):
        (home / "study" / "3").write_bytes(text)
        done = study()
        assert isinstance(done.exception, DataBroken)
        assert done.exception.sentence().startswith(f"study_broken: {home / 'study' / '3'} is not the date of a tick")
        assert len(done.exception.sentence()) < 500
    assert "0 of 19" in study("3", "--undo").stdout
    monkeypatch.setenv("SKILLSERVER_HOME", str(home / "study" / "notes.txt"))
    assert "0 of 19" in study().stdout
    assert isinstance(study("4", "--done").exception, NotHere)
    assert "0 of 19" in study("4", "--undo").stdout


def test_terminals_that_tick_at_once_lose_nothing() -> None:
    script = "import sys; from skillserver.knowledge import ticks; sys.stdin.read(); ticks.tick(int(sys.argv[1]))"
    waiting = [subprocess.Popen([sys.executable, "-c", script, str(day)], stdin=subprocess.PIPE) for day in range(1, 6)]
    for one in waiting:
        assert one.stdin
        one.stdin.close()
    assert [one.wait(60) for one in waiting] == [0] * 5
    assert list(ticks.done()) == [1, 2, 3, 4, 5]


def asked(question: Any) -> Any:
    async def run() -> Any:
        async with Client(server.build(registry.select())) as client:
            return await question(client)

    return asyncio.run(run())


def test_an_agent_gets_the_next_day_with_its_answers_and_how_to_guide() -> None:
    async def question(client: Client) -> list[str]:
        given: list[dict[str, str]] = [{}, {"day": "4", "language": "zh"}, {"day": "第十九天", "language": "中文"}]
        return [(await client.get_prompt("study", arguments)).messages[0].content.text for arguments in given]

    ticks.tick(1)
    following, chinese, last = asked(question)
    assert "skillserver study 2 --done" in following and "# Day 2" in following
    assert "# 第 4 天" in chinese and "350 GB/s" in chinese
    assert "# 第 19 天" in last


def test_the_path_and_a_day_are_resources() -> None:
    async def question(client: Client) -> list[str]:
        return [(await client.read_resource(f"study:///{name}")).contents[0].text for name in ("path", "path.zh", "4", "4.zh")]

    path, chinese, day, day_zh = asked(question)
    assert "[ ] Day 4" in path and "[ ] 第 4 天" in chinese
    assert day.startswith("# Day 4") and "350 GB/s" in day
    assert day_zh.startswith("# 第 4 天")


def test_an_agents_mistake_names_the_days() -> None:
    async def question(client: Client) -> list[str]:
        found = []
        for call in (client.get_prompt("study", {"day": "77"}), client.read_resource("study:///77")):
            with pytest.raises(MCPError) as refused:
                await call
            found.append(str(refused.value))
        return found

    assert all("the path has no day '77'. Valid: 1 to 19" in said for said in asked(question))
