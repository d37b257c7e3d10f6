"""Output of nvbandwidth (text, JSON), p2pBandwidthLatencyTest and dcgmi diag -v -> one row a pair or device of each test.

Each row says by `kind` what it crossed: host (PCIe or C2C, one way), host_both, peer (GPU to GPU, one way), peer_both
(a figure that adds both directions), local (a copy inside one memory, its bytes count once). Multi-device tests that
share a link are `shared`. Latencies (ns, us) are rows with latency_us.

>>> read_nvbandwidth(["Running host_to_device_memcpy_ce.", "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", "   0", " 0  55.6"])[0].rows[0].gb_s
55.6
"""

from __future__ import annotations

import re
from typing import Any

from skillserver.findings import Finding
from skillserver.measure.outputs.records import Output, Row, number

RUNNING = re.compile(r"^Running (\w+)\.?")
TITLE = re.compile(r"(?:memcpy|latency|memory).*\((?:GB/s|ns|us)\)|bandwidth \(GB/s\)", re.I)
DEVICE = re.compile(r"^Device \d+: (.+?)(?: \([0-9a-fA-F:.]+\))?(?:,.*)?$")
P2P_DEVICE = re.compile(r"Device: \d+, ([^,]+),")
P2P_TITLE = re.compile(r"(Unidirectional|Bidirectional) P2P=(Enabled|Disabled) Bandwidth|P2P=(Enabled|Disabled) Latency.*\((us)\)")
DIAG = re.compile(r"GPU(\d+)(GPUtoHost|HosttoGPU)bandwidth:(\d+\.\d+)GB/s")
FAILED = re.compile(r"^(?:ERROR|\[ERROR\]|Error)[: ](.*)|Invalid value when checking", re.I)


def kind_of(test: str) -> str:
    """What a test of nvbandwidth crosses; see the module."""
    if "latency" in test:
        return "latency"
    if "local_copy" in test:
        return "local"
    if test.startswith(("all_to", "one_to_all", "host_to_all", "device_to_all")) or "_all_" in test:
        return "shared"
    way = "_both" if "bidirectional" in test else ""
    return ("peer" if "device_to_device" in test else "host") + way


def read_nvbandwidth(lines: list[str]) -> list[Output]:
    """Every matrix of the tests that ran; waived ones are named as skipped."""
    output = Output("nvbandwidth", [])
    test, title, header, waived = "", "", False, 0
    for line in lines:
        if found := RUNNING.match(line):
            test, title, header = found[1], "", False
        elif found := DEVICE.match(line):
            output.device = output.device or found[1].strip()
        elif test and TITLE.search(line):
            title, header = line, False
        elif test and title and not header and re.fullmatch(r"\s*(?:\d+\s*)+", line):
            header = True
        elif test and header and re.match(r"^\s*\d+\s+\S", line):
            output.rows += _cells(test, title, line.split())
        elif re.match(r"^Waived", line):
            waived += 1
        elif test and (found := FAILED.match(line)):
            output.alarms.append(_failed(test, line.strip()))
        elif header:
            header = False
    output.skipped += [f"{waived} tests that nvbandwidth waived on this host"] if waived else []
    return [output] if output.rows or output.alarms else []


def _cells(test: str, title: str, tokens: list[str]) -> list[Row]:
    kind, rows = kind_of(test), []
    kind = "peer_total" if kind == "peer_both" and re.search(r"total", title, re.I) else kind
    for column, token in enumerate(tokens[1:]):
        value = number(token)
        if value is not None and value > 0:
            rows.append(_cell(test, kind, tokens[0], column, value))
    return rows


def _cell(test: str, kind: str, row: str, column: int, value: float) -> Row:
    subject = f"GPU {row} - GPU {column}" if kind.startswith("peer") else f"GPU {column}" if row == "0" else f"CPU {row} - GPU {column}"
    if kind == "latency":
        return Row(test, subject=subject, latency_us=value / 1e3, facts={"kind": kind})
    return Row(test, subject=subject, gb_s=value, facts={"kind": kind, "engine": "SM" if test.endswith("_sm") else "CE"})


def _failed(test: str, seen: str) -> Finding:
    return Finding(code="test_failed", severity="warning", subject=test, evidence=[seen[:200]], reason="nvbandwidth could not finish this test.",
                   action="observe: run it again alone (-t), then check_gpu_health")  # fmt: skip


def read_nvbandwidth_json(document: dict[str, Any]) -> Output | None:
    """The file of `nvbandwidth -j`; None when it is another program's."""
    root = document.get("nvbandwidth")
    if not isinstance(root, dict):
        return None
    output = Output("nvbandwidth", [], device=str((root.get("GPU Device list") or [""])[0]))
    for case in root.get("testcases") or []:
        test, title = str(case.get("name", "")), str(case.get("bandwidth_description", ""))
        for index, row in enumerate(case.get("bandwidth_matrix") or []):
            output.rows += _cells(test, title, [str(index), *map(str, row)])
        if case.get("status") == "Waived":
            output.skipped.append(f"{test}: waived by nvbandwidth")
        elif case.get("status") == "Error" or case.get("error"):
            output.alarms.append(_failed(test, str(case.get("error", "Error"))))
    return output


def read_diag(lines: list[str]) -> list[Output]:
    """The PCIe figures of `dcgmi diag -v`, whose table folds them over lines in the middle of words."""
    packed = re.sub(r"[\s|]|\\t", "", "\n".join(lines)) if any("bandwidth" in line for line in lines) else ""
    names = {"GPUtoHost": "device_to_host", "HosttoGPU": "host_to_device"}
    rows = [
        Row(names[way], subject=f"GPU {gpu}", gb_s=float(rate), facts={"kind": "host", "engine": "CE"}) for gpu, way, rate in DIAG.findall(packed)
    ]
    return [Output("dcgmi diag", rows)] if rows else []


def read_p2p(lines: list[str]) -> list[Output]:
    """The matrices of p2pBandwidthLatencyTest, P2P enabled only; the diagonal is a copy inside one memory."""
    output = Output("p2pBandwidthLatencyTest", [])
    kind = ""
    for line in lines:
        if found := P2P_DEVICE.search(line):
            output.device = output.device or found[1].strip()
        elif found := P2P_TITLE.search(line):
            enabled = (found[2] or found[3]) == "Enabled"
            kind = "" if not enabled else "latency" if found[4] else "peer" if found[1] == "Unidirectional" else "peer_total"
        elif kind and re.match(r"^\s*\d+(?:\s+[\d.]+)+\s*$", line):
            output.rows += _p2p_row(kind, line.split())
        elif "CPU" in line and "Latency" not in line:
            kind = ""
    return [output] if output.rows else []


def _p2p_row(kind: str, tokens: list[str]) -> list[Row]:
    rows = []
    for column, token in enumerate(tokens[1:]):
        value, here = number(token), tokens[0] == str(column)
        if value and not here:
            facts = {"kind": kind, "engine": "CE"}
            name = {"peer": "p2p_unidirectional", "peer_total": "p2p_bidirectional", "latency": "p2p_latency"}[kind]
            rows.append(Row(name, subject=f"GPU {tokens[0]} - GPU {column}", gb_s=None if kind == "latency" else value,
                            latency_us=value if kind == "latency" else None, facts=facts))  # fmt: skip
    return rows
