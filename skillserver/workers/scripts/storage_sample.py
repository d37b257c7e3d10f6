"""How fast one folder takes and gives a bounded file, and whether it gives back what it took.

    python storage_sample.py --settings '{"folder": "/scratch/me", "bytes": 268435456, "budget_s": 10}'

Settings: folder, bytes (at most this much is written; 256 MiB), budget_s (seconds in all; 10). Refused when the folder
has less than four times that much room. The file has no name from its first byte on (O_TMPFILE, else unlinked at once),
so it is gone however this process ends. Writing ends with fsync. Reading goes past the page cache (O_DIRECT) where the
file system lets it, and says so where not. One client, one stream: not what a file system gives to many. Standard
library only.
"""

import mmap
import os
import sys
import tempfile
import time

import mounts
import protocol

BYTES, BUDGET_S = 256 * 2**20, 10.0
BLOCK = 8 * 2**20
ROOM = 4  # times the sample must be free
PATTERN = os.urandom(BLOCK)


def main(argv=None):
    """Write, flush, read, compare; one result."""
    settings = protocol.start(argv)
    folder, wanted = settings.get("folder") or "", int(settings.get("bytes") or BYTES) // BLOCK * BLOCK
    refuse(folder, wanted)
    seconds = max(2.0, float(settings.get("budget_s") or BUDGET_S)) / 2
    protocol.progress(0, 2, "writing up to {0} MiB".format(wanted // 2**20))
    file = nameless(folder)
    try:
        protocol.result(sample(file, folder, max(BLOCK, wanted), seconds))
    finally:
        os.close(file)


def refuse(folder, wanted):
    """End here when the folder cannot take the sample."""
    if not os.path.isdir(folder):  # noqa: PTH112
        protocol.failure("no_such_folder", "folder {0!r} is not a folder on this host".format(folder), kind="bad_request")
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < ROOM * wanted:
        words = "{0} has {1} MiB free and a sample of {2} MiB wants {3} times that".format(folder, free // 2**20, wanted // 2**20, ROOM)
        protocol.failure("no_room", words, next="name a folder with more room", kind="not_here")


def nameless(folder):
    """A file descriptor of a new file that no folder lists."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except (AttributeError, OSError):  # NFS, Lustre and others have no O_TMPFILE
        pass
    try:
        file, name = tempfile.mkstemp(prefix=".skillserver-sample-", dir=folder)
    except OSError as problem:
        protocol.failure("not_writable", "{0}: {1}".format(folder, problem.strerror), next="name a folder that you may write to", kind="not_here")
    os.unlink(name)  # noqa: PTH108
    return file


def sample(file, folder, wanted, seconds):
    """The payload: rates in GB/s = 10^9 bytes a second."""
    written, write_s = write(file, wanted, seconds)
    direct, past_cache = reader(file)
    read, read_s, wrong = give_back(direct, written, seconds)
    if direct != file:
        os.close(direct)
    return {
        "folder": folder,
        "file_system": mounts.of(folder)["type"],
        "bytes": written,
        "block_bytes": BLOCK,
        "write_gb_s": written / write_s / 1e9,
        "read_gb_s": read / read_s / 1e9 if read else None,
        "read_bytes": read,
        "past_page_cache": past_cache,
        "wrong_blocks": wrong,
        "partial": bool(protocol.stopping()),
    }


def write(file, wanted, seconds):
    """(bytes, seconds with fsync). The pattern moves by its block number, so that no block equals another."""
    written, began = 0, time.perf_counter()
    while written < wanted and not protocol.stopping() and (not written or time.perf_counter() - began < seconds):
        view = memoryview(block(written // BLOCK))
        while view:
            view = view[os.write(file, view) :]
        written += BLOCK
    os.fsync(file)
    return written, time.perf_counter() - began


def block(number):
    """The bytes of one block: the pattern turned by its number."""
    turn = number * 4096 % BLOCK
    return PATTERN[turn:] + PATTERN[:turn]


def reader(file):
    """(descriptor, whether it reads past the page cache)."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        direct = os.open("/proc/self/fd/{0}".format(file), os.O_RDONLY | os.O_DIRECT)
        os.preadv(direct, [mmap.mmap(-1, 4096)], 0)
        return direct, True
    except (AttributeError, OSError):  # tmpfs, FUSE and others
        return file, False


def give_back(file, written, seconds):
    """(bytes read, seconds of reading alone, blocks that differ from what was written)."""
    target, read, spent, wrong = mmap.mmap(-1, BLOCK), 0, 0.0, 0
    while read < written and not protocol.stopping() and spent < seconds:
        began = time.perf_counter()
        got = filled(file, target, read)
        spent += time.perf_counter() - began
        if not got or target[:] != block(read // BLOCK):
            wrong += 1
        read += BLOCK
    return read, max(spent, 1e-9), wrong


def filled(file, target, offset):
    """Read one block; False when the file ended before it."""
    got = 0
    while got < BLOCK:
        now = os.preadv(file, [memoryview(target)[got:]], offset + got)
        if not now:
            return False
        got += now
    return True


if __name__ == "__main__":
    sys.exit(main())
