"""Copies over PCIe and NVLink, RDMA ports and TCP streams, each against the one-way rate of its link.

Joins hardware.catalogue with measure.shares. A port's rate has to be known (link=, or named in the text): 98 Gb/s is all
of a 100G port and a quarter of an NDR one. Pairs and devices of one output are compared with each other as well.

>>> copies(output, setting).judgement.verdict
'warning'
"""

from __future__ import annotations

from statistics import median

from skillserver import topics
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator, Link
from skillserver.measure import shares
from skillserver.measure.judge import Finding, Judgement
from skillserver.measure.outputs.records import Mistake, Output, Row
from skillserver.procedures.judged import NO_PART, ComparedWith, Judged, off, unknown
from skillserver.procedures.measured_setting import Setting

PAIRS_LOW = 0.85  # of the median; eight GPUs of a PCIe node lie within 10% of each other
SMALL_BYTES, TINY_BYTES = 65536, 64
ONE_STREAM_GB_S = 3.125  # 25 Gb/s: what one TCP stream or one iperf3 process is sure to carry
CHIP_TO_CHIP = ("GH200", "GB200")
SWITCHED_GPUS = 8
ACTION = "observe: call check_gpu_health (PCIe width and generation, NVLink errors), then measure again on an idle node"
PORT_ACTION = "observe: ibstat for the port's rate, lspci for its PCIe width, MTU and NUMA node; then repeat with larger messages and 4 QPs"


def copies(output: Output, setting: Setting) -> Judged:
    """nvbandwidth and p2pBandwidthLatencyTest: the slowest judged figure decides."""
    judged = [one for kind in ("host", "peer", "peer_total", "local") if (one := _copy_kind(kind, output, setting))]
    found = [finding for kind in ("host", "peer") for finding in _uneven(kind, output)]
    if not judged:
        row = next((row for row in output.rows if row.gb_s), output.rows[0] if output.rows else None)
        return unknown("none of the tests shown is judged (latency, SM copies and shared links are not)", row=row, findings=found, topics=["duplex"])
    order = {"warning": 0, "unknown": 1, "ok": 2}
    worst = min(judged, key=lambda one: order.get(one.judgement.verdict, 1))
    if worst.judgement.verdict == "unknown" and any(one.judgement.verdict == "ok" for one in judged):
        worst.skipped.append(worst.judgement.reason)  # unknown only when nothing could be judged
        reason, skipped = worst.judgement.reason, worst.skipped
        worst = next(one for one in judged if one.judgement.verdict == "ok")
        worst.skipped = [*worst.skipped, *skipped] if reason else worst.skipped
    worst.findings += found
    worst.topics = ["duplex", "pcie_link"]
    return worst


def _copy_kind(kind: str, output: Output, setting: Setting) -> Judged | None:
    rows = [row for row in output.rows if row.facts.get("kind") == kind and row.gb_s and row.facts.get("engine") != "SM"]
    if not rows:
        return None
    slowest = min(rows, key=lambda row: row.gb_s or 0.0)
    if setting.part is None:
        names = " or ".join(part.id for part in setting.parts)
        return unknown(
            f"which part it is: {names}" if names else (setting.unknown_part and f"{setting.unknown_part!r} is not in the catalogue") or NO_PART,
            row=slowest,
        )
    return _copy(kind, slowest, rows, setting.part, setting)


def _copy(kind: str, row: Row, rows: list[Row], part: Accelerator, setting: Setting) -> Judged:
    value = (row.gb_s or 0.0) / (2 if kind == "peer_total" else 1)
    if kind == "local":
        return _local(row, part)
    link, one_way = _link_of("host" if kind == "host" else "peer", part, setting)
    if one_way is None:
        return unknown(f"the {link or 'link'} rate of {part.id} is not in the catalogue", row=row)
    judged = Judged(shares.of_link(value, one_way, "PCIe" if "PCIe" in link else "NVLink"), row=row)
    judged.compared = ComparedWith(value=one_way, unit="GB/s one way", basis="data sheet", what=f"{link} of {part.id}", source=f"catalogue: {link}")
    if kind == "peer_total":
        judged.mistakes.append(Mistake(code="duplex_total", what=f"{row.gb_s:.4g} GB/s adds both directions; {value:.4g} each way is judged"))
    if kind != "host" and judged.judgement.verdict == "warning" and not _peer_fault(value, rows, part, setting):
        judged.judgement = Judgement(
            verdict="unknown", reason=f"{judged.judgement.reason}; on boards without a switch a pair has only some of the links"
        )
    if judged.judgement.verdict == "warning":
        if kind == "host" and (like := _slots(value)):
            judged.assumed.append(f"{value:.4g} GB/s is what {like[0]} carries: did the slot train down, or is the host of that generation?")
        judged.findings.append(off("copy_off", f"{row.what} {row.subject}".strip(), judged.judgement.reason, ACTION, topics.sections("pcie_link")))
    return judged


def _slots(value: float) -> list[str]:
    """The PCIe slot that a rate in GB/s one way would fill, if any."""
    return [each.id for each in catalogue.links() if each.kind == "pcie" and 0.75 <= value / each.each_way_gb_s <= 0.95][:1]


def _peer_fault(value: float, rows: list[Row], part: Accelerator, setting: Setting) -> bool:
    """Low is a fault only where a switch gives every pair the whole rate, or where the figure cannot be."""
    one_way = part.link_each_way_gb_s or 0.0
    if value > shares.ABOVE_PAPER * one_way:
        return True
    switched = part.link in ("NVLink3", "NVLink4", "NVLink5", "NVLink4-H800") and part.id.endswith("SXM")
    devices = {name for row in rows for name in row.subject.split(" - ")}
    return switched and max(len(devices), setting.n_gpus or 0) == SWITCHED_GPUS


def _link_of(kind: str, part: Accelerator, setting: Setting) -> tuple[str, float | None]:
    """(name, GB/s one way) of the link that a copy crosses; a named PCIe generation wins over the part's own."""
    if kind == "host":
        if part.id.startswith(CHIP_TO_CHIP):
            return "NVLink-C2C", None
        if setting.link and setting.link.kind == "pcie":
            return setting.link.id, setting.link.each_way_gb_s
        name = part.link if part.link and part.link.startswith("PCIe") else f"PCIe{part.pcie_generation}" if part.pcie_generation else ""
        return name, catalogue.link(name).each_way_gb_s if name else None
    if part.link and part.link.startswith("xGMI"):
        return part.link, (part.link_each_way_gb_s or 0.0) / (part.links or 1)  # a pair has one link of a full mesh
    return part.link or "", part.link_each_way_gb_s


def _local(row: Row, part: Accelerator) -> Judged:
    """A copy inside one memory reads and writes every byte: twice the printed figure crosses the memory bus."""
    moved = 2 * (row.gb_s or 0.0)
    judged = shares.of_link(moved, part.memory_bandwidth_gb_s, "memory")
    if judged.verdict == "warning" and moved < part.memory_bandwidth_gb_s:
        judged = Judgement(
            verdict="unknown", reason=f"{judged.reason}; copy engines need not saturate the memory (use BabelStream)", ratio=judged.ratio
        )
    compared = ComparedWith(value=part.memory_bandwidth_gb_s, unit="GB/s", basis="data sheet", what=f"memory of {part.id}; a local copy counts twice",
                            source=part.sources[0])  # fmt: skip
    return Judged(judged, row=row, compared=compared)


def _uneven(kind: str, output: Output) -> list[Finding]:
    """Pairs or devices far below the median of the same test."""
    found = []
    for test in dict.fromkeys(row.what for row in output.rows if row.facts.get("kind") == kind):
        rows = [row for row in output.rows if row.what == test and row.gb_s and not row.subject.startswith("CPU")]
        middle = median(row.gb_s or 0.0 for row in rows)
        slow = [row for row in rows if (row.gb_s or 0.0) < PAIRS_LOW * middle]
        if len(rows) >= 4 and slow and len(slow) <= len(rows) / 4:
            evidence = [f"{row.subject}: {row.gb_s:.4g} of {middle:.4g} GB/s" for row in slow[:4]]
            subject = f"{test}: {', '.join(row.subject for row in slow[:4])}"
            found.append(Finding(code="uneven_links", severity="warning", subject=subject, evidence=evidence, action=ACTION,
                                 reason="These are slower than their peers: a link trained down, another NUMA node, or a neighbour.",
                                 sections=topics.sections("pcie_link")))  # fmt: skip
    return found


def sentence_copy(output: Output, setting: Setting) -> Judged:
    """A sentence about NVLink or PCIe copies."""
    row, topic = output.rows[0], output.facts["topic"]
    if setting.part is None and len({_link_of(topic, part, setting)[1] for part in setting.parts}) != 1:
        return unknown(NO_PART if not setting.parts else f"it may be {' or '.join(part.id for part in setting.parts)}", row=row, topics=["duplex"])
    both = output.facts.get("bidirectional")
    setting.parts = setting.parts[:1] if setting.part is None else setting.parts
    row.facts |= {"kind": "host" if topic == "host" else "peer_total" if both else "peer", "engine": "CE"}
    if topic == "host" and both:
        row.gb_s = (row.gb_s or 0.0) / 2
    judged = _copy(row.facts["kind"], row, [row], setting.parts[0], setting)
    judged.topics = ["duplex"]
    if topic == "host" and judged.judgement.verdict == "warning" and (judged.judgement.ratio or 0) < 1 and not output.facts.get("pinned"):
        judged.findings.clear()
        judged.judgement = Judgement(verdict="unknown", reason=f"{judged.judgement.reason}; pageable memory gives far less, and pinned is not said")
    return judged


def port(output: Output, setting: Setting) -> Judged:
    """perftest, OSU bandwidth or a sentence about RDMA: the largest message against the port's rate."""
    if all(row.gb_s is None for row in output.rows):
        return _latency(output)
    row = max((row for row in output.rows if row.gb_s is not None), key=lambda row: (row.bytes or 0, row.gb_s or 0.0))
    both = output.facts.get("bidirectional")
    value = (row.gb_s or 0.0) / (2 if both else 1)
    if setting.link is None or setting.link.kind not in ("network", "instance"):
        fits = [link.id for link in catalogue.links() if link.kind == "network" and 0.88 <= value / link.each_way_gb_s <= 1.02]
        hint = f"; it would be all of {' or '.join(fits)}" if fits else ""
        return unknown(f"{value * 8:.4g} Gb/s: the port's rate is not known{hint}; pass link= such as NDR", row=row, topics=["ib_rates"])
    judged = _by_port(row, value, setting.link, output)
    judged.topics = ["ib_rates"]
    return judged


def _by_port(row: Row, value: float, link: Link, output: Output) -> Judged:
    one_way = link.each_way_gb_s / (link.links if link.kind == "instance" else 1)
    judged = Judged(shares.of_link(value, one_way, "RDMA"), row=row)
    judged.compared = ComparedWith(value=one_way, unit="GB/s one way", basis="data sheet", what=f"{link.id}, {link.note}", source=link.source)
    if row.bytes is not None and row.bytes < SMALL_BYTES:
        judged.mistakes.append(Mistake(code="too_small", what=f"messages of {row.bytes} bytes tell latency; use -s 65536 or more (-a for all)"))
        if judged.judgement.verdict != "ok":
            judged.judgement = Judgement(verdict="unknown", reason=f"{judged.judgement.reason}; the messages are too small to fill the port")
    if judged.judgement.verdict == "warning" and output.kind == "sentence" and one_way * 0.8 <= value * 8 <= one_way * 1.02:
        judged.mistakes.append(Mistake(code="bits_for_bytes", what=f"{value * 8:.4g} would be right as GB/s: bits and bytes may be mixed up"))
    if judged.judgement.verdict == "warning" and value > one_way and 0.8 <= value / 8 / one_way <= 1.02:
        judged.mistakes.append(Mistake(code="bits_for_bytes", what=f"{value:.4g} would be right as Gb/s = {value / 8:.4g} GB/s"))
    if judged.judgement.verdict == "warning" and value < one_way:
        fills = [each.id for each in catalogue.links() if each.kind == "network" and 0.88 <= value / each.each_way_gb_s <= 1.02]
        if like := [*fills, *_slots(value)]:
            judged.assumed.append(f"{value:.4g} GB/s is what {' or '.join(like)} carries: did the port or its PCIe slot train at that rate?")
        judged.findings.append(off("port_off", row.subject or link.id, judged.judgement.reason, PORT_ACTION, topics.sections("ib_rates")))
    return judged


def _latency(output: Output) -> Judged:
    row = min(output.rows, key=lambda row: row.bytes or 0)
    if row.latency_us is None or (row.bytes or 0) > TINY_BYTES or output.kind == "OSU micro-benchmarks":
        return unknown("latencies are judged for RDMA messages of up to 64 bytes only", row=row, topics=["network_latency"])
    layer = str(output.facts.get("link_layer", "IB"))
    judged = Judged(shares.small_latency(row.latency_us, layer), row=row, topics=["network_latency"])
    limits = shares.LATENCY_LIMITS_US.get(layer, shares.LATENCY_LIMITS_US["Ethernet"])
    source = "knowledge base, hardware/network: port 0.5 to 0.6 us, switch 0.1 to 0.5 us"
    what = f"{layer}, a few bytes, one or two switches"
    judged.compared = ComparedWith(value=limits[0], unit="us", low=0.5, high=limits[0], basis="derived", what=what, source=source)
    if judged.judgement.verdict == "warning":
        judged.findings.append(off("latency_off", row.subject or "port", judged.judgement.reason, PORT_ACTION, topics.sections("network_latency")))
    return judged


def tcp(output: Output, setting: Setting) -> Judged:
    """iperf3: judged as low only where one process could have filled the link."""
    row = output.rows[0]
    if row.gb_s is None:
        return unknown("no rate is shown", row=row, topics=["network_tools"])
    if setting.link is None or setting.link.kind != "network":
        return unknown(f"{row.gb_s * 8:.4g} Gb/s: the port's rate is not known; pass link= such as 100GbE", row=row, topics=["network_tools"])
    link = setting.link
    judged = Judged(shares.of_link(row.gb_s, link.each_way_gb_s, "RDMA"), row=row, topics=["network_tools"])
    judged.compared = ComparedWith(
        value=link.each_way_gb_s, unit="GB/s one way", basis="data sheet", what=f"{link.id}, {link.note}", source=link.source
    )
    if judged.judgement.verdict != "ok" and row.gb_s < link.each_way_gb_s and link.each_way_gb_s > ONE_STREAM_GB_S:
        streams = row.facts.get("streams")
        words = (
            f"{streams or 'a few'} TCP streams of one process fill a CPU core before a {link.id} port: use -P 8 and several processes, or ib_write_bw"
        )
        judged.mistakes.append(Mistake(code="one_stream", what=words))
        judged.judgement = Judgement(
            verdict="unknown", reason=f"{judged.judgement.reason.split(';')[0]}; TCP is bound by the CPU here", ratio=judged.judgement.ratio
        )
    return judged
