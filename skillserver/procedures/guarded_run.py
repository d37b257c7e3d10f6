"""Run one heavy worker on this host without disturbing anybody: refuse first, then start it as a job.

Refused before anything starts: a server without permission to run, a time limit above the human's, a login node of a
SLURM cluster, a device that another of our jobs holds, a GPU that somebody uses. None of this can be overridden by an
argument. Joins permissions, interpreters, devices, locks, workers and jobs; knows nothing of what the worker measures.

>>> record = await run_guarded(tool="run_mamf", arguments={"dtype": "bf16"}, script="torch_matmul.py",
...                            settings={"dtype": "bf16", "device": "auto", "budget_s": 10}, shape=as_result)
>>> record.state, record.result
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillserver import permissions, processes
from skillserver.errors import NotHere, SkillError
from skillserver.jobs import device_locks, manager
from skillserver.jobs.store import JobRecord, now
from skillserver.procedures import gpus_here, node_table, on_nodes
from skillserver.procedures.run_errors import or_error
from skillserver.workers import interpreters
from skillserver.workers.run import WorkerSpec, environment, run_worker

Document = dict[str, Any]
First = Callable[[manager.Handle], Awaitable[tuple[Document, bool]]]  # (what this host found out, whether the worker is still to run)
SLURM_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
SLURM_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a run starts."""

    tool: str
    script: str
    settings: Document
    nproc: int
    limit_s: float
    interpreter: interpreters.Interpreter
    device: gpus_here.Chosen
    first: First | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    alone: bool = True  # what measures nothing may run beside others: it takes no lock and a busy device is no reason against it

    @property
    def locks(self) -> list[str]:
        """Locks that this run takes."""
        return self.device.locks if self.alone else []

    def spec(self, job_id: str, folder: Path) -> WorkerSpec:
        """The worker of one job."""
        return WorkerSpec(job_id, folder, self.script, self.settings, self.interpreter.path, nproc=self.nproc, limit_s=self.limit_s,
                          prefix=self.interpreter.prefix, environment=self.extra)  # fmt: skip

    def document(self, refusals: list[str]) -> Document:
        """What a dry run answers; environment variables by name only."""
        spec = self.spec("JOB", Path("RUN_FOLDER"))
        return {"dry_run": True, "argv": spec.argv(), "settings": self.settings, "interpreter": self.interpreter.document(),
                "device": self.device.name, "gpus": [f"{gpu.index}: {gpu.name} {gpu.uuid}" for gpu in self.device.gpus], "limit_s": self.limit_s,
                "environment": sorted(environment(spec)), "would_be_refused": refusals}  # fmt: skip


async def run_guarded(*, tool: str, arguments: Document, script: str, settings: Document, shape: Callable[[Document], Document],
                      first: First | None = None, nproc: int = 0, gpus: int = 0, device: str = "auto", wait_s: float = 20,
                      python: str | None = None, limit_s: float = 600, dry_run: bool = False, busy_matters: bool = True,
                      needs_torch: bool = True, nodes: int = 0, values: node_table.Values = node_table.nothing,
                      extra: Mapping[str, str] | None = None) -> JobRecord:  # fmt: skip
    """Run `script` of workers/scripts: itself when `nproc` is 0, else that many ranks of it under torch's launcher.

    A `device` key in `settings` is set to the device chosen ("cpu", "cuda", "cuda:1"). `shape(payload)` gets the
    worker's payload and, under "worker", its interpreter, torch, host; also the best so far of a run that was cut
    short, whose result then says `partial: true`. `first` is awaited in the job before the worker starts; what it found
    joins the payload. `gpus` of them are taken when that is more than the ranks. `limit_s` seconds end the run, waiting for it ends after `wait_s`.
    Without `busy_matters` no lock is taken and a busy GPU is not refused. `dry_run` answers what would run
    (`result["dry_run"]`), with the refusals listed and nothing started. With `nodes` it runs on that many nodes through
    SLURM instead (`on_nodes`); `values` are the numbers by which those are compared. `extra` are environment
    variables of this worker alone (a key); they stand in no record.
    Raises NotHere or BadRequest for a refusal, and a failed run's own error when it has nothing else to show.
    """
    permissions.require_run(tool)
    if nodes:
        asked = on_nodes.Asked(tool, arguments, nodes, script, settings, shape, values, nproc, python, limit_s, needs_torch=needs_torch)
        return or_error(await on_nodes.run_on_nodes(asked, wait_s, dry_run=dry_run))
    interpreter = await interpreters.find(python, needs_torch=needs_torch)
    built_for_gpu = bool(interpreter.cuda or interpreter.hip) or not needs_torch
    chosen = await asyncio.to_thread(gpus_here.choose, device, nproc=max(nproc, gpus), built_for_gpu=built_for_gpu, torch=interpreter.torch)
    if "device" in settings:
        settings = settings | {"device": chosen.name}
    plan = Plan(tool, script, settings, nproc, limit_s, interpreter, chosen, first, extra or {}, busy_matters)
    refusals = await asyncio.to_thread(_refusals, plan)
    if dry_run:
        return _answered(plan, arguments, [str(refusal) for refusal in refusals])
    if refusals:
        raise refusals[0]
    return or_error(await _started(plan, arguments, shape, wait_s))


async def _started(plan: Plan, arguments: Document, shape: Callable[[Document], Document], wait_s: float) -> JobRecord:
    locks = device_locks.Locks(plan.locks, plan.tool)
    notes = "; ".join(note for note in (plan.device.note, locks.note) if note)

    async def work(handle: manager.Handle) -> Document:
        with device_locks.releasing(locks):
            return await _work(plan, handle)

    state = ""
    try:
        record = await manager.start(plan.tool, arguments, work, wait_s, shape=shape, note=notes)
        state = record.state
        return record
    finally:
        if state != "running":
            locks.release()  # also when the work never began; a running job does it itself


async def _work(plan: Plan, handle: manager.Handle) -> Document:
    """The body of the job: run the worker, pass on what it says."""
    worker: Document = {"interpreter": plan.interpreter.path, "source": plan.interpreter.source, "torch": plan.interpreter.torch}

    found, goes_on = await plan.first(handle) if plan.first else ({}, True)
    if not goes_on:
        return {**found, "worker": worker}

    async def on_event(event: Document) -> None:
        if event["type"] == "started":
            handle.started(event["pid"])
        elif event["type"] == "hello":
            worker.update({key: event[key] for key in ("python", "torch", "host") if event.get(key)})
        elif event["type"] == "progress":
            await handle.progress(event.get("done") or 0, event.get("total"), str(event.get("message", "")))
        if event.get("partial"):
            handle.keep(found | event["partial"] | {"worker": worker})

    outcome = await run_worker(plan.spec(handle.record.job_id, handle.folder), on_event)
    handle.say(outcome["note"])
    return {**found, **outcome["payload"], "worker": worker | {"torch": outcome["hello"].get("torch") or worker["torch"]}}


def _refusals(plan: Plan) -> list[SkillError]:
    """Every reason not to run, the most fundamental first; locks are tried for real later."""
    allowed = permissions.current()
    found: list[SkillError] = []
    if plan.limit_s > allowed.max_minutes * 60:
        found.append(NotHere("limit_too_long", f"a limit of {plan.limit_s:g} s is above the {allowed.max_minutes:g} minutes allowed here",
                             next="ask for less time, or ask your user to start the server with --max-minutes"))  # fmt: skip
    if not allowed.login_node and (why := login_node()):
        found.append(NotHere("login_node", f"{why}; heavy work does not belong on a login node",
                             next="pass nodes=1 where the tool has it, which goes through SLURM; start it inside an allocation (salloc); "
                                  "or ask your user for a server with --allow-login-node"))  # fmt: skip
    taken = ((name, device_locks.holder(name)) for name in plan.locks)
    found += [device_locks.refusal(name, who) for name, who in taken if who is not None]
    if plan.alone and not allowed.busy and not found and (busy := gpus_here.busy(plan.device)):
        found.append(NotHere("gpu_busy", "; ".join(busy),
                             next="pass another device or wait, or ask your user to start the server with --allow-busy"))  # fmt: skip
    return found


def login_node() -> str:
    """Why this looks like a login node: SLURM's commands with a configuration, and no allocation; "" when it does not."""
    control = shutil.which("scontrol")
    if not control or not shutil.which("sinfo") or os.environ.get("SLURM_JOB_ID"):
        return ""
    configured = [place for place in (os.environ.get("SLURM_CONF", ""), *SLURM_CONFIGURATIONS) if place and Path(place).is_file()]
    if configured:
        return f"SLURM is set up here ({configured[0]}) and this process has no allocation"
    if processes.run_with_deadline([control, "show", "config"], SLURM_DEADLINE_S).rc == 0:
        return "SLURM answers here and this process has no allocation"
    return ""


def _answered(plan: Plan, arguments: Document, refusals: list[str]) -> JobRecord:
    """The record of a dry run; it has no id and is not stored."""
    return JobRecord(job_id="", tool=plan.tool, arguments=arguments, state="done", created=now(), ended=now(), result=plan.document(refusals),
                     note=plan.device.note, next="call it again without dry_run" if not refusals else refusals[0])  # fmt: skip
