"""Output of STREAM, BabelStream and the OSU micro-benchmarks -> rows.

STREAM and BabelStream count the bytes a kernel must move, MB/s = 10^6. OSU prints MB/s = 10^6 for bandwidth, adding both
directions in osu_bibw, and microseconds for latencies and collectives; a collective's algbw is size / time.

>>> read_stream(["Function    MBytes/sec  Min (sec)", "Triad       304093.569  0.00265  0.00349  0.00285"])[0].rows[0].gb_s
304.0...
"""

from __future__ import annotations

import re

from skillserver.measure.outputs.records import Mistake, Output, Row, collective, factor, number

STREAM_ROW = re.compile(r"^\s*(Copy|Scale|Mul|Add|Triad|Nstream|Dot):?\s+([\d.]+)\s+([\d.]+)\s+[\d.]+\s+[\d.]+")
STREAM_HEAD = re.compile(r"MBytes/sec|Best Rate MB/s|Rate \(MB/s\)|GBytes/sec|MiBytes/sec")
STREAM_DEVICE = re.compile(r"Using (?:CUDA|HIP|OpenCL|SYCL|alpaka|\w+) device:? (.+)")
ARRAY = re.compile(r"Array size[: =]+([\d.]+) ?([KMG]i?B)?")
OSU_TITLE = re.compile(r"OSU (.+?) (?:Test|Benchmark)")
OSU_ROW = re.compile(r"^(\d+)\s+([\d.]+)(?:\s+[\d.]+)*\s*$")
SCALES = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}


def read_stream(lines: list[str]) -> list[Output]:
    """STREAM on a CPU or BabelStream on a device; the array size tells whether caches held it."""
    text = "\n".join(lines)
    head = STREAM_HEAD.search(text)
    if not head:
        return []
    scale = {"GBytes/sec": 1.0, "MiBytes/sec": 2.0**20 / 1e9}.get(head[0], 1e-3)
    rows = [Row(found[1].lower(), gb_s=float(found[2]) * scale) for line in lines if (found := STREAM_ROW.match(line))]
    device = STREAM_DEVICE.search(text)
    kind = "BabelStream" if "BabelStream" in text or ("Function" in text and "MBytes/sec" in text) else "STREAM"
    array = ARRAY.search(text)
    size = float(array[1]) * (SCALES[array[2]] if array[2] else 8) if array else None  # STREAM counts elements of 8 bytes
    return [Output(kind, rows, device=device[1].strip() if device else "", facts={"array_bytes": size, "is_device": bool(device)})] if rows else []


def read_osu(lines: list[str]) -> list[Output]:
    """Bandwidth, latency and collective tests; what its buffers were on (host or device) is a fact."""
    outputs: list[Output] = []
    for line in lines:
        if found := OSU_TITLE.search(line):
            outputs.append(_osu(found[1], line))
        elif outputs and "on DEVICE (D) and" in line and line.count("DEVICE") == 2:
            outputs[-1].facts["device_buffers"] = True
        elif outputs and (found := OSU_ROW.match(line)):
            outputs[-1].rows.append(_osu_row(outputs[-1], int(found[1]), number(found[2]) or 0.0))
    return [output for output in outputs if output.rows]


def _osu(title: str, line: str) -> Output:
    words = title.removeprefix("MPI").lstrip("-")
    accelerated = bool(re.match(r"(CUDA|ROCM|OPENACC|SYCL)", words))
    name = re.sub(r"^(CUDA|ROCM|OPENACC|SYCL)\s*", "", words).strip()
    both = "Bi-Directional" in name or "Bidirectional" in name
    operation = collective(re.sub(r"(Avg |Non-blocking |Latency|Persistent )", "", name).strip().split(" ")[0])
    kind = "bandwidth" if "Bandwidth" in name else "collective" if operation else "latency"
    output = Output("OSU micro-benchmarks", [], collective=operation if kind == "collective" else "")
    output.facts = {"test": name, "measures": kind, "bidirectional": both, "accelerated": accelerated}
    if both:
        output.slips.append(Mistake(code="duplex_total", what="osu_bibw adds both directions; half of it is judged against the one-way rate"))
    return output


def _osu_row(output: Output, size: int, value: float) -> Row:
    name = output.collective or output.facts["test"]
    if output.facts["measures"] == "bandwidth":
        return Row(name, bytes=size, gb_s=value / 1e3)
    if output.facts["measures"] == "latency" or not value:
        return Row(name, bytes=size, latency_us=value)
    return Row(name, bytes=size, time_us=value, algbw_gb_s=size / value / 1e3)


def with_ranks(output: Output, n: int) -> None:
    """Fill busbw of an OSU collective; its size is that of one rank, nccl-tests counts the whole for gather-like ones."""
    whole = n if output.collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter") else 1
    for row in output.rows:
        if row.algbw_gb_s:
            row.algbw_gb_s *= whole
            row.busbw_gb_s = row.algbw_gb_s * factor(output.collective, n)
