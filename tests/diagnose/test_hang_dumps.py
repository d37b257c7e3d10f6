"""Flight Recorder dumps of worlds that no test machine could run, NCCL and gloo, whole, cut, copied and hostile."""

import os
import pickle
import shutil
from pathlib import Path

import flight_dumps
import pytest
from flight_dumps import START_NS, STEP_NS, config, entry, steps, write

from skillserver.diagnose import flight_files, hang, plain_pickle, wait_graph
from skillserver.diagnose.wait_graph import Wait

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "flight_recorder"
N = 8  # collectives of a usual dump; the last may be open


def judged(folder: Path) -> hang.HangDiagnosis:
    return hang.diagnose(sorted(path for path in folder.rglob("*") if path.is_file()), [])


def job(folder: Path, absent: set[int], world: int = 8, **kwargs: float) -> Path:
    """All ranks but the absent ones stand in collective N."""
    for rank in range(world):
        rows = [*steps(N - 1), *([] if rank in absent else [entry(N - 1, N, done=False)])]
        write(folder, rank, rows, config(g0=range(world)), **kwargs)
    return folder


def codes(found: hang.HangDiagnosis) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in found.findings]


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize(("name", "culprits", "waiting"), [("ok", [], []), ("missing", [1], [0, 2]), ("op", [0], [1, 2])])
@pytest.mark.parametrize("kind", ["*", "nccl_*", "fr_*"])
def test_real_gloo_dumps_name_the_culprit(name: str, culprits: list[int], waiting: list[int], kind: str) -> None:
    found = hang.diagnose(sorted((CASES / name).glob(kind)), [])
    assert (found.culprits, found.waiting, found.verdict == "ok") == (culprits, waiting, name == "ok")


def test_one_set_cannot_tell_slow_from_hung_and_says_so(tmp_path: Path) -> None:
    found = judged(job(tmp_path, {3}))
    assert (found.culprits, found.verdict, found.waiting) == ([3], "warning", [0, 1, 2, 4, 5, 6, 7])
    assert "cannot tell a hung rank from a slow one" in found.findings[0].reason


def test_a_wait_as_long_as_the_timeout_is_a_hang(tmp_path: Path) -> None:
    found = judged(job(tmp_path, {3}, after_s=600.5))
    assert (found.culprits, codes(found)) == ([3], [("missing_rank", "critical")])


def test_a_wait_of_a_second_blames_nobody(tmp_path: Path) -> None:
    found = judged(job(tmp_path, {3}, after_s=0.5))
    assert (found.culprits, found.verdict, codes(found)) == ([], "ok", [("progressing", "info")])


def test_a_rank_that_always_comes_late_is_called_slow(tmp_path: Path) -> None:
    for rank in range(4):
        late = 400_000_000 if rank == 2 else 0
        rows = [entry(seq - 1, seq, at_ns=START_NS + seq * 500_000_000 + late) for seq in range(1, N)]
        rows += [] if rank == 2 else [entry(N - 1, N, done=False, at_ns=START_NS + N * 500_000_000)]
        write(tmp_path, rank, rows, config(g0=range(4)), after_s=3.0)
    found = judged(tmp_path)
    assert (found.culprits, found.verdict, found.findings[0].code, found.findings[0].subject) == ([], "warning", "slow_rank", "rank 2")


def test_file_times_of_copies_are_not_believed(tmp_path: Path) -> None:
    found = judged(job(tmp_path, {3}, after_s=5_000_000.0))
    assert (found.culprits, found.verdict) == ([3], "warning")
    assert "at most" not in found.findings[0].reason


def test_a_rank_that_waits_in_a_subgroup_is_not_blamed(tmp_path: Path) -> None:
    groups = config(g0=range(4), g5=[1, 3])
    for rank in range(4):
        rows = steps(3)
        if rank in (0, 2):
            rows.append(entry(3, 4, done=False))
        if rank == 1:
            rows.append(entry(3, 1, group=("5", "tp"), pg_id=1, done=False))
        write(tmp_path, rank, rows, groups)
    found = judged(tmp_path)
    assert (found.culprits, found.waiting) == ([3], [0, 1, 2])


def test_groups_are_known_by_name_and_not_by_their_local_number(tmp_path: Path) -> None:
    """pg_id 1 is another group on each half of the ranks."""
    groups = config(g0=range(4), g1=[0, 1], g2=[2, 3])
    for rank in range(4):
        name = "1" if rank < 2 else "2"
        rows = [*steps(3), *[entry(3 + n, 1 + n, group=(name, "tp"), pg_id=1, size=[512 if rank < 2 else 64]) for n in range(2)]]
        write(tmp_path, rank, rows, groups)
    assert (judged(tmp_path).verdict, judged(tmp_path).findings) == ("ok", [])


def test_split_groups_that_share_a_name_are_kept_apart_by_their_ranks(tmp_path: Path) -> None:
    for rank in range(4):
        members = [0, 1] if rank < 2 else [2, 3]
        rows = [*steps(2), entry(2, 1, group=("7", "tp"), op="all_reduce" if rank < 2 else "all_gather", size=[4])]
        write(tmp_path, rank, rows, config(g0=range(4), g7=members))
    assert judged(tmp_path).verdict == "ok"


@pytest.mark.parametrize(
    ("odd", "code"),
    [({"op": "broadcast"}, "type"), ({"size": [512]}, "size"), ({"dtype": "Half"}, "dtype")],
)
def test_the_minority_is_named_and_not_the_first_rank(tmp_path: Path, odd: dict[str, object], code: str) -> None:
    for rank in range(4):
        last = entry(N - 1, N, done=False, **(odd if rank == 0 else {}))  # type: ignore[arg-type]
        write(tmp_path, rank, [*steps(N - 1), last], config(g0=range(4)))
    found = judged(tmp_path)
    assert (found.culprits, found.waiting, codes(found)) == ([0], [1, 2, 3], [(f"collective_{code}_mismatch", "critical")])


def test_two_ranks_that_differ_are_both_named(tmp_path: Path) -> None:
    for rank, op in enumerate(("all_reduce", "broadcast")):
        write(tmp_path, rank, [*steps(2), entry(2, 3, op=op, done=False)], config(g0=range(2)))
    found = judged(tmp_path)
    assert found.culprits == [0, 1] and "no majority" in found.findings[0].reason


def test_a_left_out_call_is_recognised(tmp_path: Path) -> None:
    calls = ["all_reduce", "broadcast", "all_gather", "barrier"]
    for rank in range(3):
        ops = [op for op in calls if rank != 2 or op != "broadcast"]
        write(tmp_path, rank, [entry(n, n + 1, op=op, done=n < 1) for n, op in enumerate(ops)], config(g0=range(3)))
    assert "it left one out" in judged(tmp_path).findings[0].reason


def test_shapes_with_equally_many_elements_match(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, [*steps(3), entry(3, 4, size=[4, 8] if rank else [32])], config(g0=range(3)))
    assert judged(tmp_path).findings == []


def test_uneven_sizes_that_went_through_are_a_warning_and_no_hang(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, [entry(0, 1, op="broadcast", size=[8 if rank else 4]), entry(1, 2)], config(g0=range(3)))
    found = judged(tmp_path)
    assert (found.culprits, codes(found)) == ([], [("collective_size_mismatch_passed", "warning")])


def test_a_circle_of_two_groups_names_both_ranks(tmp_path: Path) -> None:
    groups = config(g0=range(2), g1=range(2), g2=range(2))
    for rank in range(2):
        write(tmp_path, rank, [*steps(2), entry(2, 1, group=(str(rank + 1), "pp"), done=False)], groups)
    found = judged(tmp_path)
    assert (found.culprits, codes(found)) == ([0, 1], [("circular_wait", "critical")])


def test_a_rank_whose_gpu_did_not_start_the_collective_is_awaited(tmp_path: Path) -> None:
    for rank in range(4):
        last = entry(N - 1, N, done=False, state="scheduled" if rank == 2 else "started")
        write(tmp_path, rank, [*steps(N - 1), last], config(g0=range(4)))
    assert judged(tmp_path).culprits == [2]


def test_a_collective_that_all_entered_and_that_does_not_end_is_the_network(tmp_path: Path) -> None:
    found = judged(job(tmp_path, set(), after_s=600.5))
    assert (found.culprits, codes(found)) == ([], [("transport_stalled", "critical")])
    assert found.next.startswith("check_gpu_health")


def test_a_collective_in_flight_is_no_hang(tmp_path: Path) -> None:
    found = judged(job(tmp_path, set(), after_s=0.1))
    assert (found.verdict, codes(found)) == ("ok", [("in_flight", "info")])


def test_dumps_of_different_moments_blame_nobody(tmp_path: Path) -> None:
    for rank, last in enumerate((20, 17, 20)):
        write(tmp_path, rank, [*steps(last - 1), entry(last - 1, last, done=rank == 1)], config(g0=range(3)))
    found = judged(tmp_path)
    assert (found.culprits, found.verdict) == ([], "ok")


def test_an_open_receive_without_its_send_names_the_peer(tmp_path: Path) -> None:
    for rank in range(3):
        rows = steps(2)
        if rank == 0:
            rows.append(entry(2, 2, op="recv 0<-1", done=False, p2p=True))
        write(tmp_path, rank, rows, config(g0=range(3)))
    found = judged(tmp_path)
    assert (found.culprits, found.waiting, codes(found)) == ([1], [0], [("missing_peer", "warning")])


def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    (tmp_path / "fr").mkdir()
    (tmp_path / "fr/rank_0").write_bytes(pickle.dumps({"entries": [Bomb()]}))
    found = judged(tmp_path / "fr")
    assert (found.verdict, (tmp_path / "ran").exists()) == ("unknown", False)
    assert "system" in found.skipped[0] and "nothing was run" in found.skipped[0]


@pytest.mark.parametrize("name", ["builtins.eval", "os.system", "collections.OrderedDict"])
def test_every_class_is_refused(name: str) -> None:
    module, _dot, attribute = name.partition(".")
    with pytest.raises(plain_pickle.NotPlain, match=attribute):
        plain_pickle.loads(f"c{module}\n{attribute}\n.".encode())


def test_broken_files_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    job(tmp_path, {3})
    for rank, data in ((5, (tmp_path / "nccl_trace_rank_5").read_bytes()[:300]), (6, b""), (7, pickle.dumps({"entries": [{"is_p2p": False}]}))):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    found = judged(tmp_path)
    assert (found.culprits, found.waiting) == ([3], [0, 1, 2, 4])
    said = " ".join(found.skipped)
    assert all(part in said for part in ("rank_5: it is cut", "rank_6: empty", "rank_7: its entries", "no dump of rank 5-7"))


def test_a_single_dump_blames_nobody(tmp_path: Path) -> None:
    write(tmp_path, 4, [*steps(3), entry(3, 4, done=False)], config(g0=range(8)))
    found = judged(tmp_path)
    assert (found.culprits, codes(found)) == ([], [("dumps_missing", "warning")])


def test_a_rank_without_a_dump_is_blamed_when_all_others_wait(tmp_path: Path) -> None:
    job(tmp_path, set())
    (tmp_path / "nccl_trace_rank_2").unlink()
    found = judged(tmp_path)
    assert found.culprits == [2] and "left no dump" in found.findings[0].reason


def test_json_and_pickle_of_one_moment_are_one_look(tmp_path: Path) -> None:
    job(tmp_path, {3})
    for rank in range(8):
        rows = [*steps(N - 1), *([] if rank == 3 else [entry(N - 1, N, done=False)])]
        write(tmp_path, rank, rows, config(g0=range(8)), as_json=True)
    found = judged(tmp_path)
    assert (found.culprits, found.verdict) == ([3], "warning")
    assert "level_0 (model_0.py:7)" in found.findings[0].evidence[0]


def test_two_equal_sets_half_a_minute_apart_are_a_hang(tmp_path: Path) -> None:
    job(tmp_path / "first", {3}, after_s=40.0)
    job(tmp_path / "second", {3}, after_s=70.0)
    assert codes(judged(tmp_path)) == [("missing_rank", "critical")]


def test_a_rank_that_moved_between_two_sets_but_the_others_wait_again_is_not_certain(tmp_path: Path) -> None:
    job(tmp_path / "first", {3}, after_s=10.0)
    for rank in range(8):
        rows = [*steps(2 * N - 1), *([] if rank == 3 else [entry(2 * N - 1, 2 * N, done=False)])]
        write(tmp_path / "second", rank, rows, config(g0=range(8)), after_s=5.0)
    assert judged(tmp_path).verdict == "warning"


def test_an_overwritten_history_is_compared_where_it_overlaps(tmp_path: Path) -> None:
    for rank in range(4):
        rows = [*steps(50), *([] if rank == 1 else [entry(50, 51, done=False)])]
        write(tmp_path, rank, rows[(10 if rank else 0) :], config(g0=range(4)))
    found = judged(tmp_path)
    assert found.culprits == [1] and "older entries of rank 1-3: overwritten" in found.skipped


def test_numbers_that_ask_for_gigabytes_get_none(tmp_path: Path) -> None:
    write(tmp_path, 0, [entry(0, 1), entry(1, 10**15)], config(g0=range(1)))
    assert judged(tmp_path).verdict in ("ok", "warning")


def test_the_rank_of_a_name_without_the_word_is_a_guess_that_is_said(tmp_path: Path) -> None:
    job(tmp_path, {3})
    for rank in range(8):
        shutil.move(tmp_path / f"nccl_trace_rank_{rank}", tmp_path / f"trace.{rank}")
    found = judged(tmp_path)
    assert found.culprits == [3] and any("guessed" in line for line in found.skipped)


def test_children_read_what_one_process_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job(tmp_path, {3}, world=64)
    alone = judged(tmp_path)
    monkeypatch.setattr(flight_files, "IN_PROCESS_BYTES", 0)
    assert judged(tmp_path) == alone
    assert alone.culprits == [3] and len(alone.waiting) == 63


def test_a_large_world_is_answered_within_the_budget_of_a_result(tmp_path: Path) -> None:
    """1,024 ranks in 128 groups of 8 and a default group."""
    groups = {f"g{1 + number}": range(8 * number, 8 * number + 8) for number in range(128)}
    for rank in range(1024):
        rows = [*steps(3), entry(3, 1, group=(str(1 + rank // 8), "tp"), done=rank // 8 != 5)]
        rows = rows[:3] if rank == 43 else [*rows, *([] if rank // 8 == 5 else [entry(4, 4, done=False)])]
        write(tmp_path, rank, rows, flight_dumps.config(g0=range(1024), **{f"g{1 + rank // 8}": groups[f"g{1 + rank // 8}"]}))
    found = judged(tmp_path)
    assert (found.culprits, len(found.waiting)) == ([43], 64)
    assert len(found.model_dump_json()) / 4 < 2000


def test_arrows_end_at_roots_and_circles_are_found() -> None:
    assert wait_graph.solve([Wait("a", {0, 2}, {1, 3}), Wait("b", {1}, {3})]) == wait_graph.Solution([3], [])
    assert wait_graph.solve([Wait("a", {0}, {1}), Wait("b", {1}, {2}), Wait("c", {2}, {0})]) == wait_graph.Solution([], [[0, 1, 2]])
    assert wait_graph.behind([Wait("a", {0, 2}, {1}), Wait("b", {1}, {3})], 3) == {0, 1, 2}


def test_the_generator_writes_times_that_grow() -> None:
    assert [row["time_created_ns"] for row in steps(2)] == [START_NS, START_NS + STEP_NS]


def test_shared_lists_that_stand_for_endless_text_are_refused(tmp_path: Path) -> None:
    bomb: list[object] = [1]
    for _ in range(60):
        bomb = [bomb, bomb]
    for rank, field in enumerate(("input_sizes", "process_group", "profiling_name", "input_dtypes")):
        write(tmp_path, rank, [*steps(2), entry(2, 3) | {field: bomb}], config(g0=range(4)))
    found = judged(tmp_path)
    assert "nccl_trace_rank_0: its entries are not as a Flight Recorder writes them" in found.skipped[0]
    assert len(found.model_dump_json()) < 8000


def test_dumps_of_two_jobs_are_not_compared_with_each_other(tmp_path: Path) -> None:
    job(tmp_path / "a", {3})
    job(tmp_path / "b", {1}, world=4)
    found = judged(tmp_path)
    assert (found.culprits, found.waiting, codes(found)) == ([], [], [("several_jobs", "warning")])
    assert found.findings[0].evidence == ["rank 0-2,4-7: a job of 8 ranks", "rank 3: a job of 4 ranks"]  # of each rank the newest


@pytest.mark.parametrize("seq", [10**30, 10**14, -7])
def test_a_damaged_sequence_number_costs_no_time_and_no_other_dump(tmp_path: Path, seq: int) -> None:
    folder = job(tmp_path, {3})
    path = folder / "nccl_trace_rank_4"
    raw = pickle.loads(path.read_bytes())
    raw["entries"][-1]["collective_seq_id"] = seq
    path.write_bytes(pickle.dumps(raw))
    assert 3 in judged(folder).culprits
