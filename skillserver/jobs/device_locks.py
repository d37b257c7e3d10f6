"""One heavy job a device: a lock file in this host's own runtime folder, by GPU UUID or `cpu`.

flock, so a lock ends with its process however that ends. The file names its holder for whoever is refused. Never on a
shared disk. Knows names of devices; not what a device is, and not other users' jobs (a busy GPU shows those).

>>> with releasing(Locks(["cpu"], job="run_mamf")): ...
>>> holder("cpu")                       # {"pid": 4711, "job": "run_mamf", "since": ...} while another holds it
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from skillserver import paths
from skillserver.errors import NotHere
from skillserver.jobs.store import now


class Locks:
    """Locks of some devices, all or none. `note` says when the runtime folder cannot hold them."""

    def __init__(self, devices: list[str], job: str) -> None:
        """Raises NotHere with the holder when one of the devices is taken."""
        self._held = ExitStack()
        self.note = ""
        with ExitStack() as undo:
            undo.callback(self.release)
            for device in sorted(set(devices)):
                self._take(device, job)
            undo.pop_all()

    def _take(self, device: str, job: str) -> None:
        try:
            file = self._held.enter_context(_file(device).open("a+", encoding="utf-8"))  # not inherited by children
        except OSError as problem:
            self.note = f"no lock was taken for {device}: {paths.runtime()}: {problem.strerror}"
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise refusal(device, holder(device)) from taken
        file.seek(0)
        file.truncate()
        file.write(json.dumps({"pid": os.getpid(), "job": job, "since": now()}))
        file.flush()

    def release(self) -> None:
        """Give the devices back; calling it twice is fine."""
        self._held.close()


@contextmanager
def releasing(locks: Locks) -> Iterator[None]:
    """Give them back at the end, however it comes."""
    try:
        yield
    finally:
        locks.release()


def holder(device: str) -> dict[str, Any] | None:
    """Who holds a device, None when nobody does; {} when the holder has not written its name."""
    try:
        with _file(device).open("r+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                return dict(json.loads(file.read() or "{}"))
    except (OSError, ValueError):
        return None


def refusal(device: str, who: dict[str, Any] | None) -> NotHere:
    """The error for a device that somebody holds."""
    who = who or {}
    return NotHere("device_taken", f"{device} is used by job {who.get('job', '?')} of process {who.get('pid', '?')} since {who.get('since', '?')}; "
                   "two runs on one device would measure each other", next="wait for that job (wait_job) or cancel it")  # fmt: skip


def _file(device: str) -> Path:
    """The lock file. Raises OSError when the runtime folder is not this user's own."""
    folder = paths.runtime()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(1, "belongs to another user")
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', device)}.lock"
