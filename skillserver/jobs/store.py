"""Records of jobs: one JSON file each under `home()/jobs`, written aside and renamed.

Homes are on NFS, so there is no database and no lock. A record belongs to the process that started the job and only
that process writes it while the job runs. A reader judges a `running` record: another host or boot makes it
`elsewhere`, an owner that is gone makes it `lost`. Knows files and hosts; not what a job does.

>>> store = Store()
>>> store.save(JobRecord.new("run_mamf", {"dtype": "bf16"})), store.load("run_mamf-1f3a9c20").state
('', 'running')
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import BaseModel, Field

from skillserver import paths, processes

State = Literal["running", "done", "failed", "cancelled", "lost", "elsewhere"]
KEPT = 200  # records; the oldest that ended go first, with their run folders
FOREIGN_KEPT = timedelta(days=7)  # another host's job may still run; after a week its record may go as well
JOB_ID = re.compile(r"[A-Za-z0-9_]+-[0-9a-f]{8}")


class JobRecord(BaseModel):
    """One job. `pid` and `pid_start_time` are of the process that owns it, `worker_pid` of the child that works."""

    job_id: str
    tool: str
    arguments: dict[str, Any] = {}
    state: State = "running"
    created: str = Field(default="", description="UTC, ISO 8601")
    ended: str | None = None
    host: str = ""
    boot_id: str = ""
    pid: int = 0
    pid_start_time: float | None = None
    worker_pid: int | None = None
    worker_start_time: float | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = Field(default=None, description="code, message, next, valid")
    error_kind: str = Field(default="", description="class name of the error: BadRequest, NotHere, TooLong, WorkerFailed")
    next: str = ""
    note: str = ""
    progress: dict[str, Any] | None = Field(default=None, description="done, total, message")
    run_folder: str = ""
    slurm_job_id: str = Field(default="", description="of a run on nodes; scancel ends it from any host of the cluster")

    @classmethod
    def new(cls, tool: str, arguments: dict[str, Any]) -> JobRecord:
        """A running job of this process."""
        pid = os.getpid()
        return cls(job_id=f"{re.sub(r'[^A-Za-z0-9_]', '_', tool)}-{secrets.token_hex(4)}", tool=tool, arguments=arguments, created=now(),
                   host=socket.gethostname(), boot_id=boot_id(), pid=pid, pid_start_time=processes.start_time(pid))  # fmt: skip

    @property
    def is_local(self) -> bool:
        """Started on this host, in this boot."""
        return (self.host, self.boot_id) == (socket.gethostname(), boot_id())


def now(shift: timedelta = timedelta()) -> str:
    """UTC to the millisecond, so that the text sorts by time; `shift` moves it."""
    return (datetime.now(UTC) + shift).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def boot_id() -> str:
    """Names this boot of this host and, on Linux, the pid namespace: a container's process ids mean nothing outside it."""
    if sys.platform != "linux":
        return f"{psutil.boot_time():.0f}"
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{psutil.boot_time():.0f}"


class Store:
    """The records under one home. Records that cannot be written are kept in memory and say so in their `note`."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._memory: dict[str, JobRecord] = {}

    @property
    def home(self) -> Path:
        """The folder given, else this user's state folder, looked up anew each time."""
        return self._home or paths.home()

    @property
    def folder(self) -> Path:
        """Where the record files lie."""
        return self.home / "jobs"

    def run_folder(self, job_id: str) -> tuple[Path, str]:
        """A new folder for one run's files, and a note when it had to be a temporary one."""
        folder = self.home / "runs" / job_id
        try:
            folder.mkdir(parents=True)
            return folder, ""
        except OSError as problem:
            return Path(
                tempfile.mkdtemp(prefix="skillserver-")
            ), f"{folder} cannot be made ({problem.strerror}); run files are in the temporary folder"

    def save(self, record: JobRecord) -> str:
        """Write the record; "" or the reason why it is kept in memory only."""
        aside = self.folder / f".{record.job_id}.{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(record.model_dump(mode="python"), indent=1, default=str), encoding="ascii")  # a folder's name may be no UTF-8
            aside.replace(self.folder / f"{record.job_id}.json")
        except OSError as problem:
            self._memory[record.job_id] = record
            _forget(aside)
            return f"the record is kept in memory only: {self.folder}: {problem.strerror}"
        self._memory.pop(record.job_id, None)
        return ""

    def load(self, job_id: str) -> JobRecord | None:
        """The record as it stands now, None when there is none or it is broken."""
        if job_id in self._memory:
            return self._memory[job_id]
        return self._judged(self._read(job_id)) if JOB_ID.fullmatch(job_id) else None

    def all(self) -> tuple[list[JobRecord], list[str]]:
        """Every record, newest first, and a line for each file that could not be read."""
        records, broken = dict(self._memory), []
        for job_id in self._names():
            if (record := self._judged(self._read(job_id))) is not None:
                records.setdefault(job_id, record)
            elif (self.folder / f"{job_id}.json").exists():
                broken.append(f"{self.folder / f'{job_id}.json'} is not a job record")
        return sorted(records.values(), key=lambda record: record.created, reverse=True), broken

    def prune(self, keep: int = KEPT) -> None:
        """Remove the oldest ended records beyond `keep`, with their run folders."""
        if len(self._names()) <= keep:
            return
        for record in self.all()[0][keep:]:
            if record.state not in ("running", "elsewhere") or (record.state == "elsewhere" and record.created < now(-FOREIGN_KEPT)):
                _forget(self.folder / f"{record.job_id}.json")
                shutil.rmtree(self.home / "runs" / record.job_id, ignore_errors=True)

    def _names(self) -> list[str]:
        try:
            return [file.stem for file in self.folder.iterdir() if file.suffix == ".json" and not file.name.startswith(".")]
        except OSError:
            return []

    def _read(self, job_id: str) -> JobRecord | None:
        try:
            return JobRecord.model_validate(json.loads((self.folder / f"{job_id}.json").read_bytes()))
        except (OSError, ValueError, RecursionError):
            return None

    def _judged(self, record: JobRecord | None) -> JobRecord | None:
        """A record that says `running`, as seen from here."""
        if record is None or record.state != "running":
            return record
        if not record.is_local:
            return record.model_copy(
                update={"state": "elsewhere", "next": f"ask on host {record.host}; if it was rebooted since, the job is gone{_in_slurm(record)}"}
            )
        if _owner_lives(record):
            return record
        last = self._read(record.job_id) or record  # its owner may have finished it between our read and our look
        if last.state != "running":
            return last
        lost = last.model_copy(
            update={"state": "lost", "next": f"call {record.tool} again: the process that ran it ended without a word{_in_slurm(record)}"}
        )
        self.save(lost)
        return lost


def _in_slurm(record: JobRecord) -> str:
    return f"; SLURM job {record.slurm_job_id} may still run: scancel {record.slurm_job_id}" if record.slurm_job_id else ""


def _owner_lives(record: JobRecord) -> bool:
    return record.pid_start_time is not None and processes.start_time(record.pid) == record.pid_start_time


def _forget(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return
