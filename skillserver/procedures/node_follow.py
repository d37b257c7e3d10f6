"""Follow a job of SLURM, or a step of this allocation, to its end, and collect what its nodes left in the run folder.

SLURM is asked often at first and seldom later; between, only files are looked at. When our own job is cancelled (by the user,
by another process through the file `cancel`, at shutdown), so is SLURM's, and the nodes get a moment for their last words.
A job that cannot start is ended, not waited for. An end that SLURM caused is a failed job whose partial answers are kept.

>>> payload = await as_job(Run(handle, nodes=4), folder / "job.sbatch", env)
>>> payload["answers"]["n1"]["best"], payload["errors"], payload["silent"]
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skillserver import processes
from skillserver.cluster import slurm_batch, slurm_postmortem, slurm_submit
from skillserver.cluster.slurm_records import Job
from skillserver.cluster.slurm_text import ENDED, expand
from skillserver.errors import NotHere, SkillError, TooLong, WorkerFailed
from skillserver.jobs import manager
from skillserver.jobs.store import now
from skillserver.procedures import node_files, node_table
from skillserver.procedures.node_files import NodeAnswer

Document = dict[str, Any]
PEEK_S = 0.1  # files only
LOOKS_S = ((60.0, 1.0), (600.0, 5.0), (float("inf"), 15.0))  # (age of the job, seconds between questions to the controller)
PATIENCE_S = {"never": 3.0, "held": 120.0, "nodes": 120.0}  # with a job that pends for such a reason
CONTROLLER_S = 300.0  # a controller is restarted within minutes
SETTLE_S = {"COMPLETED": 40.0}  # a folder may look old for as long on NFS
SETTLE_OTHERS_S = 10.0
ACCOUNTS_S = 5.0  # sacct lags
STEP_GRACE_S = 20.0


@dataclass
class Run:
    """One run on nodes: our job's handle, SLURM's job (the allocation's own for a step). `together`: only the first rank speaks."""

    handle: manager.Handle
    nodes: int
    together: bool = False
    job_id: str = ""
    names: list[str] | None = None

    @property
    def folder(self) -> Path:
        """Shared with the nodes."""
        return self.handle.folder

    def answers(self) -> dict[str, NodeAnswer]:
        """Of every node known by name, else of those that wrote."""
        return node_files.answers(self.folder, self.names or node_files.wrote(self.folder))

    def payload(self, slurm: Document, lost: Mapping[str, str] | None = None) -> Document:
        """What there is, in one document; `lost` says what SLURM knows of nodes that are gone."""
        told, lost = self._told(), lost or {}
        best = {node: one.best | ({} if one.whole else {"partial": True}) for node, one in told.items() if one.best}
        errors = self._errors(told, lost)
        silent = {node: lost.get(node, "") for node, one in told.items() if one.best is None and node not in errors}
        silent |= {f"(unnamed {number})": "" for number in range(1, self.nodes - len({*told, *errors}) + 1)}
        return {"nodes": list(dict.fromkeys([*told, *errors, *silent])), "answers": best, "errors": errors, "silent": silent, "slurm": slurm,
                "cut": [node for node, one in told.items() if one.best and not one.whole],
                "workers": {node: one.hello for node, one in told.items() if one.hello}}  # fmt: skip

    def _told(self) -> dict[str, NodeAnswer]:
        """The answers; of one torchrun job a launcher that ended well has nothing to say."""
        told = self.answers()
        if not self.together:
            return told
        return {node: replace(one, payload={}) if one.status == 0 and one.payload is None else one for node, one in told.items()}

    def _errors(self, told: Mapping[str, NodeAnswer], lost: Mapping[str, str]) -> dict[str, str]:
        """Node -> why it failed: its own words, srun's, or SLURM's for a node that vanished after it had begun."""
        words = node_files.batch_words(self.folder)
        said = {found[1]: found[2] for line in words if (found := node_files.SRUN_EXIT.match(line))}
        errors = {}
        for node, one in told.items():
            gone = lost.get(node, "") if one.status is None and one.best else ""
            if why := one.error or gone or (said.get(node, "") if one.best is None else ""):
                errors[node] = why
        return errors | {node: self.unseen() for node in node_files.unseen(words)}

    def unseen(self) -> str:
        """The error of a node that cannot see the run folder."""
        return f"it cannot see {self.folder}: set SKILLSERVER_HOME to a folder that all nodes share"

    def beat(self) -> None:
        """Say that somebody follows; without it for some minutes the job ends by itself."""
        with contextlib.suppress(OSError):
            (self.folder / slurm_batch.ALIVE).write_text(now())

    async def report(self, waiting: str) -> None:
        """Progress, and the best so far kept."""
        told = self.answers()
        done = sum(one.status is not None for one in told.values())
        last = next((f"; {one.node}: {one.message}" for one in told.values() if one.status is None and one.message), "")
        if any(one.best for one in told.values()):
            self.handle.keep(self.payload({"job_id": self.job_id}) | {"partial": True})
        await self.handle.progress(done, self.nodes, waiting or f"job {self.job_id}: {done} of {self.nodes} nodes done{last}")

    def ended_by_another(self) -> bool:
        """Whether another process of this user asked for the end."""
        return (self.folder / manager.CANCEL).exists()


async def as_job(run: Run, file: Path, env: Mapping[str, str]) -> Document:
    """Submit and follow. Raises the refusal of sbatch, or WorkerFailed and its kin for an end that left nodes without an answer."""
    handle = run.handle
    await _submitted(run, file, env)
    slurm_submit.followed.add(run.job_id)
    handle.record.slurm_job_id = run.job_id
    handle.say(f"SLURM job {run.job_id}")
    handle.save()
    try:
        job = await _followed(run)
        return await _judged(run, job)
    except SkillError:
        if run.ended_by_another():
            await _cancelled(run)
        elif handle.partial is None and (left := run.payload({"job_id": run.job_id}))["answers"]:
            handle.keep(left | {"partial": True})
        raise
    except BaseException:
        await _cancelled(run)
        raise
    finally:
        slurm_submit.followed.discard(run.job_id)


async def _submitted(run: Run, file: Path, env: Mapping[str, str]) -> None:
    """A cancellation meanwhile waits for the id, or nobody could cancel that job."""
    asked = asyncio.ensure_future(asyncio.to_thread(slurm_submit.submit, file, env))
    try:
        run.job_id = await asyncio.shield(asked)
    except asyncio.CancelledError:
        with contextlib.suppress(SkillError):
            await asyncio.to_thread(slurm_submit.cancel, await asked)
        raise


async def _followed(run: Run) -> Job:
    """The job at its end."""
    clock = asyncio.get_running_loop().time
    began = answered = clock()
    reasons: dict[str, float] = {}
    while True:
        run.beat()
        job = await asyncio.to_thread(slurm_submit.look, run.job_id)
        if job is None and clock() - answered > CONTROLLER_S:
            raise TooLong("slurm_silent", f"SLURM has not answered for {CONTROLLER_S:.0f} s; job {run.job_id} may still run",
                          next=f"squeue -j {run.job_id} when it answers again; scancel {run.job_id} ends it")  # fmt: skip
        if job is not None:
            answered, run.names = clock(), slurm_submit.nodes_of(job) or run.names
            if job.state in ENDED:
                return job
            await run.report(await _waiting(run, job, reasons))
        start = (job.restarts or 0) if job else 0
        await _pause(run, start, next(pause for age, pause in LOOKS_S if clock() - began < age))


async def _waiting(run: Run, job: Job, reasons: dict[str, float]) -> str:
    """Words for a job that pends, "" for one that runs. Raises NotHere when it will not start."""
    why = slurm_submit.waits(job)
    if why is None:
        return f"job {job.id} waits in the queue" if job.state == "PENDING" else ""
    since = reasons.setdefault(why.kind, asyncio.get_running_loop().time())
    if asyncio.get_running_loop().time() - since < PATIENCE_S.get(why.kind, float("inf")):
        return f"job {job.id} waits: {why.words} ({why.code})"
    broken = await asyncio.to_thread(slurm_submit.out_of_service) if why.kind == "nodes" else []
    await asyncio.to_thread(slurm_submit.cancel, run.job_id)
    named = "; out of service: " + ", ".join(f"{node.name} ({node.reason or '+'.join(sorted(node.flags)).lower()})" for node in broken[:8])
    raise NotHere("cannot_start", f"job {job.id} for {run.nodes} nodes was cancelled, it would not start: {why.words} ({why.code})"
                  + (named if broken else ""), next=f"{why.advice}; or pass fewer nodes")  # fmt: skip


async def _pause(run: Run, start: int, for_s: float) -> None:
    """Until SLURM should be asked again: soon after the batch script's end. Raises WorkerFailed when another process cancelled us."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + for_s
    while True:
        await asyncio.sleep(PEEK_S)
        if run.ended_by_another():
            raise WorkerFailed("cancelled", f"job {run.job_id} was cancelled on request", next="call it again")
        if clock() >= deadline or node_files.over(run.folder, start):
            return


async def _judged(run: Run, job: Job) -> Document:
    """The payload of an ended job. Raises when SLURM ended it before every node had answered, or when no node did."""
    lost = {} if job.state == "COMPLETED" else await _lost(run)
    ended = slurm_postmortem.post_mortem(await _with_steps(run, job), node_files.batch_words(run.folder))
    if ended is None or ended.cause != "output_unwritable":
        await _settled(run, SETTLE_S.get(job.state, SETTLE_OTHERS_S), lost)
    slurm = {"job_id": run.job_id, "state": job.state, "partition": job.partition, "nodes": job.node_list, "restarts": job.restarts or 0}
    payload = run.payload(slurm, lost)
    await run.report("")
    if job.restarts:
        run.handle.say(f"SLURM started the job again {job.restarts} times; the newest try counts")
    whole = len(payload["answers"]) - len(payload["cut"])
    own = job.state in ("COMPLETED", "FAILED")  # its nodes' own words say more
    if whole == (1 if run.together else run.nodes) or (own and whole):
        return payload
    if payload["answers"] or payload["errors"]:
        run.handle.keep(payload | {"partial": True})
    raise _failed(run, job, ended, payload)


async def _lost(run: Run) -> dict[str, str]:
    """Nodes that failed under the job: SLURM's word for those that are out of service now, srun's for one that is back already."""
    told = dict.fromkeys(node_files.lost(node_files.batch_words(run.folder)), "SLURM says node failure")
    for node in await asyncio.to_thread(slurm_submit.out_of_service):
        told[node.name] = f"SLURM says {'+'.join(sorted(node.flags)).lower()}: {node.reason or 'no reason given'}"
    return told


async def _settled(run: Run, within_s: float, lost: Collection[str] = ()) -> None:
    """Wait until every node that began has written its status: files may come late over a network, and after a SIGTERM."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    while any(one.status is None and node not in lost for node, one in run.answers().items()) and clock() < deadline:
        if node_files.unseen(node_files.batch_words(run.folder)):
            return
        await asyncio.sleep(PEEK_S)


async def _with_steps(run: Run, job: Job) -> Job:
    """The job with its steps, once sacct has them; as it is where the site keeps no accounts or nothing is to explain."""
    for _ in range(int(ACCOUNTS_S)):
        if job.state == "COMPLETED":
            return job
        told = await asyncio.to_thread(slurm_submit.accounted, run.job_id)
        if told and told.state in ENDED:
            return told
        await asyncio.sleep(1.0)
    return job


def _failed(run: Run, job: Job, ended: slurm_postmortem.PostMortem | None, payload: Document) -> SkillError:
    """In words: what happened to the job, to which nodes, and what was kept."""
    unseen = sorted(node for node, why in payload["errors"].items() if why == run.unseen())
    if unseen or (ended and ended.cause == "output_unwritable"):
        return NotHere("no_shared_folder", f"{', '.join(unseen) or 'the first node'} cannot see {run.folder}",
                       next="set SKILLSERVER_HOME to a folder that all nodes share (a home on NFS, Lustre ...)")  # fmt: skip
    if job.state in ("COMPLETED", "FAILED") and payload["errors"]:
        return WorkerFailed("nodes_failed", f"no node gave a result; {_first_errors(payload)}", next=_advice(run))
    cause, words = (ended.cause, ended.words) if ended else (job.state.lower(), f"it ended as {job.state_text or job.state}")
    cut = len(payload["cut"])
    answered = f"{len(payload['answers']) - cut} of {run.nodes} nodes had answered" + (f", {cut} in part" if cut else "")
    gone = [*payload["silent"], *(node for node, why in payload["errors"].items() if why.startswith("SLURM says"))]
    silent = f"; lost: {', '.join(gone[:8])}" if gone and (payload["answers"] or cause == "node_failure") else ""
    last = "" if payload["answers"] else " ".join(f" Last words: {line}" for line in node_files.batch_words(run.folder)[-1:])
    kind = TooLong if cause in ("time_limit", "deadline") else WorkerFailed
    return kind(f"slurm_{cause}", f"SLURM job {run.job_id} ({job.state_text or job.state}): {words}; {answered}{silent}.{last}",
                next=ended.action if ended else f'inspect_slurm(job_id="{run.job_id}")')  # fmt: skip


async def _cancelled(run: Run) -> None:
    """End SLURM's job and keep what its nodes still say."""
    if why := await asyncio.to_thread(slurm_submit.cancel, run.job_id):
        run.handle.say(f"scancel {run.job_id}: {why}")
    await _settled(run, SETTLE_OTHERS_S)
    payload = run.payload({"job_id": run.job_id, "state": "CANCELLED"})
    if payload["answers"]:
        run.handle.keep(payload | {"partial": True})


async def as_step(run: Run, file: Path, env: Mapping[str, str], limit_s: float) -> Document:
    """Run the same script inside the allocation that this process has: srun makes a step of it."""
    handle, allocated = run.handle, expand(env.get("SLURM_JOB_NODELIST", ""))
    run.job_id, run.names = env.get("SLURM_JOB_ID", ""), allocated if len(allocated) == run.nodes else None
    argv = ["bash", "-c", f'exec bash "$1" >{slurm_batch.OUTPUT} 2>&1', "step", str(file)]
    child = await processes.start(argv, mark=handle.record.job_id, env=env, on_line=_nothing, cwd=handle.folder, direct=False)
    handle.started(child.pid)
    finished = asyncio.ensure_future(child.finished())
    try:
        async with asyncio.timeout(limit_s + slurm_batch.MARGIN_S):
            while not finished.done():
                await run.report("")
                await asyncio.wait({finished}, timeout=1.0)
        await run.report("")
        slurm = {"job_id": run.job_id, "state": "COMPLETED" if finished.result() == 0 else f"FAILED {finished.result()}", "step": True}
        return _step_judged(run, run.payload(slurm))
    except BaseException as problem:
        await child.end(STEP_GRACE_S)
        payload = run.payload({"job_id": run.job_id, "state": "CANCELLED", "step": True})
        if payload["answers"]:
            handle.keep(payload | {"partial": True})
        if isinstance(problem, TimeoutError):
            raise TooLong("too_long", f"the nodes gave no result in {limit_s:g} s and were ended", next="ask for less (sizes, budget_s)") from problem
        raise
    finally:
        finished.cancel()
        processes.kill_marked(handle.record.job_id)


async def _nothing(_line: bytes) -> None:
    """The script's output goes to a file."""


def _step_judged(run: Run, payload: Document) -> Document:
    if len(payload["answers"]) > len(payload["cut"]):
        return payload
    if payload["answers"] or payload["errors"]:
        run.handle.keep(payload | {"partial": True})
    unseen = sorted(node for node, why in payload["errors"].items() if why == run.unseen())
    if unseen:
        raise NotHere(
            "no_shared_folder", f"{', '.join(unseen)} cannot see {run.folder}", next="set SKILLSERVER_HOME to a folder that all nodes share"
        )
    why = _first_errors(payload) or " | ".join(node_files.batch_words(run.folder)[-3:])
    raise WorkerFailed("nodes_failed", f"no node gave a result; {why or 'srun said nothing'}", next=_advice(run))


def _advice(run: Run) -> str:
    """The worker's own next step where it gave one."""
    told = run.answers().values()
    own = (str(one.failure.get("next", "")) for one in told if one.failure)
    absent = any(one.status in node_files.NOT_STARTED for one in told)
    return next(filter(None, own), "pass a python that every node has at the same path" if absent else f"read {run.folder}/nodes")


def _first_errors(payload: Document) -> str:
    """Up to three different errors with their nodes, causes before consequences."""
    groups = list(node_table.grouped(payload["errors"]).items())
    return "; ".join(f"{', '.join(nodes[:8])}: {why}" for why, nodes in groups[:3])
