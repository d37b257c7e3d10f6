"""Child processes of the server: start, follow line by line, end for good.

A worker is started from the event-loop thread (its death signal follows the *thread* that forked it), in a session of
its own, with `SKILLSERVER_JOB=<mark>` in its environment. Every descendant inherits the mark, so `end_tree` finds also
those that left the tree, such as torchrun's ranks after their launcher died. Knows nothing of workers' lines or jobs.

>>> child = await start([python, "-u", "worker.py"], mark="run_mamf-1f3a", env=env, on_line=print_it)
>>> await child.finished()
0
>>> run_with_deadline(["nvidia-smi", "-L"], 5).rc           # None: the deadline passed
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

MARK = "SKILLSERVER_JOB"
PARENT = "SKILLSERVER_PARENT"
WATCHED = "SKILLSERVER_WATCHED"  # behind a wrapper nobody knows whose child the worker is: it ends when its stdin does
STDERR_LINES = 200
LINE_LIMIT = 64 * 2**20  # a stdout line longer than this is not one of ours
STDERR_LINE_CHARACTERS = 2000
POLL_S = 0.05
DRAIN_S = 2.0  # a grandchild may hold the pipe open after the child's end
OnLine = Callable[[bytes], Awaitable[None]]


class Finished(NamedTuple):
    """What a short program left; `rc` is None when the deadline passed, 127 when there is no such program."""

    rc: int | None
    stdout: str
    stderr: str


@dataclass
class Child:
    """A running child. `stderr` keeps its last 200 lines; `on_line` saw its stdout."""

    process: asyncio.subprocess.Process
    mark: str
    stderr: deque[str]
    readers: list[asyncio.Task[None]]

    @property
    def pid(self) -> int:
        """Process id, also after its end."""
        return self.process.pid

    async def finished(self) -> int:
        """Exit status, once the child ended and all its lines were handled. Raises what `on_line` raised."""
        ended = asyncio.ensure_future(self.process.wait())
        try:
            await asyncio.wait({ended, self.readers[0]}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and self.readers[0].exception():  # a closed stdout is no end, but an error of `on_line` is
                await end_tree(self.pid, self.mark, 0)
            status = await ended
            await self._drained()
            return status
        finally:
            ended.cancel()

    async def end(self, grace_s: float = 5.0) -> None:
        """End the child and whatever it started; its last lines are still read. Returns when nothing is left."""
        await end_tree(self.pid, self.mark, grace_s)
        await self._drained()

    async def _drained(self) -> None:
        """All was read; whoever still holds the pipes is ended."""
        _, open_ = await asyncio.wait(self.readers, timeout=DRAIN_S)
        if open_:
            await end_tree(self.pid, self.mark, 0)
            _, open_ = await asyncio.wait(self.readers, timeout=DRAIN_S)
        for reader in open_:
            reader.cancel()
        for reader in self.readers:
            if reader.done() and not reader.cancelled():
                reader.result()


async def start(argv: Sequence[str], *, mark: str, env: Mapping[str, str], on_line: OnLine, cwd: Path | None = None, direct: bool = True) -> Child:
    """Start a child. `direct=False` when a wrapper (srun, apptainer) will stand between us and the worker.

    Raises OSError when the program cannot be started.
    """
    env = {**env, MARK: mark} | ({PARENT: str(os.getpid())} if direct else {WATCHED: "stdin"})
    (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
    try:
        stdin = subprocess.DEVNULL if direct else subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=stdin, stdout=out_write, stderr=err_write, env=env, cwd=cwd, start_new_session=True
        )
    except BaseException:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        os.close(out_write)
        os.close(err_write)
    stderr: deque[str] = deque(maxlen=STDERR_LINES)
    readers = [asyncio.create_task(_follow(out_read, on_line)), asyncio.create_task(_keep_tail(err_read, stderr))]
    return Child(process, mark, stderr, readers)


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    """What comes out of a pipe. Our own pipes: those of asyncio delay `wait()` until every holder closed them."""
    reader = asyncio.StreamReader(limit=2**20)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0))
    try:
        while chunk := await reader.read(2**16):
            yield chunk
    finally:
        transport.close()


async def _follow(fd: int, on_line: OnLine) -> None:
    kept = bytearray()
    async for chunk in _chunks(fd):
        kept += chunk
        *lines, rest = kept.split(b"\n") if b"\n" in chunk else [kept]
        kept = rest if len(rest) <= LINE_LIMIT else bytearray()
        for line in lines:
            await on_line(bytes(line))
    if kept:
        await on_line(bytes(kept))


async def _keep_tail(fd: int, tail: deque[str]) -> None:
    kept = ""
    async for chunk in _chunks(fd):
        *lines, kept = re.split(r"[\r\n]+", kept + chunk.decode(errors="replace"))  # progress bars end their lines with \r
        tail.extend(line[:STDERR_LINE_CHARACTERS] for line in lines if line.strip())
        kept = kept[-STDERR_LINE_CHARACTERS:]
    if kept.strip():
        tail.append(kept)


async def end_tree(pid: int, mark: str, grace_s: float = 5.0) -> list[int]:
    """SIGTERM to `pid`, `grace_s` seconds, SIGKILL of its whole tree, then of every process with the mark.

    Returns the pids that are still there (a process in uninterruptible sleep cannot be killed).
    """
    tree = family(pid)  # first: the children of a dead process belong to init
    if grace_s > 0:
        _signal(tree[:1], signal.SIGTERM)
        await _gone(tree[:1], grace_s)  # a launcher ends after its ranks; others of its children get no grace
    tree = [*tree, *family(pid)]
    _signal(tree, signal.SIGKILL)
    await _gone(tree, 1)
    for _ in range(5):
        if not (left := kill_marked(mark)):
            return []
        await _gone(left, 1)
    return [process.pid for process in marked(mark)]


def family(pid: int) -> list[psutil.Process]:
    """The process and all its descendants; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def marked(mark: str) -> list[psutil.Process]:
    """Every living process of this user whose environment has the mark, this one excepted."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _has_mark(process, mark) and _alive(process)]


def kill_marked(mark: str) -> list[psutil.Process]:
    """SIGKILL every process with the mark at once; returns them."""
    left = marked(mark)
    _signal(left, signal.SIGKILL)
    return left


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.Error, OSError):  # another user's, or gone
        return False


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


async def _gone(processes: Iterable[psutil.Process], within_s: float) -> None:
    """Wait until all have ended. Not psutil's own wait: it would take the exit status away from asyncio."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    while any(_alive(process) for process in processes) and clock() < deadline:
        await asyncio.sleep(POLL_S)


def start_time(pid: int) -> float | None:
    """When a process started, in units that only serve comparison; None when there is none.

    Linux: clock ticks since boot, which setting the clock does not move. A zombie counts as gone.
    """
    try:
        if sys.platform != "linux":
            return psutil.Process(pid).create_time()
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else float(fields[19])
    except (OSError, psutil.Error, IndexError):
        return None


_unkillable: list[subprocess.Popen[bytes]] = []  # kept, or the interpreter would complain about them when it collects them


def run_with_deadline(argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None) -> Finished:
    """Run a short program to its end or its deadline. Returns also when the program cannot be killed (D state).

    Output goes through files: a pipe would be held open by whatever the program left behind.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True)
        except OSError as problem:
            return Finished(127, "", str(problem))
        try:
            rc: int | None = child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            rc = None
        finally:
            _kill_group(child)
        return Finished(rc, _text(out), _text(err))


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    if child.returncode is not None:
        return
    for process in reversed(family(child.pid)):
        _signal([process], signal.SIGKILL)
    try:
        child.wait(1)
    except subprocess.TimeoutExpired:
        _unkillable.append(child)


def _text(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return str(file.read(LINE_LIMIT).decode(errors="replace"))  # type: ignore[attr-defined]


def allowed_cpus() -> int:
    """CPUs this process may use: its affinity, cut down to the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_cgroup_cpus()]))


def _cgroup_cpus(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Whole CPUs of each quota that holds for this process (cgroup v2), rounded down."""
    found: list[int] = []
    try:
        own = next(line[3:] for line in membership.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return found
    folder = root / own.lstrip("/")
    for place in (folder, *folder.parents):
        if place.is_relative_to(root) and (limit := place / "cpu.max").is_file():
            quota, _, period = limit.read_text().partition(" ")
            found += [int(int(quota) / int(period))] if quota != "max" else []
    return found
