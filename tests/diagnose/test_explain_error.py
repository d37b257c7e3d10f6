"""The tool itself: its arguments, its budget, what it says to do next, and its guess when it knows nothing."""

import json
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.contract import document
from skillserver.diagnose import signatures
from skillserver.errors import BadRequest, NotHere
from skillserver.tools.diagnose import explain_error


@pytest.mark.parametrize("arguments", [{}, {"text": "", "path": ""}, {"text": "a", "path": "b"}])
def test_exactly_one_of_text_and_path_is_taken(arguments: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match="exactly one of text and path"):
        explain_error(**arguments)


def test_a_path_is_read_within_the_permitted_folders_only(tmp_path: Path) -> None:
    log = tmp_path / "rank3.err"
    log.write_text("RuntimeError: CUDA error: device-side assert triggered\n", encoding="utf-8")
    assert explain_error(path=str(log)).causes[0].id == "device_side_assert"
    before = permissions.current()
    permissions.grant(permissions.TEXT_ONLY)
    try:
        with pytest.raises(NotHere):
            explain_error(path=str(log))
    finally:
        permissions.grant(before)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="not a file"):
        explain_error(path=str(tmp_path / "none.log"))


def test_a_text_of_megabytes_is_fine() -> None:
    found = explain_error(text="step 1 loss 2.0\n" * 100_000 + "OSError: [Errno 116] Stale file handle\n")
    assert (found.causes[0].id, found.lines_read) == ("stale_file_handle", 100_001)


def test_the_worst_log_fits_the_budget() -> None:
    """Every message there is, each with long lines: still at most 2,000 tokens of 4 characters."""
    text = "\n".join(f"[rank{number}]: {row.sample} {'x' * 400}" for number, row in enumerate(signatures.table()))
    found = explain_error(text=text)
    assert len(json.dumps(document(found), ensure_ascii=False)) <= 8_000
    assert len(found.left_out) > 20


def test_description_and_schema_are_small() -> None:
    said = {"name": explain_error.name, "description": explain_error.description, "inputSchema": explain_error.input_schema()}
    assert len(json.dumps(said)) <= 4 * 200


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus", "check_gpu_health"),
        ("RuntimeError: [Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 2000000 ms", "diagnose_hang"),
        ("{'loss': nan, 'grad_norm': nan, 'epoch': 0.1}", "diagnose_training_log"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "diagnose_memory"),
        ("ncclRemoteError: A call failed possibly due to a network error", "explain_error on the log of the process at the other end"),
    ],
)
def test_the_next_call_is_named(text: str, tool: str) -> None:
    assert tool in explain_error(text=text).next


def test_unknown_text_has_no_cause_and_a_guess_that_says_it_is_one() -> None:
    found = explain_error(text="ERROR: the gradient of the optimizer state could not be sharded, learning rate warmup failed")
    assert found.causes == []
    assert found.summary.startswith("No signature matches in 1 lines.")
    if found.guess:  # needs pages in the knowledge base
        assert "only the nearest" in found.summary
        assert found.guess[0] in found.next


def test_an_exception_nobody_knows_is_shown_with_low_confidence() -> None:
    found = explain_error(text='Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nmylib.OddError: frobnication overrun')
    assert found.causes[0].title == "Uncaught Python exception: mylib.OddError: frobnication overrun"
    assert (found.causes[0].confidence, found.causes[0].likelihood) == (0.35, "possible")


def test_what_was_not_read_is_said() -> None:
    assert "other ranks' logs" in explain_error(text="EADDRINUSE").skipped[-1]
