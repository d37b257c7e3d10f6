"""The file system that a folder lies on: type, mount point, options, and what may not be written.

Linux: /proc/self/mounts; the last line of the longest mount point wins, as it does in the kernel. Elsewhere empty.

>>> of("/shared/data")["type"]
'nfs4'
"""

import os
import re

PSEUDO = {"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "bpf", "pstore", "mqueue", "hugetlbfs",
          "configfs", "fusectl", "autofs", "rpc_pipefs", "nsfs", "binfmt_misc", "efivarfs", "selinuxfs", "nfsd", "fuse.lxcfs"}  # fmt: skip
IN_MEMORY = {"tmpfs", "ramfs"}
EMPTY = {"type": "", "mount": "", "source": "", "options": []}


def of(folder, table="/proc/self/mounts"):
    """{type, mount, source, options} of the mount that holds a folder; empty values when that cannot be read."""
    real, found = os.path.realpath(folder), EMPTY
    for source, place, kind, options in _lines(table):
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(found["mount"]):
            found = {"type": kind, "mount": place, "source": source, "options": options.split(",")}
    return found


def _lines(table):
    try:
        with open(table, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            rows = [line.split() for line in file]
    except OSError:
        return []
    return [[_plain(cell) for cell in row[:4]] for row in rows if len(row) >= 4]


def _plain(cell):
    """A mount point as its path: blanks and backslashes are written as \\040 there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), cell)
