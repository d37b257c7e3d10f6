"""Captures of every kind, made up in the layouts that the tools print (kinds.toml): verdict and first action."""

import tomllib
from pathlib import Path

import pytest

from skillserver.health import captures, report

KINDS = {row["name"]: row for row in tomllib.loads((Path(__file__).parent / "kinds.toml").read_text())["capture"]}


@pytest.mark.parametrize("name", KINDS)
def test_the_verdict_and_the_first_action_are_those_of_a_careful_operator(name: str) -> None:
    row = KINDS[name]
    result = report.judge(captures.read([("capture", row["text"])]))
    action = result.findings[0].action.split(":")[0].split(" ")[0] if result.findings else "none"
    assert result.verdict in row["verdicts"], [(one.code, one.severity) for one in result.findings]
    assert action in row["actions"], result.findings[0]
    assert all(one.confirm and (one.sections or one.severity == "info") for one in result.findings)


@pytest.mark.parametrize("dress", ["pdsh", "ansi", "crlf", "wide", "fenced", "indented", "quoted"])
def test_what_a_paste_wears_changes_nothing(dress: str) -> None:
    for name, row in KINDS.items():
        text, lines = row["text"], row["text"].splitlines()
        worn = {
            "pdsh": "\n".join(f"gpu-012: {line}" for line in lines) if len(lines) > 2 and "nhc" not in text and "Healthy" not in text else text,
            "ansi": "\n".join(f"\x1b[0m{line}\x1b[K" for line in lines),
            "crlf": text.replace("\n", "\r\n"),
            "wide": text.encode("utf-16-le").decode("latin-1") if text.isascii() and "\n" in text else text,
            "fenced": f"```\n{text}\n```",
            "indented": "\n".join(f"    {line}" for line in lines),
            "quoted": "\n".join(f"> {line}" for line in lines),
        }[dress]
        assert report.judge(captures.read([("capture", worn)])).verdict in row["verdicts"], name
