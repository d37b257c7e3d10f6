"""Where a storage benchmark writes, so that nothing of it stays, however it ends.

Large data goes into files without a name: a kill takes them along. Small files need names: they lie in one folder
`.skillserver-storage-*` whose owner holds a lock on it. A shell outside the job waits for this process to end, whatever
ends it, and then removes the folder; what even that misses (a whole node lost, a control group killed at once) the next
run in the same place removes, when nobody holds the lock any more. A folder of another host is left alone for a day.

>>> place = Place("/scratch/me"); place.folder
'/scratch/me/.skillserver-storage-7c1x0a'
"""

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import mounts
import protocol

PREFIX, OWNER = ".skillserver-storage-", "owner.json"
MIB = 2**20
ROOM = 2  # times what is written must be free
FILES = 5000  # names that a run may need
DAY_S = 86400
WHEN_WE_END = 'exec 3<&0; { read _ <&3; rm -rf -- "$1"; } </dev/null >/dev/null 2>&1 &'
FULL = {errno.ENOSPC: "no space is left", errno.EDQUOT: "the quota is used up"}


class Place:
    """One marked folder, removed at `close` and whenever this process ends."""

    def __init__(self, folder):
        self.removed, self.left = sweep(folder)
        try:
            self.folder = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
        except OSError as problem:
            refuse_for(folder, problem)
        self.alive = watched(self.folder)
        self.lock = open(os.path.join(self.folder, OWNER), "w", encoding="utf-8")  # noqa: PTH118, PTH123, SIM115 - held to the end
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.lock.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "boot": boot()}))
        self.lock.flush()

    def close(self):
        """Remove everything; returns the names that could not be removed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # NFS keeps a renamed file while it is open
        os.close(self.alive)
        return [str(path) for path in Path(self.folder).rglob("*")]


def watched(folder):
    """A descriptor whose closing, by whatever ends this process, removes the folder. The shell carries no mark and is nobody's child."""
    read, write = os.pipe()
    subprocess.run(["/bin/sh", "-c", WHEN_WE_END, "sh", folder], stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env={"PATH": os.environ.get("PATH", os.defpath)}, start_new_session=True, check=True)  # fmt: skip
    os.close(read)
    return write


def boot():
    """This start of the kernel; containers of one host share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def sweep(folder):
    """([folders of dead runs that were removed], [why others were left])."""
    removed, left = [], []
    for place in sorted(Path(folder).glob(PREFIX + "*")):
        why = _in_use(place)
        if why:
            left.append("{0}: {1}".format(place.name, why))
        else:
            shutil.rmtree(str(place), ignore_errors=True)
            removed.append(place.name)
    return removed, left


def _in_use(place):
    """Why a marked folder is not ours to remove, "" when its run is dead."""
    try:
        if place.is_symlink() or place.stat().st_uid != os.getuid():
            return "not a folder of this user"
        age = time.time() - place.stat().st_mtime
        with open(str(place / OWNER), "r+", encoding="utf-8") as file:  # noqa: PTH123
            owner = json.loads(file.read() or "{}")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "a run uses it now"
    except (OSError, ValueError):  # killed before it wrote its name, or just starting
        return "" if age > 60 else "less than a minute old and without an owner"
    if owner.get("boot") != boot() and owner.get("host") != socket.gethostname() and age < DAY_S:
        return "of a run on {0}, less than a day old".format(owner.get("host"))
    return ""


def refuse(folder, wanted):
    """End here unless `wanted` bytes can be written into the folder. Returns its mount."""
    if not os.path.isdir(folder):  # noqa: PTH112
        protocol.failure("no_such_folder", "{0!r} is not a folder on this host".format(folder), kind="bad_request")
    mount = mounts.of(folder)
    if mount["type"] in mounts.PSEUDO:
        words = "{0} lies on {1}, a file system of the kernel that stores nothing".format(folder, mount["type"])
        protocol.failure("no_storage", words, next="name a folder on a disk or on network storage", kind="bad_request")
    room = os.statvfs(folder)
    if room.f_flag & os.ST_RDONLY:
        words = "{0} is mounted read-only ({1} at {2})".format(folder, mount["type"], mount["mount"])
        protocol.failure("read_only", words, next="name a folder that can be written", kind="not_here")
    if not os.access(folder, os.W_OK | os.X_OK):
        refuse_for(folder, PermissionError(errno.EACCES, "this user may not write here"))
    free = room.f_bavail * room.f_frsize
    if free < ROOM * wanted:
        words = "{0} has {1:,} MiB free; this run writes {2:,} MiB and wants {3} times that free".format(folder, free // MIB, wanted // MIB, ROOM)
        protocol.failure("no_room", words, next="pass a smaller size, or a folder with more room", kind="not_here")
    if room.f_files and room.f_favail < 2 * FILES:  # file systems without a fixed number say 0
        words = "{0} has {1:,} inodes free; this run makes up to {2:,} files".format(folder, room.f_favail, FILES)
        protocol.failure("no_inodes", words, next="name a folder on another file system (df -i)", kind="not_here")
    return mount


def refuse_for(folder, problem):
    """End here with what the file system said."""
    if problem.errno in FULL:
        words = "{0}: {1} ({2})".format(folder, FULL[problem.errno], problem.strerror)
        protocol.failure("no_room", words, next="pass a smaller size, or a folder with more room; see df and quota -s", kind="not_here")
    words = "{0}: {1}".format(folder, problem.strerror or problem)
    protocol.failure("not_writable", words, next="name a folder that you may write to", kind="not_here")
