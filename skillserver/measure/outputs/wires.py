"""Output of perftest (ib_write_bw, ib_read_bw, ib_send_bw, ib_*_lat) and iperf3 (text, JSON) -> rows of one connection.

perftest's "MB/sec" are 2^20 bytes, its bidirectional figure adds both directions. iperf3 prints bits; what the receiver
got is taken. Facts: bidirectional, device, link_layer (IB, Ethernet), streams, retransmits, unit as printed.

>>> head = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]"
>>> read_perftest(["RDMA_Write BW Test", head, "65536 5000 392.1 391.8 0.74"])[0].rows[0].gb_s
48.975
"""

from __future__ import annotations

import re
from typing import Any

from skillserver.measure.outputs.records import Mistake, Output, Row, number, to_gb_s

TITLE = re.compile(r"(RDMA_Write|RDMA_Read|Send|Write|Read|Atomic\S*)\s+(?:Post List )?(Bidirectional )?(?:Post List )?(BW|Latency) Test")
DEVICE = re.compile(r"Device\s*:\s*(\S+)")
LAYER = re.compile(r"Link type\s*:\s*(\S+)")
BW_HEAD = re.compile(r"#bytes\s+#iterations\s+BW peak\[([^\]]+)\]\s+BW average\[([^\]]+)\]")
LATENCY_HEAD = re.compile(r"#bytes\s+#iterations\s+.*t_typical\[usec\]|#bytes\s+#iterations\s+t_avg\[usec\]")
IPERF_LINE = re.compile(r"\[\s*(SUM|\d+)\](?:\[[TR]X-[CS]\])?\s+([\d.]+)-\s*([\d.]+)\s+sec\s+[\d.]+ [KMGT]?Bytes\s+([\d.]+) ([KMGT]?bits/sec)(.*)")


def read_perftest(lines: list[str]) -> list[Output]:
    """One Output a test; several devices in one paste give several."""
    outputs: list[Output] = []
    unit, latency = "", False
    for line in lines:
        if found := TITLE.search(line):
            name = f"ib_{found[1].lower().removeprefix('rdma_')}_{'bw' if found[3] == 'BW' else 'lat'}"
            outputs.append(Output("perftest", [], facts={"test": name, "bidirectional": bool(found[2])}))
        elif outputs and (found := DEVICE.search(line)):
            outputs[-1].facts["device"] = found[1]
        elif outputs and (found := LAYER.search(line)):
            outputs[-1].facts["link_layer"] = found[1]
        elif found := BW_HEAD.search(line):
            outputs, unit, latency = outputs or [Output("perftest", [], facts={"test": "ib_bw"})], found[2], False
        elif LATENCY_HEAD.search(line):
            outputs, latency, unit = outputs or [Output("perftest", [], facts={"test": "ib_lat"})], True, line
        elif outputs and unit and re.match(r"^\s*\d+\s+\d+\s+[\d.]", line):
            outputs[-1].rows += _perftest_row(outputs[-1], line.split(), unit, latency)
    return [_with_slips(output, unit) for output in outputs if output.rows]


def _perftest_row(output: Output, tokens: list[str], unit: str, latency: bool) -> list[Row]:
    test, subject, size = output.facts["test"], output.facts.get("device", ""), int(tokens[0])
    if latency:
        names = unit.replace("99% percentile", "p99").replace("99.9% percentile", "p999").split()
        named = dict(zip(names, map(number, tokens), strict=False))
        typical = named.get("t_typical[usec]") or named.get("t_avg[usec]")
        return [Row(test, subject=subject, bytes=size, latency_us=typical)] if typical else []
    average = number(tokens[3]) if len(tokens) > 3 else None
    binary = unit.replace("MB/sec", "MiB/sec")  # perftest divides by 2^20
    rate = to_gb_s(average, binary) if average else None
    return [Row(test, subject=subject, bytes=size, gb_s=rate)] if rate else []


def _with_slips(output: Output, unit: str) -> Output:
    if unit.startswith("MB/sec"):
        output.slips.append(
            Mistake(code="gb_for_gib", what="perftest's MB/sec are 2^20 bytes: 1.049 x 10^6; converted here (--report_gbits avoids it)")
        )
    if output.facts.get("bidirectional"):
        output.slips.append(
            Mistake(code="duplex_total", what="a bidirectional test adds both directions; half of it is judged against the one-way rate")
        )
    return output


def read_iperf(lines: list[str]) -> list[Output]:
    """The last interval, summed over streams, as the receiver saw it."""
    ends: dict[str, dict[str, float]] = {"sender": {}, "receiver": {}}
    retransmits, streams = 0, set()
    for line in lines:
        found = IPERF_LINE.search(line)
        if not found or (rate := to_gb_s(float(found[4]), found[5].replace("bits/sec", "bit/sec"))) is None:
            continue
        streams |= {found[1]} - {"SUM"}
        side = "sender" if "sender" in found[6] else "receiver" if "receiver" in found[6] else ""
        if side:
            ends[side][found[1]] = rate
            told = re.match(r"\s*(\d+)\s+sender", found[6])
            retransmits = int(told[1]) if told and found[1] in ("SUM", *streams) else retransmits
    side = "receiver" if ends["receiver"] else "sender"
    if not ends[side]:
        return []
    total = ends[side].get("SUM", sum(ends[side].values()))
    facts = {"streams": len(streams), "retransmits": retransmits, "side": side}
    return [Output("iperf3", [Row("tcp", gb_s=total, facts=facts)], facts=facts)]


def read_iperf_json(document: dict[str, Any]) -> Output | None:
    """`iperf3 -J`; None when it is another program's. Raises nothing: a failed run has no rows."""
    end, start = document.get("end"), document.get("start")
    if not isinstance(end, dict) or not isinstance(start, dict) or not ("sum_received" in end or "sum" in end):
        return None
    told = end.get("sum_received") or end.get("sum") or {}
    sent, test = end.get("sum_sent") or {}, start.get("test_start") or {}
    if not isinstance(told.get("bits_per_second"), int | float):
        return None
    facts = {"streams": int(test.get("num_streams", 1)), "retransmits": sent.get("retransmits", 0), "side": "receiver"}
    protocol = str(test.get("protocol", "TCP")).lower()
    return Output("iperf3", [Row(protocol, gb_s=told["bits_per_second"] / 8e9, facts=facts)], facts=facts)
