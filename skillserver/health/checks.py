"""The facts of one GPU -> incidents. Rules for single facts are data (data/health_rules.toml); here stand the few that compare.

An unknown fact fires nothing. Links and clocks are judged only at work, because idle GPUs lower both on purpose;
a card in a virtual machine or a consumer slot may be wired narrower than it could be. Does not compare GPUs (peers.py).

>>> [one.code for one in incidents(GpuReading("paste", values={"remap_pending": True}))]
['row_remap_pending']
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Literal

from skillserver import tables
from skillserver.findings import Severity
from skillserver.health import fields, xid
from skillserver.health.incident import Incident
from skillserver.health.reading import GpuReading

DEAD_FIELDS = 4  # assumed
HELD_MIB = 2048.0  # assumed: above what drivers of today keep for themselves
HOT_C = 90.0  # assumed: boards slow down between 85 and 98 C
DERIVED = {"retired_pages": ("retired_single_bit", "retired_double_bit")}
NO_FABRIC = re.compile(r"PCIe|\bNVL\b|\bRTX\b|\b[AL]\d0S?$", re.I)
SERVER_BOARD = re.compile(r"SXM|HBM|\b[ABHV]\d00|\bGH200|\bGB[23]00", re.I)


class Rule(tables.Record):
    """One rule; see the head of the table."""

    code: str
    fact: str
    test: Literal["set", "unset", "above", "match"]
    limit: float = 0.0
    words: str = ""
    when: Literal["", "load"] = ""
    needs: Literal["", "remapping", "fabric"] = ""
    unless: tuple[str, ...] = ()
    severity: Severity
    family: str
    reason: str
    action: str
    topic: str
    source: str


@functools.cache
def rules() -> tuple[Rule, ...]:
    """The table."""
    return tables.load("health_rules.toml", Rule)


def incidents(gpu: GpuReading) -> list[Incident]:
    """Everything wrong with one GPU, as far as its own reading says."""
    for name, parts in DERIVED.items():
        known = [value for part in parts if (value := gpu.number(part)) is not None]
        if known:
            gpu.values[name] = sum(known)
    found = [_incident(rule, gpu) for rule in rules() if _fires(rule, gpu)]
    codes = {one.code for one in found}
    silent = {rule.code for rule in rules() if codes.intersection(rule.unless)}
    return [*[one for one in found if one.code not in silent], *_compared(gpu)]


def _fires(rule: Rule, gpu: GpuReading) -> bool:
    if (rule.when == "load" and gpu.loaded is False) or (rule.needs and gpu.consumer):
        return False
    if rule.needs == "fabric" and NO_FABRIC.search(gpu.name):
        return False
    if rule.test in ("set", "unset"):
        return gpu.flag(rule.fact) is (rule.test == "set")
    if rule.test == "match":
        return bool(gpu.text(rule.fact)) and bool(re.search(rule.words, gpu.text(rule.fact), re.I))
    value = gpu.number(rule.fact)
    return value is not None and value > rule.limit


def _incident(rule: Rule, gpu: GpuReading) -> Incident:
    limit = f" (limit {rule.limit:g})" if rule.test == "above" and rule.limit else ""
    said = f"{gpu.label}: {rule.fact} = {_shown(gpu.values.get(rule.fact))}{limit}"
    return Incident(rule.code, rule.severity, rule.family, gpu.label, rule.reason, rule.action, rule.topic, gpu.pci, [said])


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _compared(gpu: GpuReading) -> Iterator[Incident]:
    """The rules that need two facts."""
    yield from _recovery(gpu)
    yield from _heat(gpu)
    yield from _link(gpu)
    yield from _unreadable(gpu)
    yield from _links_down(gpu)
    yield from _held(gpu)


def _held(gpu: GpuReading) -> Iterator[Incident]:
    """Memory in use and no program shown: left behind, or of programs that a container cannot see. Never more than a remark."""
    used, programs = gpu.number("memory_used_mib"), gpu.number("programs")
    if used is None or programs != 0 or used < HELD_MIB or gpu.flag("mig") or gpu.loaded:
        return
    yield Incident(
        "memory_held_without_program",
        "info",
        "host",
        gpu.label,
        "Memory is in use and no program is shown: one that died and left it, or one outside this container.",
        "observe: on the host, fuser -v /dev/nvidia* shows who holds it; end it, or reset the GPU when nobody does",
        "gpu_program_faults",
        gpu.pci,
        [f"{gpu.label}: {used:g} MiB in use, 0 programs"],
    )


def _recovery(gpu: GpuReading) -> Iterator[Incident]:
    """What the driver itself asks for. With a remap pending, "drain and reset" is that remap, which may wait."""
    said = xid.recovery(gpu.text("recovery_action")) if gpu.text("recovery_action") else None
    if said is None and gpu.flag("drain_and_reset"):
        said = xid.recovery("drain and reset")
    if said is None or said[0] == "info":
        return
    severity, action = said
    only_remap = "drain and reset" in gpu.text("recovery_action").lower() or not gpu.text("recovery_action")
    if only_remap and (gpu.flag("remap_pending") or gpu.flag("retired_pending")) and not gpu.number("volatile_uncorrectable"):
        severity, action = "warning", "reset: let jobs end, then reset the GPU at the next break"
    shown = gpu.text("recovery_action") or "Drain and Reset Recommended: Yes"
    yield Incident(
        "recovery_action",
        severity,
        "memory" if severity == "warning" else "firmware",
        gpu.label,
        "The driver names what this GPU needs before it is whole again.",
        action,
        "gpu_firmware",
        gpu.pci,
        [f"{gpu.label}: recovery action {shown}"],
    )


def _heat(gpu: GpuReading) -> Iterator[Incident]:
    """Against the board's own limits; the driver's margin counts down to 0 at the slowdown point."""
    for fact, limit, what in (("temperature_c", "slowdown_c", "slowdown"), ("memory_c", "memory_max_c", "memory's highest working")):
        value, top = gpu.number(fact), gpu.number(limit)
        if value is not None and top and value >= top:
            yield _hot(gpu, f"{fact} = {value:g}, the {what} temperature is {top:g}")
    margin, now = gpu.number("temperature_margin_c"), gpu.number("temperature_c")
    if margin is None and not gpu.number("slowdown_c") and now is not None and now >= HOT_C and gpu.number("amd_edge_c") is None:
        yield _hot(gpu, f"temperature_c = {now:g}, and the board's own limit is not shown")
    if margin is not None and margin <= 0:
        yield _hot(gpu, f"temperature_margin_c = {margin:g}")


def _hot(gpu: GpuReading, said: str) -> Incident:
    return Incident(
        "temperature_limit",
        "warning",
        "thermal",
        gpu.label,
        "The GPU is at a temperature at which its clocks are cut.",
        "observe: check airflow, fans and coolant; keep long jobs off it until it is cooler",
        "gpu_throttling",
        gpu.pci,
        [f"{gpu.label}: {said}"],
    )


def _link(gpu: GpuReading) -> Iterator[Incident]:
    """PCIe below its maximum. The driver's maximum is already what card and host agree on."""
    for fact, what in (("pcie_gen", "generation"), ("pcie_width", "width")):
        now, top = gpu.number(fact), gpu.number(f"{fact}_max")
        if now is None or top is None or now >= top:
            continue
        at_work = gpu.loaded is True
        if fact == "pcie_gen" and not at_work:
            continue
        server = bool(SERVER_BOARD.search(gpu.name)) and gpu.text("virtualization").lower() not in ("pass-through", "vgpu")
        severity: Severity = "warning" if at_work and (server or now * 4 <= top) else "info"
        yield Incident(
            f"{fact}_below_max",
            severity,
            "pcie",
            gpu.label,
            f"The PCIe {what} in use is below what card and host agreed on; some slots and cloud instances are wired so.",
            f"{'observe' if severity == 'warning' else 'none'}: compare with other machines of the type; if they are wider, check riser and slot",
            "pcie_link",
            gpu.pci,
            [f"{gpu.label}: {what} {now:g} of {top:g}{'' if at_work else ' (not at work)'}"],
        )


def _unreadable(gpu: GpuReading) -> Iterator[Incident]:
    """Some errors pass; a GPU of which little else than errors can be read does not work."""
    if not gpu.unreadable or gpu.flag("lost"):
        return
    dead = len(gpu.unreadable) >= DEAD_FIELDS and len(gpu.unreadable) > len(set(gpu.values) - fields.NOT_HEALTH)
    names = ", ".join(list(gpu.unreadable)[:6])
    yield Incident(
        "query_error",
        "critical" if dead else "warning",
        "firmware",
        gpu.label,
        "The driver cannot read this GPU: it hangs or is lost."
        if dead
        else "The driver answered some questions with an error; alone this is often a passing state.",
        "reset: drain, look for Xids in the kernel log, reset the GPU, reboot if that fails"
        if dead
        else "observe: ask again; look for Xid lines in the kernel log if it stays",
        "gpu_firmware",
        gpu.pci,
        [f"{gpu.label}: {next(iter(gpu.unreadable.values()))} for {names}"],
        count=len(gpu.unreadable),
    )


def _links_down(gpu: GpuReading) -> Iterator[Incident]:
    """A link shown as down. On boards without a bridge unused links are inactive by design: only SXM-like boards are judged."""
    down, silent = gpu.text("nvlinks_down"), gpu.flag("nvlinks_all_inactive")
    if gpu.flag("switch"):
        yield from _switch_links_down(gpu, down)
        return
    if not (down or silent) or gpu.source == "live" or (gpu.name and not re.search(r"SXM|HBM|\bB[23]00|\bGB[23]00|HGX", gpu.name)):
        return  # live: a part may have fewer links than the driver lists; peers.py compares
    code = "nvlink_all_inactive" if silent else "nvlink_down"
    yield Incident(
        code,
        "critical",
        "link",
        gpu.label,
        "NVLinks of this GPU are down: collective jobs fail or crawl.",
        "reset: drain, restart the fabric manager with no job running, reset the GPU and its peer; field diagnostic if it stays",
        "nvlink_faults",
        gpu.pci,
        [f"{gpu.label}: {'all links inactive' if silent else f'link {down} down'}"],
    )


def _switch_links_down(gpu: GpuReading, down: str) -> Iterator[Incident]:
    """Ports of a switch may lead nowhere by design: said, not judged hard."""
    if down:
        reason = "Links of an NVSwitch are down; ports that lead nowhere by design look the same."
        action = "observe: compare with another machine of the type and with the links of the GPUs; drain and reset when a GPU lost one"
        yield Incident("nvswitch_link_down", "warning", "link", gpu.name, reason, action, "nvlink_faults", None, [f"{gpu.name}: link {down} down"])
