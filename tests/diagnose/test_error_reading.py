"""Texts and files become lines as a person saw them, in bounded memory, or are refused with what was expected."""

import tracemalloc
from pathlib import Path

import pytest

from skillserver.diagnose import collecting, explain, reading
from skillserver.errors import BadRequest


def seen(text: str) -> list[tuple[int, str]]:
    return [(piece.line, piece.text) for piece in reading.of_text(text)]


def test_line_numbers_are_those_of_an_editor() -> None:
    assert seen("a\n\nb\r\nc") == [(1, "a"), (3, "b"), (4, "c")]


def test_a_progress_bar_is_parted_at_its_carriage_returns() -> None:
    assert seen(" 1%|#  | 1/9\r 2%|## | 2/9\rRuntimeError: x\nend") == [(1, " 1%|#  | 1/9"), (1, " 2%|## | 2/9"), (1, "RuntimeError: x"), (2, "end")]


def test_colours_and_terminal_titles_are_taken_out() -> None:
    assert seen("\x1b[31mCUDA \x1b[1merror\x1b[0m: unknown\x1b]0;title\x07 error") == [(1, "CUDA error: unknown error")]


def test_a_message_with_colours_inside_is_recognised() -> None:
    text = "\x1b[31mRuntimeError: CUDA error: \x1b[0mdevice-side\x1b[0m assert triggered"
    assert explain.explain(reading.of_text(text)).causes[0].id == "device_side_assert"


def test_a_very_long_line_comes_in_overlapping_pieces() -> None:
    pieces = seen("x" * 20_000 + "y")
    assert {line for line, _text in pieces} == {1}
    assert all(len(text) <= reading.LONGEST for _line, text in pieces)
    assert pieces[-1][1].endswith("y")


@pytest.mark.parametrize("at", [100, 7_900, 8_000, 262_100, 500_000])
def test_a_message_anywhere_in_a_line_without_end_is_found(at: int) -> None:
    text = "x" * at + " CANCELLED DUE TO TIME LIMIT " + "x" * 300_000
    assert explain.explain(reading.of_text(text)).causes[0].id == "slurm_time_limit"


WRAPPED = (
    "RuntimeError: The server socket has failed to listen on any local network\n"
    "address. The server socket has failed to bind to [::]:29600 (errno: 98 - Address\nalready in use)."
)
WRAPPED_IN_A_WORD = "2026-01-01 00:00:00 ERROR launcher: the server socket had Addr\ness already in use"


@pytest.mark.parametrize("text", [WRAPPED, WRAPPED_IN_A_WORD])
def test_a_message_that_a_terminal_wrapped_is_put_together(text: str) -> None:
    assert explain.explain(reading.of_text(text)).causes[0].id == "port_in_use"


def test_lines_shorter_than_any_terminal_are_not_put_together() -> None:
    assert explain.explain(reading.of_text("ERROR: no Address\nalready in use by design")).causes == []


@pytest.mark.parametrize(("text", "code"), [("", "empty_text"), (" \n\t\n", "empty_text"), ("a\0b", "not_text")])
def test_a_text_without_text_is_refused(text: str, code: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        reading.of_text(text)
    assert refusal.value.code == code
    assert "torchrun" in refusal.value.next


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "empty_file"), (b"\n \n", "empty_file"), (b"\x7fELF\0\0", "not_text"), (b"\x1f\x8b\x08abc", "not_text")]
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(BadRequest) as refusal:
        reading.of_file(path)
    assert refusal.value.code == code


def test_broken_utf8_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"caf\xe9\nCUDA error: device-side assert triggered\n")
    assert explain.explain(reading.of_file(path)).causes[0].id == "device_side_assert"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_what_powershell_writes_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "log"
    path.write_text("node 1 started\r\nCUDA error: device-side assert triggered\r\n", encoding=encoding)
    assert next((piece.line, piece.text) for piece in reading.of_file(path)) == (1, "node 1 started")
    assert explain.explain(reading.of_file(path)).causes[0].id == "device_side_assert"


def test_a_big_file_streams_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("w", encoding="utf-8") as stream:
        for step in range(20_000):
            stream.write(f"[rank{step % 64}] step {step} loss {7 - step / 1e6:.5f} grad_norm 26.6250 {'sample ids and other details ' * 30}\n")
            if step % 50 == 0:
                stream.write(f"[rank{step % 64}]: ncclRemoteError: A call failed possibly due to a network error {'x' * 4000}\n")
        stream.write("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n")
    assert path.stat().st_size > 18_000_000
    explain.explain(reading.of_text("warm the tables"))
    tracemalloc.start()
    found = explain.explain(reading.of_file(path))
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.causes[0].id == "slurm_time_limit"
    assert found.lines_read == 20_401
    assert peak < 6_000_000


def test_a_log_of_one_repeated_error_keeps_few_hits_and_counts_all() -> None:
    seen = collecting.collect(reading.of_text("CUDA error: device-side assert triggered\n" * 5_000))
    assert (len(seen.hits["device_side_assert"]), seen.counts["device_side_assert"]) == (collecting.KEPT, 5_000)


def test_a_file_that_cannot_be_read_is_refused_with_the_reason() -> None:
    with pytest.raises(BadRequest, match=r"unreadable_file: mem: Input/output error\. Next: "):
        reading.of_file(Path("/proc/self/mem"))


def test_the_hole_of_a_log_that_was_cut_under_its_writer_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"step 1\n" * 2000)
        file.truncate(64 * 2**20)
        file.seek(0, 2)
        file.write(b"CUDA error: device-side assert triggered\n")
    found = explain.explain(reading.of_file(path))
    assert (found.causes[0].id, found.causes[0].evidence) == ("device_side_assert", ["line 2001: CUDA error: device-side assert triggered"])
