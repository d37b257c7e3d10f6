"""Stacks of every format: who is where, who is elsewhere, and what is no rank at all."""

import faulthandler
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.diagnose import hang, live_stacks, stack_kinds, stack_text, stacks
from skillserver.errors import BadRequest, NotHere
from skillserver.permissions import Permissions
from skillserver.tools.hang import diagnose_hang

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
REDUCE = "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    wrapper (torch/distributed/c10d_logger.py:83)\n    step (train.py:6)\n"
LOAD = "    wait (threading.py:306)\n    get (queue.py:179)\n    __next__ (torch/utils/data/dataloader.py:530)\n    step (train.py:5)\n"
CODE = "    forward (model.py:{line})\n    step (train.py:4)\n"
MAIN = "    <module> (train.py:20)\n"


def spy(pid: int, frames: str, state: str = "idle") -> str:
    return f'Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} ({state}): "MainThread"\n{frames}{MAIN}'


def pasted(**ranks: str) -> str:
    return "\n".join(f"== node1 pid {100 + int(name[1:])} rank {name[1:]}\n{spy(100 + int(name[1:]), frames)}" for name, frames in ranks.items())


def judged(text: str) -> hang.HangDiagnosis:
    return diagnose_hang(text=text)


def test_the_rank_that_is_elsewhere_is_the_suspect_and_the_smallest_group_comes_first() -> None:
    found = judged(pasted(r0=REDUCE, r1=LOAD, r2=REDUCE, r3=REDUCE))
    assert (found.culprits, found.waiting, found.verdict) == ([1], [0, 2, 3], "warning")
    assert [(seen.who, seen.count, seen.doing) for seen in found.stacks] == [
        ("rank 1", 1, "waits for data"),
        ("rank 0,2-3", 3, "waits in a collective"),
    ]
    assert "data loader" in found.findings[0].action


def test_a_running_job_is_not_blamed() -> None:
    found = judged(pasted(r0=REDUCE, r1=CODE.format(line=3), r2=CODE.format(line=9), r3=CODE.format(line=5)))
    assert (found.culprits, found.verdict, found.findings[0].code) == ([], "ok", "progressing")


def test_all_in_their_own_code_is_no_hang() -> None:
    found = judged(pasted(r0=CODE.format(line=3), r1=CODE.format(line=9)))
    assert (found.verdict, found.culprits, found.findings) == ("ok", [], [])


def test_all_in_one_collective_blames_nobody_among_them() -> None:
    found = judged(pasted(r0=REDUCE, r1=REDUCE, r2=REDUCE))
    assert (found.culprits, found.findings[0].code) == ([], "all_in_one_collective")


def test_one_rank_in_another_collective_is_a_suspect_and_equal_halves_are_stages() -> None:
    other = REDUCE.replace("all_reduce", "broadcast").replace("train.py:6", "train.py:9")
    assert judged(pasted(r0=other, r1=REDUCE, r2=REDUCE, r3=REDUCE)).culprits == [0]
    assert judged(pasted(r0=other, r1=other, r2=REDUCE, r3=REDUCE)).culprits == []


def test_a_stack_that_changed_between_two_pastes_is_slow() -> None:
    text = pasted(r0=REDUCE, r1=CODE.format(line=3), r2=REDUCE) + "\n" + pasted(r0=REDUCE, r1=CODE.format(line=8), r2=REDUCE)
    found = judged(text)
    assert (found.culprits, found.findings[0].code, found.verdict) == ([], "slow_rank", "warning")


def test_two_equal_looks_at_files_make_it_certain(tmp_path: Path) -> None:
    for moment, at in (("first", 1_700_000_000), ("second", 1_700_000_030)):
        (tmp_path / moment).mkdir()
        for rank, frames in enumerate((REDUCE, LOAD, REDUCE)):
            path = tmp_path / moment / f"rank{rank}.txt"
            path.write_text(spy(rank + 1, frames))
            os.utime(path, (at, at))
    found = diagnose_hang(paths=[str(tmp_path)])
    assert (found.culprits, found.verdict) == ([1], "critical")


def test_launchers_and_data_loader_workers_are_no_ranks() -> None:
    agent = "    sleep (time.py:1)\n    _invoke_run (torch/distributed/elastic/agent/server/api.py:900)\n"
    worker = "    recv (multiprocessing/connection.py:250)\n    _worker_loop (torch/utils/data/_utils/worker.py:320)\n"
    text = pasted(r0=REDUCE, r1=LOAD) + "\n== node1 pid 9\n" + spy(9, agent) + "\n== node1 pid 10 rank 1\n" + spy(10, worker)
    found = judged(text)
    assert (found.culprits, found.waiting, sum(seen.count for seen in found.stacks)) == ([1], [0], 2)
    assert any(finding.code == "dataloader_workers" and "recv" in finding.evidence[0] for finding in found.findings)


def test_prefixed_lines_of_a_launcher_belong_to_their_rank() -> None:
    lines = {0: REDUCE, 1: LOAD}
    text = "\n".join(f"[rank{rank}]: {line}" for rank, frames in lines.items() for line in spy(rank + 50, frames).splitlines())
    assert judged(text).culprits == [1]


def test_faulthandler_text_is_read_and_the_writing_thread_is_not_the_main_one(tmp_path: Path) -> None:
    with (tmp_path / "rank_0.txt").open("w") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
    timer = 'Current thread 0x00007f0000000001 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 1401 in run\n' \
            '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n\n'  # fmt: skip
    comm = '  File "/env/site-packages/torch/distributed/distributed_c10d.py", line 3 in barrier\n'
    main = f'Thread 0x00007f0000000002 [python] (most recent call first):\n{comm}' \
           '  File "/home/u/train.py", line 9 in <module>\n'  # fmt: skip
    (process,) = stack_text.of_file("rank_3.txt", timer + main)
    assert (process.rank, [frame[0] for frame in process.main().frames]) == (3, ["barrier", "<module>"])  # type: ignore[union-attr]
    (own,) = stack_text.of_file("rank_0.txt", (tmp_path / "rank_0.txt").read_text())
    assert any(frame[0].startswith("test_faulthandler") for frame in own.main().frames)  # type: ignore[union-attr]


def test_stack_files_of_the_debug_server_are_read() -> None:
    body = (
        'Thread 0x00007f0000000002 (most recent call first):\n  File "/u/train.py", line {line} in load\n  File "/u/train.py", line 9 in <module>\n'
    )
    text = "".join(f"=== Rank {rank}: http://node{rank}:4000 ===\n{body.format(line=rank)}\n" for rank in range(3))
    assert [process.rank for process in stack_text.of_text(text, "stacks_1.txt")] == [0, 1, 2]


def test_json_and_native_frames_give_the_same_place() -> None:
    rows = [{"pid": 7, "os_thread_id": 7, "thread_name": "MainThread", "active": False,
             "frames": [{"name": "step", "filename": "/t.py", "line": 6}, {"name": "<module>", "filename": "/t.py", "line": 20}]}]  # fmt: skip
    native = spy(7, "    c10d::Work::wait (libtorch_cpu.so)\n    step (t.py:6)\n").replace("train.py:20", "t.py:20")
    seen = stacks.read([("rank0.json", json.dumps(rows), None), ("rank0.txt", native, None)])
    assert (len(seen.latest), seen.latest[0].kind) == (1, "collective")


def test_a_file_named_by_its_pid_has_no_rank() -> None:
    (process,) = stack_text.of_file("pyspy_4711.txt", spy(4711, REDUCE))
    assert (process.rank, process.label) == (None, "pid 4711")


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([("recv", "torch/distributed/distributed_c10d.py", 1)], "pair"),
        ([("init_process_group", "torch/distributed/distributed_c10d.py", 1)], "rendezvous"),
        ([("synchronize", "/env/site-packages/torch/cuda/__init__.py", 1), ("f", "/home/u/mytorch/a.py", 2)], "device"),
        ([("cmdloop", "/usr/lib/python3.11/pdb.py", 1)], "debugger"),
        ([("_save", "/env/site-packages/torch/serialization.py", 1)], "files"),
        ([("wait", "/usr/lib/python3.11/threading.py", 1), ("join", "/home/u/a.py", 2)], "lock"),
        ([("f", "/home/u/mytorch/a.py", 2)], "code"),
        ([("clock_nanosleep", "libc.so.6", 0), ("f", "/home/u/a.py", 2)], "sleep"),
        ([("_shutdown", "/usr/lib/python3.11/threading.py", 1)], "finished"),
    ],
)
def test_the_innermost_frames_say_what_a_stack_does(frames: list[stack_kinds.Frame], kind: str) -> None:
    assert stack_kinds.kind(frames) == kind


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize("kind", ["*.txt", "*.json", "*_native.txt", "rank?.txt", "*"])
def test_real_dumps_of_every_format_name_the_rank_that_loads(kind: str) -> None:
    found = hang.diagnose(sorted((CASES / "stack_dumps").glob(kind)), [])
    assert (found.culprits, found.waiting, found.verdict) == ([1], [0, 2], "warning")


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
def test_the_one_thread_of_a_real_hang_in_evaluation_is_found() -> None:
    found = diagnose_hang(paths=[str(CASES / "error_logs/bloom_eval_hang_pyspy.txt")])
    assert (found.culprits, sorted(seen.count for seen in found.stacks)) == (["thread 688514"], [1, 3, 4, 4, 4])


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
def test_dumps_and_stacks_are_joined_in_one_verdict() -> None:
    found = diagnose_hang(paths=[str(CASES / "stack_dumps"), str(CASES / "flight_recorder/missing")])
    assert (found.culprits, found.waiting, len(found.findings)) == ([1], [0, 2], 1)
    assert "load_batch (hang.py:3)" in found.findings[0].evidence[-1]


def test_text_without_a_stack_is_unknown_and_says_what_to_pass() -> None:
    found = judged("loss 4.2 at step 7")
    assert (found.verdict, found.skipped) == ("unknown", ["pasted text: no stack in it"])
    assert "py-spy" in found.next


def test_refusals_name_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="nothing_given"):
        diagnose_hang()
    with pytest.raises(BadRequest, match="empty_folder"):
        diagnose_hang(paths=[str(tmp_path)])
    with pytest.raises(BadRequest, match="no_such_file"):
        diagnose_hang(paths=[str(tmp_path / "none")])


def test_living_processes_need_permission() -> None:
    kept = permissions.current()
    permissions.grant(Permissions(run=False))
    try:
        with pytest.raises(NotHere, match="not_permitted"):
            diagnose_hang(pids=[os.getpid()])
    finally:
        permissions.grant(kept)


def test_without_py_spy_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NotHere, match="faulthandler"):
        live_stacks.texts([os.getpid()])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_the_rank_of_a_process_is_read_from_its_environment() -> None:
    env = os.environ | {"RANK": "5"}
    with subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout and child.stdout.readline()  # its environment is its own only after exec
        assert live_stacks.rank_of(child.pid) == 5
        child.communicate(b"\n")


@pytest.mark.skipif(not (shutil.which("py-spy") or Path(sys.executable).with_name("py-spy").exists()), reason="py-spy is not installed")
def test_living_processes_are_looked_at_twice() -> None:
    code = "import threading; print(1, flush=True); threading.Event().wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ | {"RANK": "0"}) as child:
        assert child.stdout and child.stdout.readline()
        found = diagnose_hang(pids=[child.pid, 2**22 - 1])
        child.kill()
    if not found.stacks:
        pytest.skip(f"no ptrace here: {found.skipped}")
    assert (found.stacks[0].who, found.stacks[0].doing) == ("rank 0", "waits for a lock, thread or process")
    assert len(found.skipped) == 1
