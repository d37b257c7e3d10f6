"""Jobs of this process: start, wait, cancel, list.

A job is an async callable that runs as a task of its own, so that it may outlive the call that started it. That is of
use only where the event loop goes on after the call: a server says so with `async with keeping():`. Everywhere else
(`.sync`, the CLI, a notebook) a call waits to the end, whatever its `wait_s`, and a cancelled call (Ctrl-C) returns the
best so far. A job ends with the process that started it. Knows tasks and records; not what a job does.

>>> record = await start("run_mamf", {"dtype": "bf16"}, work, wait_s=20)      # async def work(handle): ...
>>> record.state, record.next
('running', 'wait_job(job_id="run_mamf-1f3a9c20")')
"""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from skillserver import processes, progress
from skillserver.errors import BadRequest, NotHere, SkillError
from skillserver.jobs.store import JobRecord, Store, now

Result = dict[str, Any]
REPORT_EVERY_S = 1.0
HEARTBEAT_S = 5.0  # a client with an idle timer wants to hear something at least this often
SAVE_EVERY_S = 5.0
CANCEL = "cancel"  # a file of this name in the run folder: another process of this user ended the worker
LISTED = 20  # ids named by an error


@dataclass
class Handle:
    """What a job's work may do with its job."""

    record: JobRecord
    folder: Path
    save: Callable[[], object]
    partial: Result | None = None
    saved_at: float = -math.inf

    async def progress(self, done: float, total: float | None, message: str) -> None:
        """Say how far it has come."""
        self.record.progress = {"done": done, "total": total, "message": message}
        clock = asyncio.get_running_loop().time()
        if clock - self.saved_at >= SAVE_EVERY_S:
            self.saved_at = clock
            self.save()

    def keep(self, partial: Result) -> None:
        """The best so far; becomes the result when the job is cut short."""
        self.partial = partial

    def say(self, note: str) -> None:
        """Add to the record's note."""
        self.record.note = "; ".join(part for part in (self.record.note, note) if part)

    def started(self, pid: int) -> None:
        """The child that does the work."""
        self.record.worker_pid, self.record.worker_start_time = pid, processes.start_time(pid)
        self.save()


Work = Callable[[Handle], Awaitable[Result]]


@dataclass
class Job:
    """A job of this process."""

    handle: Handle
    shape: Callable[[Result], Result]
    task: asyncio.Task[None]

    @property
    def record(self) -> JobRecord:
        """Its record, alive."""
        return self.handle.record


@dataclass
class Manager:
    """All jobs of one process. `keeps`: the event loop outlives the calls."""

    store: Store = field(default_factory=Store)
    keeps: bool = False
    jobs: dict[str, Job] = field(default_factory=dict)

    async def start(self, tool: str, arguments: Result, work: Work, wait_s: float, *, shape: Callable[[Result], Result] = dict,
                    note: str = "") -> JobRecord:  # fmt: skip
        """Start `work` and wait for it up to `wait_s`. A bug in the work is raised here; a SkillError stands in the record."""
        job = await self._begin(tool, arguments, work, shape, note)
        try:
            await _follow(job, wait_s if self.keeps else math.inf)
        except BaseException as problem:
            await self._end(job)
            if isinstance(problem, asyncio.CancelledError) and not self.keeps:
                return job.record
            raise
        if job.task.done():
            job.task.result()
        return _as_told(job.record)

    async def _begin(self, tool: str, arguments: Result, work: Work, shape: Callable[[Result], Result], note: str) -> Job:
        record = JobRecord.new(tool, arguments)
        folder, folder_note = await asyncio.to_thread(self.store.run_folder, record.job_id)
        record.run_folder = str(folder)
        handle = Handle(record, folder, lambda: self._save(record))
        record.note = "; ".join(part for part in (note, folder_note) if part)
        self._save(record)
        await asyncio.to_thread(self.store.prune)
        job = Job(handle, shape, asyncio.create_task(self._run(work, handle, shape), name=record.job_id))
        self.jobs[record.job_id] = job
        return job

    async def _run(self, work: Work, handle: Handle, shape: Callable[[Result], Result]) -> None:
        record = handle.record
        try:
            record.result = shape(await work(handle))
            record.state = "done"
        except asyncio.CancelledError:
            record.state = "cancelled"
        except SkillError as error:
            if (handle.folder / CANCEL).exists():
                record.state = "cancelled"
            else:
                record.state, record.error, record.error_kind, record.next = "failed", error.document(), type(error).__name__, error.next
        except BaseException as bug:
            record.state, record.error = "failed", {"code": "bug", "message": f"{type(bug).__name__}: {bug}", "next": "", "valid": []}
            raise
        finally:
            self._finish(handle, shape)

    def _finish(self, handle: Handle, shape: Callable[[Result], Result]) -> None:
        record = handle.record
        record.ended = now()
        try:
            if record.result is None and handle.partial is not None:
                record.result = shape(handle.partial) | {"partial": True}
        finally:
            if self.store.home not in handle.folder.parents and record.state != "failed":
                shutil.rmtree(handle.folder, ignore_errors=True)
            if self._save(record):
                self.jobs.pop(record.job_id, None)

    def _save(self, record: JobRecord) -> bool:
        """Whether it is on disk. In this thread on purpose: a cancelled save in another one could overwrite the next."""
        why = self.store.save(record.model_copy(deep=True))
        if why and why not in record.note:
            record.note = "; ".join(part for part in (record.note, why) if part)
            self.store.save(record.model_copy(deep=True))
        return not why

    async def _end(self, job: Job) -> None:
        """Cancel the task once and wait for it, also when the caller is being cancelled: anyio would cancel us at every await."""
        with anyio.CancelScope(shield=True):
            if not job.task.done():  # a record that could not be saved keeps an ended job here, maybe of a loop that is closed
                if not job.task.cancelling():
                    job.task.cancel()
                await asyncio.wait({job.task})
        if job.record.state == "running":  # cancelled before its first step
            job.record.state = "cancelled"
            self._finish(job.handle, job.shape)

    async def wait(self, job_id: str, wait_s: float = 30.0) -> JobRecord:
        """The record when the job ended, or as it is after `wait_s`. Raises BadRequest for an unknown id."""
        if job := self.jobs.get(job_id):
            await _follow(job, wait_s)
            return _as_told(job.record)
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s
        while (record := await self._known(job_id)).state == "running" and clock() < deadline:
            await asyncio.sleep(min(1.0, max(0.0, deadline - clock())))
        return _as_told(record)

    async def cancel(self, job_id: str) -> JobRecord:
        """End a job and everything it started; its best so far stays in the record. An ended job is returned as it is."""
        if job := self.jobs.get(job_id):
            await self._end(job)
            return job.record
        record = await self._known(job_id)
        if record.state == "elsewhere":
            slurm = f", or scancel {record.slurm_job_id}" if record.slurm_job_id else ""
            raise NotHere("job_elsewhere", f"{job_id} runs on host {record.host}",
                          next=f"cancel it there, or end process {record.pid} on {record.host}{slurm}")  # fmt: skip
        if record.state != "running":
            return record
        await _end_foreign(record)
        return await self.wait(job_id, HEARTBEAT_S)

    async def list(self) -> tuple[list[JobRecord], list[str]]:
        """All records, newest first, and what could not be read."""
        records, broken = await asyncio.to_thread(self.store.all)
        return [_as_told(self.jobs[record.job_id].record if record.job_id in self.jobs else record) for record in records], broken

    async def shutdown(self) -> None:
        """End every job of this process."""
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*(self._end(job) for job in list(self.jobs.values())))

    async def _known(self, job_id: str) -> JobRecord:
        if (record := await asyncio.to_thread(self.store.load, job_id)) is not None:
            return record
        known, _ = await self.list()
        raise BadRequest("unknown_job", f"there is no job {job_id!r}", valid=[record.job_id for record in known[:LISTED]],
                         next="call wait_job() without an id to list the jobs")  # fmt: skip


def _as_told(record: JobRecord) -> JobRecord:
    """With the next step of a job that still runs."""
    return record.model_copy(update={"next": f'wait_job(job_id="{record.job_id}")'}) if record.state == "running" else record


async def _follow(job: Job, wait_s: float) -> None:
    """Wait for the job, passing its progress on; MCP wants every report higher than the last."""
    clock = asyncio.get_running_loop().time
    deadline, said_at, said, shown = clock() + wait_s, clock(), None, -1.0
    while not job.task.done() and clock() < deadline:
        await asyncio.wait({job.task}, timeout=max(0.0, min(REPORT_EVERY_S, deadline - clock())))
        current = job.record.progress
        if (current and current != said) or (not job.task.done() and clock() - said_at >= HEARTBEAT_S):
            said, said_at = current, clock()
            line = current or {"done": 0.0, "total": None, "message": "starting"}
            shown = max(float(line["done"]), shown + 1e-6)
            await progress.report(shown, line["total"], line["message"])


async def _end_foreign(record: JobRecord) -> None:
    """End the worker of another process on this host; the mark in its run folder tells that process why."""
    try:
        (Path(record.run_folder) / CANCEL).touch()
    except OSError as problem:
        raise NotHere("cannot_cancel", f"{record.run_folder}: {problem.strerror}", next=f"end process {record.pid}") from problem
    pid = record.worker_pid
    if pid and processes.start_time(pid) == record.worker_start_time:
        await processes.end_tree(pid, record.job_id)


default = Manager()


async def start(tool: str, arguments: Result, work: Work, wait_s: float, *, shape: Callable[[Result], Result] = dict, note: str = "") -> JobRecord:
    """`Manager.start` of this process."""
    return await default.start(tool, arguments, work, wait_s, shape=shape, note=note)


async def wait(job_id: str, wait_s: float = 30.0) -> JobRecord:
    """`Manager.wait` of this process."""
    return await default.wait(job_id, wait_s)


async def cancel(job_id: str) -> JobRecord:
    """`Manager.cancel` of this process."""
    return await default.cancel(job_id)


async def listed() -> tuple[list[JobRecord], list[str]]:
    """`Manager.list` of this process."""
    return await default.list()


async def shutdown() -> None:
    """End every job of this process."""
    await default.shutdown()


@asynccontextmanager
async def keeping() -> AsyncIterator[None]:
    """Inside, jobs outlive the calls that started them; at its end they are ended. A server's lifespan."""
    default.keeps = True
    try:
        yield
    finally:
        default.keeps = False
        await default.shutdown()
