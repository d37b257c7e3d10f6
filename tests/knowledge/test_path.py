"""The path: every id it names exists, every exercise is run and prints what the page says, both languages agree.

In a page's expected output `...` stands for anything (alone on a line for any lines), `~12` for a number within a quarter of it.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from skillserver import cli
from skillserver.knowledge import days, library
from skillserver.knowledge.days import Day

BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.M | re.S)
TOOL_CALL = re.compile(r"(?:skillserver [^\n]+\n)+")
NUMBER = re.compile(r"~([\d.,]*\d(?:e[+-]?\d+)?)")
NEAR = 0.25  # of a number that the page gives as about right
DEADLINE_S = 60
ASKED = re.compile(r"[\w.-]+/[\w.#-]+")
TOPICS = {
    "six numbers": "six numbers", "GPU-hours of a 7B": "7B", "heaven and hell": "heaven", "accelerator table": "H100",
    "three IO needs": "three kinds of IO", "three networks": "three networks", "RDMA": "RDMA", "duplex": "both directions",
    "two servers": "two 8xA100", "Kubernetes": "Kubernetes", "layers of SLURM": "partition", "parallelism drawn": "Draw",
    "FSDP or DDP": "DDP", "bits": "exponent", "steadier": "bf16", "asynchronous": "asynchronous", "spikes": "spike", "NaN": "NaN",
    "vanishing": "vanish", "clipping": "clipping", "70B": "70B", "prefill": "prefill", "batching": "continuous",
    "classic tools": "three classic tools", "measured": "theoretical", "fast iteration": "iteration", "small data": "small data",
    "detect_anomaly": "detect_anomaly", "memory_summary": "memory_summary", "pdb": "pdb", "py-spy": "py-spy", "tests": "layers of tests",
    "sbatch": "sbatch", "NFS": "NFS", "RadixAttention": "RadixAttention", "experiments": "five local experiments",
}  # fmt: skip


class Exercise(NamedTuple):
    """The blocks of one exercise: (language, code, expected output)."""

    place: str
    blocks: list[tuple[str, str, str]]


ENGLISH, CHINESE = days.days("en"), days.days("zh")


def blocks_of(day: Day) -> list[tuple[str, str, str]]:
    return [match.groups() for section in day.parts["try"] for match in BLOCK.finditer(section.text)]


def exercises() -> list[Exercise]:
    found = []
    for day in ENGLISH:
        for section in day.parts["try"]:
            blocks = list(BLOCK.finditer(section.text))
            run = [(code, said) for code, said in itertools.zip_longest(blocks, blocks[1:]) if code[2] == "try"]
            assert all(said and said[1] == "text" for _, said in run), f"{section.id}: expected output is missing"
            if run:
                found.append(Exercise(section.id, [(code[1], code[3], said[3]) for code, said in run if said]))
    return found


def params() -> list[object]:
    def slow(exercise: Exercise) -> bool:
        return any(re.search(r"\btorch|skillserver call run_", code) for _, code, _ in exercise.blocks)

    return [pytest.param(each, id=each.place, marks=[pytest.mark.torch] * slow(each)) for each in exercises()]


def output_of(language: str, code: str, folder: Path) -> str:
    """What a block prints: a call of a tool in this process, everything else as a program of its own."""
    if language == "bash" and TOOL_CALL.fullmatch(code):
        done = [CliRunner().invoke(cli.app, shlex.split(line, comments=True)[1:]) for line in code.splitlines()]
        assert [(one.exit_code, str(one.exception)) for one in done if one.exit_code] == []
        return "".join(one.output for one in done)
    (folder / "try.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "try.py"] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def as_pattern(line: str) -> str:
    """An expected line as a regular expression, its `~` numbers as groups."""
    pieces = re.split(r"(\.\.\.|~[\d.,]*\d(?:e[+-]?\d+)?)", line.rstrip())
    return "".join(".*?" if piece == "..." else r"([\d.,]*\d(?:e[+-]?\d+)?)" if NUMBER.fullmatch(piece) else re.escape(piece) for piece in pieces)


def misses(expected: str, printed: str) -> str:
    """Why `printed` is not what was expected, "" when it is."""
    lines = [r"(?:[^\n]*\n)*?" if line.strip() == "..." else as_pattern(line) + r"[^\S\n]*\n" for line in expected.strip("\n").split("\n")]
    found = re.fullmatch("".join(lines), printed.strip("\n") + "\n")
    if not found:
        return f"expected\n{expected}\nprinted\n{printed}"
    about = zip(NUMBER.findall(expected), found.groups(), strict=True)
    far = [(said, seen) for said, seen in about if abs(number(seen) - number(said)) > NEAR * abs(number(said))]
    return f"not near (expected, printed): {far}" if far else ""


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("exercise", params())
def test_an_exercise_prints_what_the_page_says(exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.chdir(tmp_path)
    for language, code, expected in exercise.blocks:
        assert misses(expected, output_of(language, code, tmp_path)) == ""


def test_the_comparison_knows_what_is_near_and_what_is_missing() -> None:
    assert misses("a: ~100 ...\n...\nlast", "a: 120 GB\nx\ny\nlast\n") == ""
    assert misses("a: ~100", "a: 126").startswith("not near")
    assert misses("a\nb", "a\n").startswith("expected")


def test_there_are_nineteen_days_in_both_languages() -> None:
    for known in (ENGLISH, CHINESE):
        assert [day.number for day in known] == list(range(1, 20))


@pytest.mark.parametrize("day", [*ENGLISH, *CHINESE], ids=lambda day: day.page)
def test_every_section_that_a_day_names_exists(day: Day) -> None:
    named = set(days.SECTION_ID.findall(day.text(answers=True)))
    assert sorted(named - set(library.current().sections)) == []
    assert len(day.reading) >= 3


@pytest.mark.parametrize("day", [*ENGLISH, *CHINESE], ids=lambda day: day.page)
def test_every_question_has_an_answer_that_names_its_section(day: Day) -> None:
    assert len(day.questions) >= 4
    assert [each.question for each in day.questions if not days.SECTION_ID.search(each.answer)] == []
    assert not any(each.answer.split("\n")[0] in day.text() for each in day.questions)


@pytest.mark.parametrize("ours,theirs", list(zip(ENGLISH, CHINESE, strict=True)), ids=lambda day: day.page)
def test_both_languages_hold_the_same_blocks_readings_and_answers(ours: Day, theirs: Day) -> None:
    assert blocks_of(theirs) == blocks_of(ours)
    assert theirs.reading == ours.reading
    assert [days.SECTION_ID.findall(each.answer) for each in theirs.questions] == [days.SECTION_ID.findall(each.answer) for each in ours.questions]
    assert re.search("[一-鿿]", theirs.title + theirs.lead)


def test_every_topic_is_asked_somewhere() -> None:
    asked = " ".join(f"{each.question} {each.answer}" for day in ENGLISH for each in day.questions)
    assert [topic for topic, word in TOPICS.items() if word not in asked] == []
    assert len([day for day in ENGLISH if "untested" in day.text()]) >= 5, "what needs a GPU says that it is untested"


def test_only_the_lead_of_a_day_is_searched_and_the_contents_stay_short() -> None:
    shelf = library.current()
    inside = [section for section in shelf.sections.values() if section.page.startswith("path/day-")]
    assert {section.id for section in inside if section.searched} == {day.page for day in (*ENGLISH, *CHINESE)}
    assert shelf.index.size == len([section for section in shelf.sections.values() if section.searched])
