"""Output of torch.distributed benchmarks: all_reduce_bench.py (every version), the latency comparison, DeepSpeed's.

Knows their columns and their habits: all_reduce_bench.py puts busbw before algbw; DeepSpeed's all_reduce throughput is
2 S / t, twice what nccl-tests calls algbw, in Gb/s, while its busbw is right.

>>> read_bench(["The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):", "|   16GiB | 482.26GBps | 275.58GBps |"])[0].n_ranks
8
"""

from __future__ import annotations

import re

from skillserver.measure.outputs.records import Mistake, Output, Row, collective, number, ranks_of, to_gb_s
from skillserver.units import parse_bytes

BENCH_HEAD = re.compile(r"bandwidth of (\w+) (?:over (\d+) ranks|with a ([\d.]+ ?[KMGT]i?B) payload)(?:.*?(\d+) ranks)?")
PROFILE = re.compile(r"The ([\d.]+ ?GiB) payload bandwidth of (\w+) over (\d+) ranks")
ROUNDS = re.compile(r"\((\d+) warmups? / (\d+) trials?\)")
CELL = re.compile(r"([\d.]+) ?(GB|Gb|MB|Mb|TB)ps", re.I)
SIZE = re.compile(r"^\s*([\d.]+) ?([KMGT]?i?B)\s*$")
DEVICE = re.compile(r"name='([^']+)'")
OLD = re.compile(r"^\s*(algbw|busbw):\s*([\d.]+) ?(GBps|Gbps|MBps|Mbps)")
LATENCY = re.compile(r"-+ *(\d+)x ([\d.]+)GB -+")
DEEPSPEED = re.compile(r"Performance of (\w+) on (\d+) devices")
DEEPSPEED_LOG = re.compile(r"Comm\. Op\s+Message Size")
DEEPSPEED_ROW = re.compile(r"^\s*([\d.]+ ?[KMGTP]?B)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)")
BENCH_ROW = re.compile(r"^\s*([\d.]+(?: ?[KMGT]?B)?)\s+(\S+)\s+([\d.]+) ?(us|ms|s)\s+([\d.]+)\s+([\d.]+)\s*$")
SECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def read_bench(lines: list[str]) -> list[Output]:
    """all_reduce_bench.py: a table of sizes, one profiled size, or the older two lines; and all_reduce_latency_comp.py."""
    text = "\n".join(lines)
    head, profile = BENCH_HEAD.search(text), PROFILE.search(text)
    columns = next((_columns(line) for line in lines if "busbw" in line and "|" in line), ["payload", "busbw", "algbw"])
    rows = [row for line in lines if "|" in line and (row := _table_row(line, columns))]
    rows += _older(lines, head)
    if not rows:
        return _latency_comparison(lines)
    ranks = (head[2] or head[4]) if head else profile[3] if profile else None
    output = Output("all_reduce_bench", rows, collective=collective(head[1] if head else profile[2] if profile else "all_reduce") or "all_reduce")
    output.n_ranks = int(ranks) if ranks else _ranks(rows)
    output.device = found[1] if (found := DEVICE.search(text)) else ""
    if profile:
        for row in rows:
            row.bytes = parse_bytes(profile[1])
    if (rounds := ROUNDS.search(text)) and int(rounds[1]) == 0:
        words = "no warm-up rounds: the first collectives build channels and are several times slower"
        output.slips.append(Mistake(code="first_iterations", what=words))
    for row in rows:
        row.what = output.collective
    return [output]


def _columns(line: str) -> list[str]:
    return [cell.strip().lower() for cell in line.strip().strip("|").split("|")]


def _table_row(line: str, columns: list[str]) -> Row | None:
    cells = _columns_kept(line)
    named = dict(zip(columns, cells, strict=False)) if len(cells) == len(columns) else {}
    busbw = CELL.match(named.get("busbw", ""))
    if not busbw:
        return None
    size, algbw = SIZE.match(named.get("payload", "")), CELL.match(named.get("algbw", ""))
    return Row("", place="in-place", bytes=parse_bytes(f"{size[1]}{size[2]}") if size else None, busbw_gb_s=_rate(busbw),
               algbw_gb_s=_rate(algbw) if algbw else None)  # fmt: skip


def _columns_kept(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _rate(found: re.Match[str]) -> float:
    return to_gb_s(float(found[1]), f"{found[2]}ps") or 0.0


def _older(lines: list[str], head: re.Match[str] | None) -> list[Row]:
    told = {found[1]: to_gb_s(float(found[2]), found[3]) for line in lines if (found := OLD.match(line))}
    if "busbw" not in told:
        return []
    size = parse_bytes(head[3].replace(" ", "")) if head and head[3] else None
    return [Row("", place="in-place", bytes=size, busbw_gb_s=told["busbw"], algbw_gb_s=told.get("algbw"))] if head else []


def _ranks(rows: list[Row]) -> int | None:
    row = max(rows, key=lambda row: row.bytes or 0)
    return ranks_of("all_reduce", row.busbw_gb_s / row.algbw_gb_s) if row.busbw_gb_s and row.algbw_gb_s else None


def _latency_comparison(lines: list[str]) -> list[Output]:
    rows, size = [], None
    for line in lines:
        if found := LATENCY.search(line):
            size = int(float(found[2]) * 1e9)
        elif size and (told := OLD.match(line)) and told[1] == "busbw":
            rows.append(Row("all_reduce", place="in-place", bytes=size, busbw_gb_s=to_gb_s(float(told[2]), told[3])))
    return [Output("all_reduce_bench", rows, collective="all_reduce")] if rows else []


def read_deepspeed(lines: list[str]) -> list[Output]:
    """DeepSpeed's communication benchmark (one table a collective) and its communication logger's summary."""
    outputs: list[Output] = []
    current, logged = "", False
    for line in lines:
        if found := DEEPSPEED.search(line):
            outputs.append(_deepspeed(collective(found[1]), int(found[2])))
        elif DEEPSPEED_LOG.search(line):
            logged = True
        elif logged and re.fullmatch(r"\s*[a-z_]+\s*", line):
            current = collective(line.strip())
            outputs.append(_deepspeed(current, None))
        elif outputs and (row := _deepspeed_row(line, logged)):
            row.what = outputs[-1].collective or "collective"
            outputs[-1].rows.append(row)
    return [_with_slip(output) for output in outputs if output.rows and output.collective]


def _deepspeed(name: str, ranks: int | None) -> Output:
    return Output("deepspeed communication benchmark", [], collective=name, n_ranks=ranks)


def _deepspeed_row(line: str, logged: bool) -> Row | None:
    if logged:
        found = DEEPSPEED_ROW.match(line)
        size, time_us, tput, busbw = (found[1], float(found[4]) * 1e3, found[5], found[6]) if found else ("", 0.0, "", "")
    else:
        found = BENCH_ROW.match(line)
        size, time_us, tput, busbw = (found[1], float(found[3]) * SECONDS[found[4]], found[5], found[6]) if found else ("", 0.0, "", "")
    if not found:
        return None
    digits = re.match(r"[\d.]+", size)
    binary = re.sub(r"([KMGTP])B$", r"\1iB", size.replace(" ", ""))  # DeepSpeed divides by 1024 and writes KB
    value = parse_bytes(binary) if digits and not binary.endswith("PiB") else None
    return Row("", bytes=value, time_us=time_us, busbw_gb_s=(number(busbw) or 0) / 8, facts={"throughput_gb_s": (number(tput) or 0) / 8})


def _with_slip(output: Output) -> Output:
    if output.collective == "all_reduce":
        words = "DeepSpeed's all_reduce throughput is 2 S / t, twice the algbw of nccl-tests; its busbw column is judged here"
        output.slips.append(Mistake(code="deepspeed_doubled", what=words))
    output.slips.append(Mistake(code="bits_for_bytes", what="DeepSpeed prints Gb/s; divided by 8 here"))
    return output
