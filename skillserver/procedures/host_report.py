"""What this host offers, checked one by one, each with the next step when it is missing: `skillserver doctor`.

Joins interpreters, the driver, SLURM, fio and the index. Looks only; starts nothing that runs longer than its deadline.

>>> [check["name"] for check in document()["checks"]]
['torch environments', 'NVML', 'SLURM', 'login node', 'fio', 'py-spy', 'index', 'home']
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import skillserver
from skillserver import paths, processes
from skillserver.errors import SkillError
from skillserver.hardware import host
from skillserver.knowledge import library
from skillserver.procedures import guarded_run
from skillserver.units import show_bytes
from skillserver.workers import interpreters

DRIVER_DEADLINE_S = 30.0
PROBE_DEADLINE_S = 10.0
ROOM = 20 * 2**20  # bytes; a run folder takes under 1 MiB, the index 3 MiB
Check = dict[str, Any]


def document() -> dict[str, Any]:
    """Version, Python, and the checks: name, ok, found, next (only where something is missing)."""
    return {
        "skillserver": skillserver.__version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "host": {"name": platform.node(), "system": f"{platform.system()} {platform.machine()}", "cpus_usable": processes.allowed_cpus()},
        "checks": list(checks()),
    }


def checks() -> Iterator[Check]:
    """Every check, in the order in which a set-up goes."""
    yield _torch()
    yield _driver()
    yield _slurm()
    yield _login_node()
    yield _program("fio", ["fio", "--version"], "install fio for storage measurements (apt-get install fio)")
    yield _program("py-spy", ["py-spy", "--version"], "pip install 'skillserver[diagnose]' to read the stacks of hung ranks")
    yield _index()
    yield _home()


def _check(name: str, ok: bool, found: str, next: str) -> Check:
    return {"name": name, "ok": ok, "found": found, "next": "" if ok else next}


def _torch() -> Check:
    seen = []
    for path, source in interpreters.candidates(None):
        found = interpreters.probe(path, source)
        if isinstance(found, interpreters.Interpreter) and found.torch:
            built = f"CUDA {found.cuda}" if found.cuda else f"ROCm {found.hip}" if found.hip else "CPU"
            seen.append(f"torch {found.torch} for {built} in {path} ({source})")
    return _check("torch environments", bool(seen), "; ".join(seen) or "none", "benchmarks run in your training environment: "
                  "activate it, pass python=PATH, or serve --python NAME=PATH")  # fmt: skip


def _driver() -> Check:
    answer = host.ask_driver(DRIVER_DEADLINE_S)
    if answer.cut:
        return _check("NVML", False, f"the driver did not answer within {DRIVER_DEADLINE_S:g} s", "read the kernel log: dmesg | grep -E 'Xid|NVRM'")
    if answer.count is None:
        return _check(
            "NVML", False, f"NVML says {answer.error or 'nothing'}", "no GPU is visible here; paste captures of the GPU node to check_gpu_health"
        )
    return _check("NVML", answer.count > 0, f"{answer.count} GPUs, driver {answer.driver}", "run skillserver call check_gpu_health")


def _slurm() -> Check:
    found = processes.run_with_deadline(["sinfo", "--version"], PROBE_DEADLINE_S)
    return _check(
        "SLURM", found.rc == 0, found.stdout.strip() or "no sinfo", "runs stay on this host; on a cluster use a node that has SLURM's commands"
    )


def _login_node() -> Check:
    why = guarded_run.login_node()
    return _check("login node", not why, why or "no", "benchmarks and node checks are refused here; start them inside an allocation")


def _program(name: str, argv: list[str], next: str) -> Check:
    beside = Path(sys.executable).with_name(argv[0])  # an environment that is not activated has it there
    program = shutil.which(argv[0]) or (str(beside) if beside.exists() else None)
    if not program:
        return _check(name, False, "not found", next)
    found = processes.run_with_deadline([program, *argv[1:]], PROBE_DEADLINE_S)
    return _check(name, found.rc == 0, (found.stdout or found.stderr).strip().split("\n")[0], next)


def _index() -> Check:
    try:
        shelf = library.current()
    except SkillError as problem:
        return _check("index", False, problem.message, problem.next)
    found = f"{len(shelf.pages)} pages, {len(shelf.sections)} sections" + "".join(f"; {note}" for note in shelf.notes)
    return _check("index", not shelf.notes, found, "set SKILLSERVER_CACHE to a writable folder, or run skillserver index --into DIR in the image")


def _home() -> Check:
    place = paths.home()
    nearest = next((folder for folder in (place, *place.parents) if os.path.exists(folder)), place)  # noqa: PTH110 - Path.exists may raise
    why = _not_writable(nearest)
    return _check("home", not why, f"{place}{f': {why}' if why else ''}",
                  "records of jobs are kept in memory only; set SKILLSERVER_HOME to a writable folder with room")  # fmt: skip


def _not_writable(folder: Path) -> str:
    """Why nothing can be kept in a folder, "" when it can: tried with a file that has no name, since root may write to /proc by its mode."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
        free = shutil.disk_usage(folder).free
    except OSError as problem:
        return problem.strerror or str(problem)
    return "" if free >= ROOM else f"{show_bytes(free)} are free"
