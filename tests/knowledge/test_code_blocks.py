"""Code in pages is code: blocks marked `run` are executed in an empty folder, all others are parsed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from skillserver import paths
from skillserver.knowledge import sections
from skillserver.knowledge.sources import OURS

OPENING = re.compile(r"^( *)(`{3,})([\w+-]*) *(\w*)\s*$")
DEADLINE_S = 30
PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./:-]*>")  # <node>, <job id>: to be filled in by the reader


class Block(NamedTuple):
    """A fenced block: where it starts, its language, the word after it, its text."""

    place: str
    language: str
    mark: str
    text: str


def blocks() -> Iterator[Block]:
    for name, page in sections.files(paths.shipped(OURS)).texts.items():
        lines = iter(enumerate(page.split("\n"), 1))
        for number, line in lines:
            if opened := OPENING.match(line):
                indent, fence, language, mark = opened.groups()
                body = []
                for _, inner in lines:
                    if inner.strip() == fence:
                        break
                    body.append(inner.removeprefix(indent))
                yield Block(f"{name}:{number}", language, mark, "\n".join(body) + "\n")


BLOCKS = list(blocks())
RUN = [block for block in BLOCKS if block.mark == "run"]


def python(text: str) -> None:
    """Snippets may await, return or yield, so they are parsed as the body of a coroutine when they are no module."""
    try:
        ast.parse(text)
    except SyntaxError:
        ast.parse("async def snippet():\n" + textwrap.indent(text, "    "))


def shell(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=PLACEHOLDER.sub("PLACEHOLDER", text), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def several_yaml(text: str) -> None:
    list(yaml.safe_load_all(PLACEHOLDER.sub("PLACEHOLDER", text)))


PARSERS: dict[str, Callable[[str], object]] = {
    "python": python, "py": python, "bash": shell, "sh": shell, "yaml": several_yaml, "yml": several_yaml, "json": json.loads, "toml": tomllib.loads,
}  # fmt: skip
UNPARSED = {"", "text", "console", "ini", "dockerfile", "Dockerfile", "cpp", "c", "diff", "log", "conf", "nginx"}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in PARSERS], ids=lambda block: block.place)
def test_a_block_is_valid_in_its_language(block: Block) -> None:
    PARSERS[block.language](block.text)


def test_every_language_is_one_that_is_parsed_or_known_to_be_prose() -> None:
    assert {block.language for block in BLOCKS} - set(PARSERS) <= UNPARSED
    assert {block.mark for block in BLOCKS} <= {"", "run", "try"}, "`try`: an exercise of the path, run by test_path.py"


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.place)
def test_a_block_marked_run_runs(block: Block, tmp_path: Path) -> None:
    command = {"python": [sys.executable, "-W", "error", "-"], "bash": ["bash", "-euo", "pipefail", "-s"]}[block.language]
    done = subprocess.run(command, input=block.text, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr


def test_some_blocks_are_run() -> None:
    assert {block.language for block in RUN} == {"python", "bash"}
