import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from skillserver import processes

PAUSE = "import signal; signal.pause()"


def run(program, mark, on_line=None):
    """Status, stdout lines and stderr tail of a Python program."""
    lines = []

    async def keep(line):
        lines.append(line)

    async def whole():
        child = await processes.start([sys.executable, "-c", program], mark=mark, env=dict(os.environ), on_line=on_line or keep)
        return await child.finished(), lines, list(child.stderr)

    return asyncio.run(whole())


def test_lines_of_both_streams_and_the_status_arrive():
    program = "import sys; print('one'); print('two', end=''); print('words', file=sys.stderr); sys.exit(3)"
    assert run(program, "t1") == (3, [b"one", b"two"], ["words"])


def test_only_the_last_200_lines_of_stderr_are_kept_and_progress_bars_do_not_join():
    _, _, tail = run("import sys\nfor i in range(500): sys.stderr.write(f'{i}\\r')", "t2")
    assert tail == [str(number) for number in range(300, 500)]


def test_a_line_of_several_mebibytes_arrives_whole():
    _, lines, _ = run("print('x' * 3_000_000); print('after')", "t3")
    assert [len(line) for line in lines] == [3_000_000, 5]


def test_an_error_of_the_reader_is_raised_and_not_lost():
    async def refuse(line):
        raise KeyError(line)

    with pytest.raises(KeyError):
        run("print('one')", "t4", refuse)


def test_the_child_carries_the_mark_and_knows_its_parent_and_reads_nothing():
    program = "import os, sys; print(os.environ['SKILLSERVER_JOB'], os.environ['SKILLSERVER_PARENT'] == str(os.getppid()), sys.stdin.read() == '')"
    assert run(program, "t5")[1] == [b"t5 True True"]


def test_what_a_child_leaves_behind_in_another_session_is_ended_with_it():
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {PAUSE!r}], start_new_session=True); print('started')"
    assert run(program, "t6")[:2] == (0, [b"started"])
    assert processes.marked("t6") == []


def test_a_tree_that_ignores_sigterm_is_ended():
    async def whole():
        seen = asyncio.Event()

        async def ready(line):
            seen.set()

        inner = f"import subprocess, signal, sys; signal.signal(15, signal.SIG_IGN); subprocess.Popen([sys.executable, '-c', {PAUSE!r}], " \
                "start_new_session=True); print(1, flush=True); signal.pause()"  # fmt: skip
        child = await processes.start([sys.executable, "-c", inner], mark="t7", env=dict(os.environ), on_line=ready)
        await seen.wait()
        assert len(processes.marked("t7")) == 2
        await child.end(grace_s=0.1)
        return await child.finished()

    assert asyncio.run(whole()) == -signal.SIGKILL
    assert processes.marked("t7") == []


def test_a_program_that_ends_on_sigterm_needs_no_kill():
    async def whole():
        seen = asyncio.Event()

        async def ready(line):
            seen.set()

        program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print(1, flush=True); signal.pause()"
        child = await processes.start([sys.executable, "-c", program], mark="t8", env=dict(os.environ), on_line=ready)
        await seen.wait()
        await child.end(grace_s=30)
        return await child.finished()

    assert asyncio.run(whole()) == 7


def test_a_missing_program_raises_and_leaves_no_pipe_open():
    async def nothing(line):
        return None

    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        asyncio.run(processes.start(["/no/such/program"], mark="t9", env={}, on_line=nothing))
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_short_program_gives_status_and_both_streams():
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)"
    assert processes.run_with_deadline([sys.executable, "-c", program], 60) == (4, "out\n", "err\n")


def test_a_program_past_its_deadline_is_ended_and_what_it_wrote_is_kept():
    program = "print('before', flush=True); import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
    finished = processes.run_with_deadline([sys.executable, "-c", program], 1, env={**os.environ, processes.MARK: "t10"})
    assert (finished.rc, processes.marked("t10")) == (None, [])


def test_a_program_that_is_not_there_has_status_127():
    assert processes.run_with_deadline(["/no/such/program"], 1).rc == 127


def test_a_grandchild_that_holds_the_output_open_does_not_hold_the_caller():
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {PAUSE!r}]); print('done')"
    finished = processes.run_with_deadline([sys.executable, "-c", program], 60, env={**os.environ, processes.MARK: "t11"})
    assert finished.stdout == "done\n"
    processes.kill_marked("t11")


def test_the_start_time_tells_a_process_from_a_later_one_with_its_number():
    assert processes.start_time(os.getpid()) == processes.start_time(os.getpid()) is not None
    assert processes.start_time(2**22 + 1) is None


@pytest.mark.parametrize(("limit", "cpus"), [("max 100000", []), ("200000 100000", [2]), ("50000 100000", [0])])
def test_the_cgroup_quota_limits_the_cpus(tmp_path, limit, cpus):
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "root/a/cpu.max").write_text(limit + "\n")
    (tmp_path / "membership").write_text("0::/a/b\n")
    assert processes._cgroup_cpus(tmp_path / "root", tmp_path / "membership") == cpus
    assert processes.allowed_cpus() >= 1
