"""Whether the clock of this host is kept by something: the kernel's word, and chrony's or systemd's beside it.

The kernel is asked by `adjtimex` with nothing to change, which any user may do. In a container the answer is the host's.
A daemon says how far the clock is off; without one nobody here knows. Does not judge.

>>> read().synchronised
True
"""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass

from skillserver import processes

DEADLINE_S = 5.0
UNSYNCHRONISED = 0x40  # STA_UNSYNC of linux/timex.h
NANOSECONDS = 0x2000  # STA_NANO
OFFSET = re.compile(r"^System time\s*:\s*([\d.]+) seconds (slow|fast)", re.M)
LEAP = re.compile(r"^Leap status\s*:\s*(.+?)\s*$", re.M)


class Timex(ctypes.Structure):
    """The head of struct timex on 64-bit Linux, and room for the rest."""

    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("frequency", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_char * 256)]  # fmt: skip


@dataclass
class Clock:
    """What was said; None where nobody said it."""

    synchronised: bool | None = None
    largest_error_ms: float | None = None
    offset_ms: float | None = None
    source: str = ""


def read(deadline_s: float = DEADLINE_S) -> Clock:
    """The clock now; two children at most, each within `deadline_s` seconds."""
    found = _kernel()
    done = processes.run_with_deadline(["chronyc", "-n", "tracking"], deadline_s)
    if done.rc == 0:
        return _with_chrony(found, done.stdout)
    if found.synchronised is None:
        done = processes.run_with_deadline(["timedatectl", "show", "-p", "NTPSynchronized", "--value"], deadline_s)
        if done.rc == 0 and done.stdout.strip() in ("yes", "no"):
            return Clock(done.stdout.strip() == "yes", source="timedatectl")
    return found


def _with_chrony(found: Clock, text: str) -> Clock:
    """chronyc tracking: "System time : 0.000012 seconds slow of NTP time"; a daemon without a server says so itself."""
    offset, leap = OFFSET.search(text), LEAP.search(text)
    if leap and leap[1] == "Not synchronised":
        return Clock(False, found.largest_error_ms, source="chronyc")
    return Clock(True, found.largest_error_ms, float(offset[1]) * 1e3 if offset else None, "chronyc")


def _kernel() -> Clock:
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_long) != 8:
        return Clock()
    asked = Timex(modes=0)
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(asked))
    except (OSError, AttributeError):
        return Clock()
    if state < 0:
        return Clock()
    return Clock(not asked.status & UNSYNCHRONISED, asked.maxerror / 1e3, source="kernel")
