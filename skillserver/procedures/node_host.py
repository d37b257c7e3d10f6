"""The parts of a node's acceptance test that start nothing: GPU health, InfiniBand ports, NUMA layout, the clock.

Each is one blocking call with its own deadline, meant for a thread. They disturb nobody, so they also run where a
measurement would be refused. Joins health and hardware; rules of GPUs and ports are theirs.

>>> clock(Clock(synchronised=True, offset_ms=0.02, source="chronyc")).row.verdict
'ok'
"""

from __future__ import annotations

from collections.abc import Callable

from skillserver import topics
from skillserver.findings import Finding
from skillserver.hardware import clock as clocks
from skillserver.hardware import host, numa
from skillserver.health import infiniband, live, report
from skillserver.procedures.node_row import Row, Told, judged, skipped

HEALTH_DEADLINE_S = 30.0
NO_GPU = "no GPU answers here"
OFF_MS = 100.0  # assumed: logs of several nodes can no longer be laid in order; munge refuses only minutes
EVEN = 0.90  # memory of a socket beside the largest; a missing DIMM takes a twelfth or more


def health() -> Told:
    """GPU health as check_gpu_health looks at this host."""
    facts, incidents = live.look(HEALTH_DEADLINE_S)
    count, names = len(facts.gpus), ", ".join(dict.fromkeys(gpu.name for gpu in facts.gpus))
    found = report.judge(facts, incidents)
    unjudged = "; ".join(one.why for one in found.skipped)
    if found.verdict == "unknown":
        return Told(skipped("health", f"{NO_GPU}: {unjudged}" if not count else unjudged))
    note = f"{names}: {found.summary}" if count else found.summary
    return Told(Row(part="health", verdict=found.verdict, n=count or None, note=note), [_plain(one) for one in found.findings])


def _plain(one: report.HealthFinding) -> Finding:
    """Without the command to confirm it, which is put behind its action."""
    action = f"{one.action} (confirm: {one.confirm})" if one.confirm else one.action
    return Finding(**one.model_dump(exclude={"confirm", "action"}), action=action)


def ports() -> Told:
    """The state of every InfiniBand and RoCE port."""
    text = host.ib_ports()
    facts = infiniband.parse("live ports", text) if text else None
    if facts is None:
        return Told(skipped("infiniband", "no InfiniBand or active RoCE port under /sys/class/infiniband"))
    found = report.judge(facts)
    lines = text.splitlines()
    active = sum("ACTIVE" in line for line in lines)
    row = Row(part="infiniband", verdict=found.verdict, value=active, unit="ports active", n=len(lines), note=found.summary)
    return Told(row, [_plain(one) for one in found.findings])


def layout(found: numa.Layout | None = None) -> Told:
    """Memory of each socket, and whether every GPU's socket is known and usable."""
    found = numa.read() if found is None else found
    if not found.nodes:
        return Told(skipped("numa", "/sys/devices/system/node does not tell"))
    problems = [*_memory(found), *_affinity(found)]
    shown = "; ".join(f"node {node.number}: {node.cpus} CPUs, {node.memory_gib:g} GiB{_holds(found, node.number)}" for node in found.nodes[:8])
    row = judged("numa", problems, [], fine=True, note=shown)
    return Told(row.model_copy(update={"value": len(found.nodes), "unit": "NUMA nodes"}), problems)


def _holds(found: numa.Layout, number: int) -> str:
    count = sum(node == number for node in found.gpus.values())
    return f", {count} GPUs" if count else ""


def _memory(found: numa.Layout) -> list[Finding]:
    """A socket with less memory than the others; 10% is a DIMM of at most ten on it."""
    most = max(node.memory_gib for node in found.nodes)
    low = [node for node in found.nodes if node.memory_gib < EVEN * most]
    if not low:
        return []
    seen = [f"node {node.number}: {node.memory_gib:g} GiB, the largest {most:g} GiB" for node in low]
    return [Finding(code="memory_uneven", severity="warning", subject="host memory", evidence=seen,
                    reason="Sockets with unequal memory: a DIMM is missing, disabled or of another size, and its channel's bandwidth with it.",
                    action="observe: look at dmidecode -t memory and the BMC's event log", sections=topics.sections("node_numa"))]  # fmt: skip


def _affinity(found: numa.Layout) -> list[Finding]:
    if len(found.nodes) < 2 or not found.gpus:
        return []
    seen = [f"GPU {pci}: the firmware names no NUMA node" for pci, node in found.gpus.items() if node < 0]
    seen += [f"GPU {pci}: node {node}, whose CPUs this process may not use" for pci, node in found.gpus.items() if _is_out_of_reach(found, node)]
    if not seen:
        return []
    return [Finding(code="gpu_affinity", severity="info", subject="NUMA", evidence=seen[:8],
                    reason="A process on the wrong socket copies to its GPU through the link between sockets.",
                    action="observe: compare nvidia-smi topo -m with the CPUs of the job (taskset -cp $$)",
                    sections=topics.sections("node_numa"))]  # fmt: skip


def _is_out_of_reach(found: numa.Layout, node: int) -> bool:
    """The node has CPUs, and this process none of them."""
    return node in {one.number for one in found.nodes} and node not in found.allowed


def clock(found: clocks.Clock | None = None) -> Told:
    """Whether something keeps the clock, and how far it is off where that is known."""
    found = clocks.read() if found is None else found
    if found.synchronised is None:
        return Told(skipped("clock", "neither the kernel nor chronyc nor timedatectl tells"))
    problems = _clock_findings(found)
    row = judged(
        "clock", problems, [], fine=found.synchronised, note=f"{'kept' if found.synchronised else 'not kept'} by a time source, says {found.source}"
    )
    return Told(row.model_copy(update={"value": found.offset_ms, "unit": "ms off" if found.offset_ms is not None else ""}), problems)


def _clock_findings(found: clocks.Clock) -> list[Finding]:
    if found.synchronised and (found.offset_ms or 0.0) < OFF_MS:
        return []
    inside = host.given_a_part() == "a container"
    seen = f"{found.offset_ms:.0f} ms off" if found.synchronised else f"{found.source}: not synchronised"
    return [Finding(code="clock_off", severity="info" if inside and not found.synchronised else "warning", subject="host clock", evidence=[seen],
                    reason="Clocks that drift put the logs of nodes out of order, and authentication (munge) fails at some minutes.",
                    action="fix_setup: start chrony or another time daemon on the host and look at chronyc tracking",
                    sections=topics.sections("node_clock"))]  # fmt: skip


PARTS: dict[str, Callable[[], Told]] = {"health": health, "infiniband": ports, "numa": layout, "clock": clock}
