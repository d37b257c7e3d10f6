"""Every signature of data/error_signatures.toml is shown by its own lines, and no pattern can be made slow."""

from re import _parser as regex_parser  # type: ignore[attr-defined]

import pytest

from skillserver.diagnose import explain, reading, signatures
from skillserver.diagnose.signatures import Signature

TABLE = signatures.table()
SAMPLES = [(row, text) for row in TABLE for text in (row.sample, *(variant.text for variant in row.variants))]
FIFTEEN = {
    "nccl_watchdog_timeout", "nccl_system_error", "nccl_remote_error", "cuda_out_of_memory", "illegal_memory_access", "ecc_uncorrectable",
    "xid_hardware", "shm_full", "port_in_use", "rendezvous_timeout", "dataloader_worker_killed", "driver_library_mismatch", "driver_too_old",
    "slurm_oom", "slurm_time_limit", "loss_nan",
}  # fmt: skip


def name_of(value: Signature | str) -> str:
    return value.id if isinstance(value, Signature) else ""


@pytest.mark.parametrize(("row", "text"), SAMPLES, ids=name_of)
def test_a_sample_shows_its_signature_and_no_other_culprit(row: Signature, text: str) -> None:
    causes = explain.explain(reading.of_text(text)).causes
    assert causes[0].id == row.id
    assert [cause.id for cause in causes[1:] if cause.role == "culprit"] == []
    assert causes[0].role == ("victim" if row.kind == "victim" else "culprit")


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_a_row_says_where_it_was_read_and_what_to_do(row: Signature) -> None:
    assert row.source.startswith(("https://", "produced with"))
    assert all(variant.source.startswith(("https://", "produced with")) for variant in row.variants)
    assert row.meaning and row.remedies and row.checks
    assert row.kind == "victim" or row.causes or row.kind == "generic"
    assert 0 < row.confidence < 1
    assert bool(row.patterns) != row.derived


def test_the_named_kinds_of_error_are_all_there() -> None:
    assert {row.id for row in TABLE} >= FIFTEEN
    assert len({row.id for row in TABLE}) == len(TABLE)


def test_rows_refer_only_to_rows() -> None:
    known = {row.id for row in TABLE} | {"any"}
    for row in TABLE:
        assert set(row.because_of) | set(row.only_with) <= known, row.id
        assert bool(row.only_with) == (row.kind == "circumstance"), row.id


def test_a_gate_is_a_lower_case_word_without_digits() -> None:
    """Lines are remembered by their shape without digits, so a gate with a digit would be missed."""
    assert all(gate == gate.lower() and not any(map(str.isdigit, gate)) for row in TABLE for gate in row.gates)


def repeats(node: object) -> list[tuple[int, object]]:
    """(greatest number of turns, body) of every repeat in a parsed pattern."""
    found = []
    if isinstance(node, regex_parser.SubPattern | list):
        for item in node:
            found += repeats(item)
    elif isinstance(node, tuple):
        if node and str(node[0]) in ("MAX_REPEAT", "MIN_REPEAT"):
            found.append((node[1][1], node[1][2]))
        for item in node:
            found += repeats(item)
    return found


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_no_pattern_has_a_repeat_inside_a_repeat(row: Signature) -> None:
    for pattern in (*row.patterns, *row.unless):
        for turns, body in repeats(regex_parser.parse(pattern)):
            assert turns == 1 or not [inner for inner, _body in repeats(body) if inner > 1], pattern


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_a_line_of_a_megabyte_made_of_half_a_message_is_read_to_its_end(row: Signature) -> None:
    first = row.sample.splitlines()[0]
    half = first[: max(12, 2 * len(first) // 3)]
    seen = explain.explain(reading.of_text(half * (1_000_000 // len(half)) + "\n"))
    assert seen.lines_read == 1


def test_xids_are_told_apart_by_the_table_of_xids() -> None:
    assert [signatures.xid_class(number) for number in (79, 48, 63, 94)] == ["hardware"] * 4
    assert [signatures.xid_class(number) for number in (13, 31)] == ["program"] * 2
    assert [signatures.xid_class(number) for number in (43, 45)] == ["aftermath"] * 2
    assert signatures.xid_class(9_999) is None
