"""Stacks of living processes by py-spy, twice, a moment apart, so that a changing stack shows a rank that is only slow.

py-spy runs as a child with a deadline; it stops the process for milliseconds and changes nothing in it. The rank comes
from the process's own environment (RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK), of which nothing else is kept.
A launcher's pid is followed to its children. Needs permission to run programs. Knows processes; not what stacks mean.

>>> texts([4711]).pairs[0][0]
'rank_3'
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillserver import permissions, processes
from skillserver.diagnose import stack_kinds, stack_text
from skillserver.errors import NotHere

DEADLINE_S = 15.0
APART_S = 2.0
MOST = 64  # processes; more belong to a job step on every node
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
PTRACE = ("this user may not trace it: run as the job's own user inside its container with SYS_PTRACE, or set kernel.yama.ptrace_scope=0; "
          "without rights use faulthandler.register(signal.SIGUSR1, all_threads=True)")  # fmt: skip


@dataclass
class Taken:
    """(name, text, time) of each look, and which process gave none, with the reason."""

    pairs: list[tuple[str, str, float]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def texts(pids: Sequence[int]) -> Taken:
    """Two looks at each process. Raises NotHere without permission or without py-spy."""
    permissions.require_run("py-spy")
    spy = program()
    taken = Taken()
    living = _living(spy, list(pids)[:MOST], taken)
    if len(pids) > MOST:
        taken.skipped.append(f"{len(pids) - MOST} more processes than {MOST}: dump them on their own nodes and pass the files")
    if living:
        time.sleep(APART_S)
        for pid in living:
            _look(spy, pid, taken)
    return taken


def program() -> str:
    """The path of py-spy. Raises NotHere."""
    beside = Path(sys.executable).with_name("py-spy")
    if found := shutil.which("py-spy") or (str(beside) if beside.exists() else None):
        return found
    raise NotHere("no_py_spy", "py-spy is not installed on this host", next="pip install py-spy, or pass the text of faulthandler stacks")


def rank_of(pid: int) -> int | None:
    """The rank in the environment of a process; None when there is none or it may not be read."""
    try:
        rows = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = dict(row.decode(errors="replace").partition("=")[::2] for row in rows if row.split(b"=")[0].decode(errors="replace") in RANKS)
    return next((int(values[name]) for name in RANKS if values.get(name, "").isdigit()), None)


def _living(spy: str, pids: list[int], taken: Taken) -> list[int]:
    """The processes that gave a stack; a launcher is replaced by what it started."""
    seen: list[int] = []
    queue = list(pids)
    while queue and len(seen) < MOST:
        pid = queue.pop(0)
        text = _look(spy, pid, taken, quiet=pid not in pids)
        if not text:
            continue
        main = next((process.main() for process in stack_text.of_text(text, str(pid))), None)
        if main and stack_kinds.kind(main.frames) == "launcher":
            queue += [child.pid for child in processes.family(pid)[1:] if child.pid not in pids]
        seen.append(pid)
    return seen


def _look(spy: str, pid: int, taken: Taken, quiet: bool = False) -> str:
    """One look, kept; "" with the reason in `skipped` when it failed."""
    done = processes.run_with_deadline([spy, "dump", "--pid", str(pid), "--json"], DEADLINE_S)
    if done.rc == 0 and done.stdout.strip():
        rank = rank_of(pid)
        taken.pairs.append((f"pid {pid}" if rank is None else f"rank_{rank}", done.stdout, time.time()))
        return done.stdout
    if not quiet:
        taken.skipped.append(f"pid {pid}: {_why(done)}")
    return ""


def _why(done: processes.Finished) -> str:
    said = done.stderr.lower()
    if done.rc is None:
        return f"py-spy gave no answer in {DEADLINE_S:.0f} s: the process may be in uninterruptible sleep (storage or driver, state D)"
    if "permission" in said or "operation not permitted" in said:
        return PTRACE
    if "no such" in said or "failed to open process" in said:
        return "no such process"
    return next((line.strip()[:120] for line in reversed(done.stderr.splitlines()) if line.strip()), f"py-spy ended with {done.rc}")
