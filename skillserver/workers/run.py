"""Run one worker script in the user's interpreter and read its lines.

The scripts are copied into the run folder, so that every node of a cluster sees the version that runs. stdout is JSON
lines (`workers/scripts/protocol.py` says which); anything else on it is counted and dropped. Knows processes and
lines; not what a script measures, not jobs or devices.

>>> outcome = await run_worker(WorkerSpec("run_mamf-1f3a", folder, "torch_matmul.py", {"budget_s": 5}, python), on_event)
>>> outcome["payload"]["best"], outcome["hello"]["torch"]
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillserver import processes
from skillserver.errors import BadRequest, NotHere, SkillError, TooLong, WorkerFailed
from skillserver.workers import profiles

SCRIPTS = Path(__file__).parent / "scripts"
LAUNCHER = "launch.py"
LAST_WORDS = 6  # stderr lines that fit into one sentence
KINDS: dict[str, type[SkillError]] = {"bad_request": BadRequest, "not_here": NotHere}
# What a training process needs from its surroundings. Everything else, tokens and keys above all, stays here.
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV",
          "CONDA_PREFIX", "XDG_CACHE_HOME", "HF_HOME", "CC", "CXX")  # fmt: skip
PASSED_PREFIXES = ("LC_", "NCCL_", "RCCL_", "GLOO_", "CUDA_", "CUBLAS", "NVIDIA_", "HIP_", "HIPBLASLT_", "HSA_", "ROCBLAS_", "ROCM_", "ROCR_",
                   "MIOPEN_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "FI_", "UCX_", "OMP_", "MKL_", "KMP_", "GOMP_",
                   "SLURM_")  # fmt: skip
OnEvent = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class WorkerSpec:
    """One run. `nproc=0` runs the script itself, `nproc>=1` that many ranks; `prefix` is a site's wrapper (apptainer exec ...)."""

    job_id: str
    folder: Path
    script: str
    settings: Mapping[str, Any]
    python: str
    nproc: int = 0
    limit_s: float = 600.0
    grace_s: float = 5.0
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def argv(self) -> list[str]:
        """The command that runs, its paths inside the run folder."""
        scripts = self.folder / "scripts"
        launcher = [str(scripts / LAUNCHER), "--nproc", str(self.nproc)] if self.nproc else []
        script = str(scripts / Path(self.script).name)
        entered = profiles.filled(self.prefix, self.folder)
        return [*entered, self.python, "-u", *launcher, script, "--settings-file", str(self.settings_file)]

    @property
    def settings_file(self) -> Path:
        """Where the settings are written: an argument list would show them to everybody on the host."""
        return self.folder / "settings.json"


@dataclass
class Wire:
    """What came over a worker's stdout so far."""

    on_event: OnEvent
    hello: dict[str, Any] = field(default_factory=dict)
    payload: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    partial: dict[str, Any] | None = None
    stopped: bool = False
    garbage_lines: int = 0

    async def line(self, raw: bytes) -> None:
        """Take one line; unknown ones are counted."""
        if not raw.strip():
            return
        event = _parsed(raw)
        kind = event.get("type")
        if kind == "hello":
            self.hello = {key: value for key, value in event.items() if key != "type"}
        elif kind == "progress":
            self.partial = event.get("partial") or self.partial
        elif kind == "result" and isinstance(event.get("payload"), dict):
            self.payload, self.stopped = event["payload"], bool(event.get("stopped"))
            self.hello["torch"] = event.get("torch") or self.hello.get("torch")
        elif kind == "failure":
            self.failure = self.failure or event
        else:
            self.garbage_lines += 1
            return
        await self.on_event(event)


async def run_worker(spec: WorkerSpec, on_event: OnEvent) -> dict[str, Any]:
    """The worker's result: `{"payload", "hello", "garbage_lines", "note"}`.

    `on_event` sees {"type": "started", "pid"}, every line of the worker, and, when the run is cut short, {"type": "partial",
    "partial"} with the best so far. Raises BadRequest, NotHere or WorkerFailed as the worker said, TooLong after
    `limit_s`; when cancelled, the whole tree is ended first.
    """
    prepare(spec)
    wire = Wire(on_event)
    try:
        child = await processes.start(
            spec.argv(), mark=spec.job_id, env=environment(spec), on_line=wire.line, cwd=spec.folder, direct=not spec.prefix
        )  # fmt: skip
    except OSError as problem:
        raise NotHere(
            "cannot_start", f"{spec.argv()[0]}: {problem.strerror or problem}", next="pass python= with an interpreter that runs here"
        ) from problem
    try:
        return await _followed(spec, child, wire)
    finally:
        processes.kill_marked(spec.job_id)  # whatever happened above, a second cancellation included


async def _followed(spec: WorkerSpec, child: processes.Child, wire: Wire) -> dict[str, Any]:
    await wire.on_event({"type": "started", "pid": child.pid})
    try:
        async with asyncio.timeout(spec.limit_s):
            status = await child.finished()
    except TimeoutError as late:
        await _cut_short(spec, child, wire)
        raise TooLong("too_long", f"{spec.script} gave no result in {spec.limit_s:g} s and was ended",
                      next="ask for less (sizes, shapes, budget_s)") from late  # fmt: skip
    except asyncio.CancelledError:
        await _cut_short(spec, child, wire)
        raise
    if wire.stopped:
        await _keep_best(wire)
        raise WorkerFailed("stopped", f"{spec.script} was told to stop from outside (SIGTERM) before it was done", next="call it again")
    if wire.payload is None:
        raise failed(spec, child, wire, status)
    return {"payload": wire.payload, "hello": wire.hello, "garbage_lines": wire.garbage_lines, "note": _afterthought(wire, status)}


async def _cut_short(spec: WorkerSpec, child: processes.Child, wire: Wire) -> None:
    """End the tree; what the worker still says within the grace is the best so far."""
    await child.end(spec.grace_s)
    await _keep_best(wire)


async def _keep_best(wire: Wire) -> None:
    best = wire.payload or wire.partial
    if best is not None:
        await wire.on_event({"type": "partial", "partial": best})


def failed(spec: WorkerSpec, child: processes.Child, wire: Wire, status: int) -> SkillError:
    """The error of a run without a result: the worker's own words, else its exit status and last lines."""
    place = _kept_stderr(spec.folder, child.stderr)
    if wire.failure:
        said = wire.failure
        error = KINDS.get(said.get("kind", ""), WorkerFailed)
        where = f"rank {said['rank']}: " if spec.nproc > 1 and "rank" in said else ""
        return error(str(said.get("code", "worker_failed")), where + str(said.get("message", "")), next=said.get("next") or place)
    words = " | ".join(line.strip() for line in list(child.stderr)[-LAST_WORDS:])
    garbage = f" {wire.garbage_lines} lines of its output were not understood." if wire.garbage_lines else ""
    return WorkerFailed("worker_failed", f"{spec.script} {ending(status)} without a result.{garbage} Last words: {words or 'none'}", next=place)


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name if -status in {number.value for number in signal.Signals} else f"signal {-status}"
    return f"was ended by {name}" + (" (by hand, or by the kernel when memory ran out)" if name == "SIGKILL" else "")


def _afterthought(wire: Wire, status: int) -> str:
    """A measured result stands, though its process then stumbled over its own end; say so."""
    if wire.failure:
        return f"after the result a rank failed: {wire.failure.get('message', '')}"
    return f"the worker {ending(status)} after its result" if status else ""


def _kept_stderr(folder: Path, lines: Any) -> str:
    try:
        (folder / "stderr.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError:
        return ""
    return f"read {folder / 'stderr.txt'}"


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        event = json.loads(raw)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def prepare(spec: WorkerSpec) -> None:
    """Copy the scripts and write the settings into the run folder. Raises WorkerFailed when that fails."""
    try:
        shutil.copytree(SCRIPTS, spec.folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        if Path(spec.script).is_absolute():
            shutil.copy(spec.script, spec.folder / "scripts")
        spec.settings_file.write_text(json.dumps(dict(spec.settings)), encoding="utf-8")
    except OSError as problem:
        raise WorkerFailed("no_run_folder", f"{spec.folder}: {_first_reason(problem)}",
                           next="set SKILLSERVER_HOME to a folder with room that you may write to") from problem  # fmt: skip


def _first_reason(problem: OSError) -> str:
    """Why a folder could not be filled; copytree lists every file with its reason, and one is enough."""
    listed = problem.args[0] if isinstance(problem, shutil.Error) and problem.args else []
    said = str(listed[0][2]) if isinstance(listed, list) and listed else problem.strerror or str(problem)
    return said.split("] ")[-1].split(": '")[0]


def environment(spec: WorkerSpec) -> dict[str, str]:
    """What the worker inherits; CPU threads stay within this process's affinity and cgroup unless the user chose them."""
    passed = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}
    threads = max(1, processes.allowed_cpus() // max(1, spec.nproc))
    # nvidia-smi and the device locks count GPUs in PCI order, CUDA by default fastest first
    defaults = {"OMP_NUM_THREADS": str(threads), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return defaults | passed | dict(spec.environment)
