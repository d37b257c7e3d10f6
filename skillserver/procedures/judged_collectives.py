"""Collectives that others measured, held against healthy nodes, or between nodes against the NICs.

Joins hardware.catalogue (expected busbw, links) with measure.judge and measure.shares. A figure of which neither busbw
nor algbw, neither bits nor bytes is sure is judged under every reading, and only an agreeing verdict is given.

>>> judge(output, setting).judgement.reason
'180 GB/s is 80% of the lower end of the 225 to 245 GB/s of healthy nodes'
"""

from __future__ import annotations

from dataclasses import replace

from skillserver import topics
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator, ExpectedBusbw
from skillserver.measure import judge as judging
from skillserver.measure import shares
from skillserver.measure.judge import SATURATING_BYTES, Judgement
from skillserver.measure.outputs.memory_and_mpi import with_ranks
from skillserver.measure.outputs.records import Mistake, Output, Row, factor
from skillserver.procedures.judged import NO_PART, ComparedWith, Judged, agreed, off, unknown
from skillserver.procedures.measured_setting import RACK_SCALE, Setting

LATENCY_BYTES = 2**20
PLACES_DIFFER, DROP, AVERAGE_LOW = 0.10, 0.85, 0.9
SOCKETS_MOST_GB_S = 12.5
ACTION = "observe: check_gpu_health, NCCL_DEBUG=INFO for the path NCCL took, then measure again on an idle node"


def judge(output: Output, setting: Setting) -> Judged:
    """One table or sentence about a collective."""
    if output.kind == "OSU micro-benchmarks" and setting.n_gpus and setting.n_gpus > 1:
        with_ranks(output, setting.n_gpus)
    wrong = _wrong(output)
    row = _chosen(output.rows)
    if row is None:
        judged = unknown(_nothing(output))
    elif setting.n_gpus == 1:
        judged = unknown("one rank moves nothing between GPUs, so its busbw is 0 by definition", row=row)
    else:
        judged = _judged(output, setting, row)
    judged.findings = wrong + judged.findings
    judged.topics = ["busbw", *judged.topics]
    if row is not None:
        judged.mistakes += _mistakes(output, setting, row, judged)
    return judged


def _nothing(output: Output) -> str:
    average = output.facts.get("average_busbw_gb_s")
    if average is not None:
        return f"only the average over all sizes ({average:g} GB/s) is shown, which small messages pull down; paste the rows of the largest sizes"
    return "no row shows busbw, and without the number of ranks algbw does not tell it; pass n_gpus="


def _chosen(rows: list[Row]) -> Row | None:
    """The largest size, out-of-place where both are shown; by busbw, or algbw when a sentence gave that."""
    useful = [row for row in rows if row.busbw_gb_s is not None or row.algbw_gb_s is not None]
    return max(useful, key=lambda row: (row.bytes or 0, row.place != "in-place"), default=None)


def _wrong(output: Output) -> list[judging.Finding]:
    bad = [row for row in output.rows if row.wrong]
    if not bad and not output.facts.get("out_of_bounds"):
        return []
    evidence = [f"#wrong {row.wrong} at {row.bytes} bytes {row.place}".strip() for row in bad[:3]]
    evidence = evidence or [f"Out of bounds values: {output.facts['out_of_bounds']}"]
    return [judging.wrong_result(output.collective or "collective", evidence)]


def _judged(output: Output, setting: Setting, row: Row) -> Judged:
    kind, assumed = output.collective, []
    if not kind:
        kind = "all_reduce"
        assumed.append("the collective is not named: taken as all_reduce")
    if row.bytes is None:
        assumed.append("the message size is not given: taken as 1 GiB or more")
    readings = _readings(replace(output, collective=kind), setting, row)
    if not readings:
        return unknown(_nothing(output), row=row)
    if (setting.n_nodes or 1) > 1:
        judged = _between(setting, readings, row)
    else:
        judged = _inside(kind, setting, readings, row)
    judged.row, judged.assumed = row, assumed + judged.assumed
    return _unless_ambiguous(judged, output)


def _unless_ambiguous(judged: Judged, output: Output) -> Judged:
    """all_gather and all_to_all print alike; a low figure of one that is not named is not judged."""
    if not output.facts.get("gather_or_all_to_all"):
        return judged
    judged.assumed.append("the test is not named: all_gather or all_to_all, taken as all_gather")
    if judged.judgement.verdict == "warning":
        judged.findings.clear()
        judged.judgement = Judgement(verdict="unknown", reason=f"{judged.judgement.reason}, if it was all_gather; all_to_all prints alike")
    return judged


def _readings(output: Output, setting: Setting, row: Row) -> list[tuple[str, float]]:
    """[(how it is read, busbw GB/s)]: one for a table, several for a sentence that leaves it open."""
    n = setting.n_gpus
    if row.busbw_gb_s is None:
        if row.algbw_gb_s is None or not n:
            return []
        busbw = row.algbw_gb_s * factor(output.collective, n)
        row.busbw_gb_s = busbw
        return [("algbw", busbw)]
    told = [("busbw", row.busbw_gb_s)]
    if output.kind != "sentence":
        return told
    if not output.facts.get("which") and n and factor(output.collective, n) != 1.0:
        told.append(("if algbw is meant", row.busbw_gb_s * factor(output.collective, n)))
    if output.facts.get("in_bits"):
        told.append((f"if bytes are meant by {output.facts['unit']}", row.busbw_gb_s * 8))
    elif output.facts.get("unit_unsure"):
        told.append((f"if bits are meant by {output.facts['unit']}", row.busbw_gb_s / 8))
    return told


def _inside(kind: str, setting: Setting, readings: list[tuple[str, float]], row: Row) -> Judged:
    """One node, against what healthy ones showed."""
    if not setting.parts:
        return unknown(f"{setting.unknown_part!r} is not in the catalogue" if setting.unknown_part else NO_PART)
    if not setting.n_gpus:
        return unknown("how many GPUs took part is not known; pass n_gpus=")
    rows = [(part, catalogue.expected_busbw(part.id, setting.n_gpus, kind)) for part in setting.parts]
    known = [(part, expected) for part, expected in rows if expected]
    if not known:
        return _by_link(kind, setting, readings, row)
    if len(known) < len(rows):
        left = ", ".join(part.id for part, expected in rows if not expected)
        known_ids = ", ".join(part.id for part, _ in known)
        setting.assumed.append(f"read as {known_ids}: no reference is known for {left}")
    expected = known[0][1]
    assert expected is not None
    judged = Judged(_best_reading(readings, row, expected, setting), compared=_compared(expected), topics=["nvls"])
    if judged.judgement.verdict == "warning":
        judged.findings.append(off("busbw_off", "collective", judged.judgement.reason, ACTION, topics.sections("busbw", "nvls")))
    one_way = known[0][0].link_each_way_gb_s
    if one_way and len(readings) == 1 and (remark := judging.past_the_wire(readings[0][1], one_way, kind)):
        setting.assumed.append(remark)
    if setting.around.ring_forced:
        setting.assumed.append("the ring was forced (NCCL_ALGO or NCCL_NVLS_ENABLE), so ring figures are to be expected")
    return judged


def _best_reading(readings: list[tuple[str, float]], row: Row, expected: ExpectedBusbw, setting: Setting) -> Judgement:
    """Readings that no such node can reach are dropped while others remain; the rest must agree."""
    possible = [(name, value) for name, value in readings if value <= judging.HIGH_BUSBW * expected.high_gb_s] or readings[:1]
    return agreed([(name, _value(value, row, expected, setting)) for name, value in possible])


def _compared(expected: ExpectedBusbw) -> ComparedWith:
    what = f"{expected.conditions}; typical at {expected.size}" + (f". {expected.note}" if expected.note else "")
    return ComparedWith(value=expected.typical_gb_s, unit="GB/s busbw", low=expected.low_gb_s, high=expected.high_gb_s, basis="published", what=what,
                        source="; ".join(expected.sources))  # fmt: skip


def _value(busbw: float, row: Row, expected: ExpectedBusbw, setting: Setting) -> Judgement:
    """One reading under the rule that our own runs are judged by."""
    size = SATURATING_BYTES if row.bytes is None else row.bytes
    return judging.node_busbw(busbw, size, low_gb_s=expected.low_gb_s, high_gb_s=expected.high_gb_s, typical_gb_s=expected.typical_gb_s,
                              path=expected.conditions, ring=setting.around.ring_forced)  # fmt: skip


def _by_link(kind: str, setting: Setting, readings: list[tuple[str, float]], row: Row) -> Judged:
    """No measured reference: only a whole NVLink node in line with the rule of thumb is called fine, nothing is called bad."""
    part: Accelerator = setting.parts[0]
    what = f"{kind} over {setting.n_gpus} GPUs of {part.id}"
    one_way = part.link_each_way_gb_s
    if part.link is None or one_way is None or not part.link.startswith(("NVLink", "xGMI")) or setting.n_gpus != 8 or "bridge" in part.link:
        return unknown(f"no published figure of {what} is known")
    judged = agreed([(name, shares.of_link(value, one_way, "ring")) for name, value in readings])
    if judged.verdict == "ok" and row.bytes is not None and row.bytes < LATENCY_BYTES:
        judged = Judgement(verdict="unknown", reason=judged.reason, ratio=judged.ratio)
    if judged.verdict != "ok":
        return unknown(f"no published figure of {what} is known; {judged.reason}")
    source = f"catalogue: {part.id}, {part.link}"
    return Judged(judged, compared=ComparedWith(value=one_way, unit="GB/s one way", basis="data sheet", what="one-way rate of the part's links; "
                                                "no measured figure of this collective is known", source=source))  # fmt: skip


def _between(setting: Setting, readings: list[tuple[str, float]], row: Row) -> Judged:
    """Several nodes: single-node figures do not apply; the NICs of a node do."""
    nodes, n = setting.n_nodes or 2, setting.n_gpus
    if rack := [part.id for part in setting.parts if part.id in RACK_SCALE]:
        return unknown(f"{nodes} trays of {rack[0]} may be one NVLink domain, and no published figure of one is known")
    judged = unknown(
        f"{nodes} nodes: single-node figures do not apply, and the NICs are not known; pass link= (a port per GPU such as NDR, or EFA-p5)"
    )
    judged.topics.append("multi_node_busbw")
    if setting.around.over_sockets:
        action = "fix_setup: make NCCL use the RDMA adapters (NCCL_IB_HCA, plugin, container devices)"
        judged.findings.append(off("over_sockets", "NCCL", "NET/Socket", action, topics.sections("nccl_interfaces")))
    if not setting.link or not n or setting.link.kind not in ("network", "instance") or n % nodes:
        return judged
    each = n // nodes
    whole = setting.link.kind == "instance"
    node_gb_s = setting.link.each_way_gb_s * (1 if whole else each)
    if not whole:
        setting.assumed.append(f"one {setting.link.id} port for each of {each} GPUs of a node: {node_gb_s:g} GB/s one way")
    if row.bytes is not None and row.bytes < SATURATING_BYTES:
        return judged
    judged.judgement = agreed(
        [(name, shares.between_nodes(value, node_gb_s, n, nodes, ring_only=setting.around.ring_forced)) for name, value in readings]
    )
    judged.compared = ComparedWith(
        value=node_gb_s, unit="GB/s of NICs a node, one way", basis="derived", what=setting.link.note, source=setting.link.source
    )
    if judged.judgement.verdict == "warning":
        judged.findings.append(off("fabric_off", "network", judged.judgement.reason, ACTION, topics.sections("nccl_interfaces")))
    return judged


def _mistakes(output: Output, setting: Setting, row: Row, judged: Judged) -> list[Mistake]:
    """The usual misreadings that the rows or the sentence allow."""
    told: list[tuple[str, str]] = []
    busbw, best = row.busbw_gb_s or 0.0, max((each.busbw_gb_s or 0.0 for each in output.rows), default=0.0)
    n = setting.n_gpus
    if output.facts.get("which") == "algbw" and n:
        told.append(
            (
                "algbw_for_busbw",
                f"algbw was given: busbw = algbw x {factor(output.collective or 'all_reduce', n):.4g} for {n} ranks = {busbw:.4g} GB/s",
            )
        )
    elif output.kind == "sentence" and not output.facts.get("which") and n:
        told.append(
            ("algbw_for_busbw", f"neither busbw nor algbw is said: as algbw it would be {busbw * factor(output.collective, n):.4g} GB/s of busbw")
        )
    if output.facts.get("in_bits") and output.kind == "sentence":
        told.append(("bits_for_bytes", f"{output.facts['unit']} are bits: {busbw * 8:.4g} Gb/s = {busbw:.4g} GB/s"))
    elif judged.compared and judged.compared.low and judged.compared.high and judged.compared.low * 0.9 <= busbw / 8 <= judged.compared.high * 1.1:
        told.append(("bits_for_bytes", f"{busbw:.4g} GB/s cannot be, {busbw:.4g} Gb/s = {busbw / 8:.4g} GB/s would fit"))
    if (setting.n_nodes or 1) > 1 and not any(part.id in RACK_SCALE for part in setting.parts):
        two = "; two nodes may show up to twice the wire (trees), so use 4, or NCCL_ALGO=RING" if setting.n_nodes == 2 else ""
        told.append(("two_nodes", f"{setting.n_nodes} nodes are limited by their NICs: not comparable with one node's figures{two}"))
    told += _size_mistakes(output, row, busbw, best)
    told += _place_mistakes(output, row)
    return [Mistake(code=code, what=what) for code, what in told]


def _size_mistakes(output: Output, row: Row, busbw: float, best: float) -> list[tuple[str, str]]:
    told = []
    if row.bytes is not None and row.bytes < LATENCY_BYTES:
        told.append(("latency_region", f"the largest message has {row.bytes} bytes: that tells latency (time), not bandwidth"))
    elif row.bytes is not None and row.bytes < SATURATING_BYTES:
        told.append(("too_small", f"the largest message is {row.bytes / 2**20:.4g} MiB: links are full from about 1 GiB; use -e 16G"))
    average = output.facts.get("average_busbw_gb_s")
    if average is not None and best and average < AVERAGE_LOW * best:
        told.append(("average_over_sizes", f"'Avg bus bandwidth' {average:g} averages every size; the largest shows {busbw:.4g} GB/s"))
    if busbw and busbw < DROP * best:
        told.append(
            (
                "drops_at_the_end",
                f"{busbw:.4g} GB/s at the largest size, {best:.4g} at a smaller one: repeat it, memory or a neighbour may be in the way",
            )
        )
    return told


def _place_mistakes(output: Output, row: Row) -> list[tuple[str, str]]:
    same = [each for each in output.rows if each.bytes == row.bytes and each.place == "in-place" and each is not row]
    if not same or not row.busbw_gb_s or not same[0].busbw_gb_s:
        return []
    if abs(same[0].busbw_gb_s / row.busbw_gb_s - 1) <= PLACES_DIFFER:
        return []
    return [("in_place", f"out-of-place {row.busbw_gb_s:.4g} and in-place {same[0].busbw_gb_s:.4g} GB/s differ; out-of-place is judged")]
