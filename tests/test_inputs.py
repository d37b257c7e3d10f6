"""What people type, and what they should not have typed."""

import json
from pathlib import Path

import pytest

from skillserver import inputs
from skillserver.errors import BadRequest

DEEP = "[" * 200_000


def refusal(*given: str) -> str:
    with pytest.raises(BadRequest) as refused:
        inputs.arguments(list(given))
    return str(refused.value)


def test_json_that_is_nested_too_deeply_is_refused_and_stays_text_in_a_pair(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(DEEP)
    assert refusal(DEEP).startswith("bad_json: the arguments are not JSON: nested too deeply.")
    assert inputs.arguments([f"captures={DEEP}", f"text=@{tmp_path / 'deep.json'}"]) == {"captures": DEEP, "text": DEEP}


def test_a_file_that_is_not_there_or_not_text_is_named_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "utf16.json").write_bytes("{}".encode("utf-16"))
    assert f"'{tmp_path}/none.json' cannot be read: No such file or directory. Next: check the path after @." in refusal(f"@{tmp_path}/none.json")
    assert "is not UTF-8 text (byte 0). Next: convert it (iconv -t UTF-8)" in refusal(f"text=@{tmp_path}/utf16.json")


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("running", 0), ("failed", 1), ("cancelled", 1), ("lost", 1)])
def test_a_run_that_did_not_come_to_its_end_is_no_success(state: str, code: int) -> None:
    assert inputs.exit_code({"state": state, "verdict": "ok"}, "") == code


def test_a_run_that_the_call_was_to_end_is_a_success() -> None:
    assert inputs.exit_code({"state": "cancelled"}, "", told_to_end=True) == 0
    assert inputs.exit_code({"state": "failed"}, "", told_to_end=True) == 1


def test_the_json_document_is_escaped_where_stdout_is_not_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    class Latin1:
        encoding = "iso-8859-1"

    document = {"evidence": "训练 é \U0001f600"}
    assert "训练" in inputs.pretty(document)
    monkeypatch.setattr("sys.stdout", Latin1())
    assert inputs.pretty(document).isascii()
    assert json.loads(inputs.pretty(document)) == document
