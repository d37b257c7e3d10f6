"""The watchdog's lines of several ranks, compared only where they may be compared."""

from skillserver.diagnose import explain, reading
from skillserver.diagnose.explain import Cause

STAMP = "1122 06:40:00.504052"


def timeout(rank: int, seq: int, op: str = "ALLREDUCE", numel: int = 1024, ran_ms: int = 600_080) -> str:
    return (
        f"[rank{rank}]:[E{STAMP} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) "
        f"ran for {ran_ms} milliseconds before timing out."
    )


def place(rank: int, seq: int, enqueued: int, completed: int, group: str = "0(default_pg)", within: int | None = None) -> str:
    inside = rank if within is None else within
    return (
        f"[rank{rank}]:[E{STAMP} ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID {group} Rank {inside}] Exception (either an error or timeout) "
        f"detected by watchdog at work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    )


def idle(rank: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E{STAMP} ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a "
        f"collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, "
        f"last completed NCCL work: {completed}."
    )


def top(*lines: str) -> Cause:
    return explain.explain(reading.of_text("\n".join(lines))).causes[0]


def test_different_operations_at_one_place_are_different_programs() -> None:
    lines = [line for rank in (0, 1, 2) for line in (timeout(rank, 50), place(rank, 50, 52, 49))]
    found = top(*lines, timeout(3, 50, "BROADCAST", 7), place(3, 50, 50, 49))
    assert (found.id, found.confidence) == ("collective_divergence", 0.9)
    assert "ranks 0, 1, 2 in #50 ALLREDUCE, rank 3 in #50 BROADCAST" in found.reading[0]
    assert found.evidence[0].startswith("line 7: [rank3]")


def test_different_operations_at_distant_places_are_different_programs() -> None:
    found = top(timeout(0, 122, "_REDUCE_SCATTER_BASE"), place(0, 122, 127, 121), timeout(1, 126, "_ALLGATHER_BASE"), place(1, 126, 128, 125))
    assert found.id == "collective_divergence"
    assert "completed is #121" in found.reading[0]


def test_one_place_apart_proves_no_divergence() -> None:
    """A collective may end on one rank and not on another when a link fails."""
    found = top(timeout(0, 1516, numel=25_427_968), place(0, 1516, 1517, 1515), timeout(1, 1517, "BROADCAST"), place(1, 1517, 1517, 1516))
    assert found.id == "nccl_watchdog_timeout"
    assert "may be the first to have failed" in found.reading[0]


def test_the_rank_that_had_not_enqueued_the_collective_is_named() -> None:
    found = top(timeout(0, 594), place(0, 594, 594, 593), timeout(2, 594), place(2, 594, 594, 593), idle(1, 593, 593))
    assert (found.id, found.title) == ("nccl_watchdog_timeout", "Ranks waited in a collective for rank 1")
    assert "not enqueued it (last #593): rank 1" in found.reading[0]


def test_newer_wording_is_read_too() -> None:
    line = (
        f"[rank0]:[E{STAMP} ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work "
        "sequence id: 594 PG status: last enqueued work: 594, last completed work: 593"
    )
    assert top(timeout(0, 594), line, idle(1, 593, 593)).title == "Ranks waited in a collective for rank 1"


def test_sizes_that_differ_in_one_all_reduce_are_different_programs() -> None:
    found = top(timeout(0, 9, numel=100), place(0, 9, 9, 8), timeout(1, 9, numel=200), place(1, 9, 9, 8))
    assert found.id == "collective_divergence"
    assert "different sizes" in found.reading[0]


def test_numbers_of_different_groups_are_not_compared() -> None:
    found = top(timeout(0, 10), place(0, 10, 10, 9, "41", 0), timeout(1, 700, "BROADCAST"), place(1, 700, 700, 699, "42", 0))
    assert found.id == "nccl_watchdog_timeout"
    assert found.confidence <= 0.5


def test_numbers_without_any_group_are_not_compared() -> None:
    found = top(timeout(0, 96120), timeout(7, 64088))
    assert found.id == "nccl_watchdog_timeout"
    assert "cannot be compared" in found.reading[0]


def test_the_ordinal_of_a_subgroup_is_not_taken_for_a_group() -> None:
    """`[PG 2 Rank 0]` counts groups on each rank apart; group rank and world rank differ, so it is some subgroup."""
    old = [place(rank, seq, seq, seq - 1).replace("PG ID 0 PG GUID 0(default_pg) Rank", "PG 2 Rank") for rank, seq in ((4, 10), (5, 700))]
    lines = [timeout(4, 10), old[0].replace("Rank 4", "Rank 0"), timeout(5, 700, "BROADCAST"), old[1].replace("Rank 5", "Rank 1")]
    assert top(*lines).id == "nccl_watchdog_timeout"


def test_the_two_ends_of_a_send_may_differ() -> None:
    found = top(timeout(0, 8, "SEND"), place(0, 8, 8, 7), timeout(1, 8, "RECV"), place(1, 8, 8, 7))
    assert found.id == "nccl_watchdog_timeout"


def test_the_group_rank_is_not_taken_for_the_rank_of_the_world() -> None:
    found = top(timeout(12, 87).replace("[Rank 12]", "[Rank 0]"), place(12, 87, 87, 86, "143", 0))
    assert "rank 12 wait" in found.reading[0]


def test_a_rank_without_a_timeout_is_the_one_waited_for() -> None:
    lines = [line for rank in (0, 1, 3) for line in (timeout(rank, 5), place(rank, 5, 5, 4))]
    assert "rank 2 printed no timeout" in top(*lines).reading[0]


def test_a_collective_that_never_worked_is_a_matter_of_set_up() -> None:
    assert "set-up" in " ".join(top(timeout(0, 1), place(0, 1, 1, -1), timeout(1, 1), place(1, 1, 1, -1)).reading)


def test_a_watchdog_that_came_far_too_late_was_blocked() -> None:
    assert "blocked" in " ".join(top(timeout(0, 5, ran_ms=25_624_887), place(0, 5, 5, 4)).reading)
