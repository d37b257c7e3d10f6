"""The acceptance test of this node: one job, one table, one verdict, one result kept.

Health, ports, NUMA and clock first, which start nothing; when they already say critical nothing is measured, because a
sick GPU would hang the measurement and the node is to be drained anyway. Then node_parts.py measures under the guard of
every run: permission, login node, locks, busy GPUs. Parts that start nothing run without that guard, so that a health
check may call them on a busy node.

>>> record = await check(parts=["health", "clock"], budget_s=120, folder="", wait_s=20, python="", dry_run=False)
>>> record.result["verdict"]
'ok'
"""

from __future__ import annotations

import asyncio
import platform
import socket
from collections.abc import Callable
from typing import Any

import skillserver
from skillserver import findings, permissions
from skillserver.errors import NotHere
from skillserver.findings import Finding
from skillserver.jobs import manager
from skillserver.jobs.store import JobRecord, now
from skillserver.measure.history import Kept, Metric
from skillserver.procedures import devices_here, kept_results, node_host, node_judged, node_table, on_nodes
from skillserver.procedures.guarded_run import run_guarded
from skillserver.procedures.node_row import Row, Told, folded, skipped
from skillserver.workers import interpreters

Document = dict[str, Any]
TOOL = "check_node"
SAMPLES = "samples.json"
MEASURED = ("correctness", "matmul", "memory", "transfers", "peers", "all_reduce", "storage")
PARTS = (*node_host.PARTS, *MEASURED)
NEEDS_TORCH = frozenset(MEASURED) - {"storage"}
OF_DEVICES = NEEDS_TORCH | {"health"}  # a node that is asked for these and shows none of them has not passed
START_S, STEPS = 90.0, 4  # torch from a cold disk, for each step of node_parts.py
MOST_FINDINGS, MOST_EVIDENCE = 12, 3
LONGEST_NOTE = 220


async def check(*, parts: list[str] | None, budget_s: float, folder: str, wait_s: float, python: str, dry_run: bool, nodes: int = 0) -> JobRecord:
    """Run the parts named (all when None), here or on that many nodes. Raises as run_guarded does when a measurement is refused."""
    permissions.require_run(TOOL)
    limit_s = 1.5 * budget_s + STEPS * START_S
    if nodes:
        if folder and permissions.current().read_roots is not None:
            permissions.writable_folder(folder)
        return await on_nodes.each_node(tool=TOOL, arguments={"parts": parts, "budget_s": budget_s, "folder": folder}, nodes=nodes, python=python,
                                        values=node_table.of_parts, limit_s=limit_s, wait_s=wait_s, dry_run=dry_run)  # fmt: skip
    wanted = [part for part in PARTS if part in (parts or PARTS)]
    notes = {} if folder or "storage" not in wanted else {"storage": "no folder was named: pass folder= to sample its storage"}
    measure = [part for part in wanted if part in MEASURED and part not in notes]
    arguments = {"parts": wanted, "budget_s": budget_s, "folder": folder}
    if not measure:
        return await _host_only(arguments, wanted, notes, wait_s, dry_run)
    place = str(permissions.writable_folder(folder)) if "storage" in measure else ""
    settings: Document = {"parts": measure, "budget_s": budget_s, "folder": place, "raw_file": SAMPLES}
    has_torch = bool(NEEDS_TORCH & set(measure)) and await _has_torch(python)
    devices, unmeasured = await devices_here.every(python) if has_torch else (["cpu"], "")
    settings |= {"python_has_torch": has_torch, "devices": devices}
    on_gpu = devices != ["cpu"]
    return await run_guarded(tool=TOOL, arguments=arguments, script="node_parts.py", settings=settings,
                             shape=_shape(wanted, measure, devices, notes, unmeasured), first=_first(wanted), gpus=len(devices) if on_gpu else 0,
                             device="auto" if has_torch else "cpu", wait_s=wait_s, python=python or None,
                             limit_s=limit_s, dry_run=dry_run, needs_torch=has_torch)  # fmt: skip


async def _host_only(arguments: Document, wanted: list[str], notes: dict[str, str], wait_s: float, dry_run: bool) -> JobRecord:
    if dry_run:
        plan = {"dry_run": True, "parts": wanted, "would_be_refused": []}
        return JobRecord(job_id="", tool=TOOL, arguments=arguments, state="done", created=now(), ended=now(), result=plan)
    first = _first(wanted)

    async def work(handle: manager.Handle) -> Document:
        return (await first(handle))[0]

    return await manager.start(TOOL, arguments, work, wait_s, shape=_shape(wanted, [], [], notes))


def _first(wanted: list[str]) -> Callable[[manager.Handle], Any]:
    """The parts that start nothing, each in a thread; whether measuring still makes sense."""

    async def first(handle: manager.Handle) -> tuple[Document, bool]:
        told: Document = {}
        chosen = [part for part in wanted if part in node_host.PARTS]
        for number, part in enumerate(chosen):
            await handle.progress(number, len(chosen), part)
            told[part] = _plain(await asyncio.to_thread(node_host.PARTS[part]))
            handle.keep({"host": dict(told), "partial": True})
        sick = told.get("health", {}).get("row", {}).get("verdict") == "critical"
        return {"host": told, "stopped_by": "health" if sick else ""}, not sick

    return first


def _plain(told: Told) -> Document:
    """As JSON, which is what a job keeps."""
    return {"row": told.row.model_dump(), "findings": [one.model_dump() for one in told.findings]}


async def _has_torch(python: str) -> bool:
    try:
        await interpreters.find(python or None)
    except NotHere as missing:
        if missing.code != "no_torch":
            raise
        return False
    return True


def _shape(wanted: list[str], measure: list[str], devices: list[str], notes: dict[str, str],
           unmeasured: str = "") -> Callable[[Document], Document]:  # fmt: skip
    """Payload -> the answer; a whole result with numbers is also kept for `skillserver compare`."""

    def shape(payload: Document) -> Document:
        told = _told(payload, wanted, measure, devices, notes)
        answer = _answer(payload, [told[part] for part in wanted], devices_here.unmeasured(unmeasured))
        metrics = {name: metric for one in told.values() for name, metric in one.metrics.items()}
        if metrics and not payload.get("partial"):
            answer["history_file"], why = kept_results.keep(_kept(payload, answer, devices, metrics))
            answer["skipped"] += [why] if why else []
        return answer

    return shape


def _told(payload: Document, wanted: list[str], measure: list[str], devices: list[str], notes: dict[str, str]) -> dict[str, Told]:
    told = {part: Told(skipped(part, why)) for part, why in notes.items()}
    for part, said in payload.get("host", {}).items():
        told[part] = Told(Row(**said["row"]), [Finding(**one) for one in said["findings"]])
    if payload.get("stopped_by"):
        told |= {part: Told(skipped(part, "health is critical: nothing was started on this node")) for part in measure}
    else:
        told |= {one.row.part: one for one in node_judged.measured(payload, measure, devices)}
    return {part: told.get(part) or Told(skipped(part, "the run was ended before this part")) for part in wanted}


def _answer(payload: Document, told: list[Told], more: list[Finding]) -> Document:
    found = findings.worst_first(folded([*(one for part in told for one in part.findings), *more]))
    rows = [part.row.model_copy(update={"note": part.row.note[:LONGEST_NOTE]}) for part in told]
    whole = not payload.get("partial")  # a test that was ended early may fail a node, and passes none
    verdict = findings.verdict(found, judged=whole and any(row.verdict in ("ok", "warning", "critical") for row in _telling(rows)))
    for one in found:
        one.evidence = one.evidence[:MOST_EVIDENCE]
    return {
        "verdict": verdict,
        "summary": _summary(verdict, rows, payload),
        "parts": [row.model_dump() for row in rows],
        "findings": [one.model_dump(exclude_defaults=True) for one in found[:MOST_FINDINGS]],
        "skipped": [f"{row.part}: {row.note}" for row in rows if row.verdict == "skipped"]
        + ([f"{len(found) - MOST_FINDINGS} more findings: see the run folder"] if len(found) > MOST_FINDINGS else []),
        "conditions": {"host": socket.gethostname(), **_versions(payload), "worker": payload.get("worker")},
        "partial": bool(payload.get("partial")),
    }


def _telling(rows: list[Row]) -> list[Row]:
    """The parts that can accept a node: those of its devices where they were asked for, a host with a good clock is no good node."""
    return [row for row in rows if row.part in OF_DEVICES] or rows


def _summary(verdict: str, rows: list[Row], payload: Document) -> str:
    words = {"critical": "critical", "warning": "warning", "ok": "ok", "unknown": "not judged", "skipped": "not run"}
    named = {kind: ", ".join(row.part for row in rows if row.verdict == kind) for kind in words}
    said = "; ".join(f"{word} ({named[kind]})" for kind, word in words.items() if named[kind])
    return f"{verdict}: {said}" + ("; ended early" if payload.get("partial") else "")


def _results(payload: Document) -> list[Document]:
    return [run["result"] for step in payload.get("parts", {}).values() for run in step.get("runs", []) if run.get("result")]


def _versions(payload: Document) -> dict[str, str]:
    """Software that a number depends on, as the workers saw it."""
    told = {"skillserver": skillserver.__version__, "kernel": platform.release()}
    for result in _results(payload):
        seen = result.get("conditions") or {}
        told |= {name: str(seen[name]) for name in ("torch", "cuda", "hip", "nccl", "driver") if seen.get(name)}
    return told


def _kept(payload: Document, answer: Document, devices: list[str], metrics: dict[str, Metric]) -> Kept:
    versions = _versions(payload)
    models = [str(result.get("device_name") or next(iter(result.get("devices", {}).values()), "")) for result in _results(payload)]
    return Kept(at=now(), host=socket.gethostname(), part=next(filter(None, models), ""), devices=len(devices), verdict=answer["verdict"],
                disturbed=any(one["code"] == "not_alone" for one in answer["findings"]),
                driver=versions.pop("driver", ""), versions=versions, metrics=metrics)  # fmt: skip
