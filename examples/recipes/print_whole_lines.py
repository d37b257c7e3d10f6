"""Print from many processes of a node without mixing their lines.

A line is torn when two processes write to one terminal or file at once; buffered text of many lines nearly always is. Holding a
lock on a file while writing and flushing keeps every message whole. The lock is released by the kernel if its holder dies.
"""

import fcntl
import os
import sys
import tempfile
from pathlib import Path

LOCK = Path(tempfile.gettempdir(), f"print-{os.environ.get('TORCHELASTIC_RUN_ID', 'none')}-{os.getuid()}.lock")


def say(*words: object, only: int | None = None) -> None:
    """Like print, whole, with the rank in front of each line. `only`: the one rank that prints."""
    rank = int(os.environ.get("RANK", "0"))
    if only is not None and rank != only:
        return
    text = "".join(f"[rank{rank}] {line}\n" for line in " ".join(map(str, words)).splitlines() or [""])
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sys.stdout.write(text)
        sys.stdout.flush()
