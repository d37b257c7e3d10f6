"""Output of nccl-tests and rccl-tests, text and -J JSON -> rows of out-of-place and in-place figures.

Reads every collective and every version of the table: with and without the root column, with per-iteration columns,
with time stamps, cut off anywhere. Columns are told apart by type and count, so a paste without its header reads too.
Ranks, hosts and device names come from the `Rank` lines, else the ranks follow from busbw / algbw.

>>> read(["  1073741824  268435456  float  sum  -1  4052.6  264.95  463.66  0  4050.1  265.1  463.9  0"])[0].n_ranks
8
"""

from __future__ import annotations

import json
import re
from typing import Any

from skillserver.measure.outputs.records import Mistake, Output, Row, collective, factor, number, ranks_of

KIND = "nccl-tests"
NAME = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|sendrecv|gather|scatter|hypercube)_perf\b")
RANK = re.compile(r"^#?\s*Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$")
HEAD = re.compile(r"nThread\s+\d+.*minBytes")
OPTION = re.compile(r"(warmup iters|agg iters|iters|validation|graph): *(\d+)")
BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)")
AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")
STAMP = re.compile(r"^\d{4}-\d\d-\d\d$|^\d\d:\d\d:\d\d$")
TYPE = re.compile(r"^(?:u?int\d+|half|float|double|bfloat16|f8e\dm\d\w*|fp8\w*|char|int|uint|long|float\d*|float8\w*)$")
REDUCTIONS = ("sum", "prod", "min", "max", "avg", "all", "mulsum", "none")
LATENCY_BYTES = 2**20


def read(lines: list[str]) -> list[Output]:
    """One Output a table; several tests in one paste are told apart by their headers."""
    blocks: list[list[str]] = [[]]
    has_rows = False
    for line in lines:
        if has_rows and (HEAD.search(line) or "Collective test starting" in line or (NAME.search(line) and "concluded" not in line)):
            blocks.append([])
            has_rows = False
        has_rows = has_rows or bool(_row(line.split()))
        blocks[-1].append(line)
    return [found for block in blocks if (found := _block(block))]


def _block(lines: list[str]) -> Output | None:
    text = "\n".join(lines)
    rows = [row for line in lines for row in _row(line.split())]
    average = AVERAGE.search(text)
    if not rows and not average:
        return None
    name = NAME.search(text)
    ranks = {int(found[1]): (found[2], found[3]) for line in lines if (found := RANK.match(line))}
    repeated = sum(bool(RANK.match(line)) for line in lines) > len(ranks) > 0
    output = Output(KIND, rows, facts={"repeated_ranks": repeated})
    output.collective = collective(name[1]) if name else _guessed(rows)
    output.facts["gather_or_all_to_all"] = not name and output.collective == "all_gather"  # their rows look alike
    output.device = next((device for _, device in ranks.values()), "")
    output.n_nodes = len({host for host, _ in ranks.values()}) or None
    output.n_ranks = _ranks(len(ranks), output)
    if "  error " in text and "#wrong" not in text:  # older versions print a deviation there, no count
        for row in rows:
            row.wrong = None
    if average:
        output.facts["average_busbw_gb_s"] = float(average[1])
    output.facts |= {key.replace(" ", "_"): int(value) for key, value in OPTION.findall(text)}
    if bounds := BOUNDS.search(text):
        output.facts["out_of_bounds"] = int(bounds[1])
    return _finished(output)


def _row(tokens: list[str]) -> list[Row]:
    """[out-of-place, in-place] of a line of the table, or []."""
    tokens = [token for token in tokens if not STAMP.match(token)]
    if len(tokens) < 6 or not tokens[0].isdigit() or not tokens[1].isdigit() or not TYPE.match(tokens[2]):
        return []
    rest, redop = tokens[3:], ""
    if rest[0] in REDUCTIONS:
        redop, rest = rest[0], rest[1:]
    root = rest.pop(0) if len(rest) % 4 == 1 and re.fullmatch(r"-?\d+", rest[0]) else None
    if len(rest) not in (4, 8, 16):
        return []
    step = 8 if len(rest) == 16 else 4
    places = ("out-of-place", "in-place") if len(rest) > 4 else ("",)
    groups = [rest[at : at + 4] for at in range(0, len(rest), step)]
    return [row for group, place in zip(groups, places, strict=True) if (row := _figures(tokens, redop, root, group, place))]


def _figures(tokens: list[str], redop: str, root: str | None, group: list[str], place: str) -> Row | None:
    time_us, algbw, busbw, wrong = map(number, group)
    if time_us is None or algbw is None or busbw is None:
        return None
    facts = {"dtype": tokens[2], "redop": redop, "root": root}
    counted = None if wrong is None or "e-" in group[3] or group[3] == "0e+00" else int(wrong)
    return Row("", place=place, bytes=int(tokens[0]), time_us=time_us, algbw_gb_s=algbw, busbw_gb_s=busbw, wrong=counted, facts=facts)


def _largest(rows: list[Row]) -> Row | None:
    useful = [row for row in rows if row.algbw_gb_s and row.algbw_gb_s > 1]
    return max(useful, key=lambda row: row.bytes or 0, default=None)


def _guessed(rows: list[Row]) -> str:
    """The collective that reduction, root and busbw / algbw tell; "" when several would fit."""
    row = _largest(rows)
    if row is None or row.algbw_gb_s is None or row.busbw_gb_s is None:
        return ""
    ratio, reduces = row.busbw_gb_s / row.algbw_gb_s, row.facts["redop"] not in ("none", "")
    rooted = row.facts["root"] not in (None, "-1")
    if reduces:
        return "reduce" if rooted else "reduce_scatter" if ratio < 0.99 else "all_reduce"
    return "broadcast" if rooted and ratio > 0.99 else "all_gather" if not rooted and ratio < 0.99 else ""


def _ranks(listed: int, output: Output) -> int | None:
    row = _largest(output.rows)
    if row and row.algbw_gb_s and row.busbw_gb_s:
        told = ranks_of(output.collective, row.busbw_gb_s / row.algbw_gb_s)
        if told and (not listed or abs(factor(output.collective, listed) - row.busbw_gb_s / row.algbw_gb_s) > 0.01):
            return told
    return listed or None


def _finished(output: Output) -> Output:
    """Names on the rows, and the slips that the text itself shows."""
    for row in output.rows:
        row.what = output.collective or "collective"
        row.facts = {key: row.facts[key] for key in ("dtype",) if key in row.facts}
    facts = output.facts
    if facts.get("warmup_iters") == 0 or facts.get("iters", 20) < 3:
        seen = f"{facts.get('warmup_iters', '?')} warm-up and {facts.get('iters', '?')} timed iterations"
        output.slips.append(
            Mistake(code="first_iterations", what=f"{seen}: the first ones build channels and are several times slower; use -w 5 -n 20")
        )
    if output.n_ranks == 1 or facts.get("repeated_ranks"):
        words = (
            "every process ran alone (built without MPI?): busbw of one rank is 0 by definition; build with MPI=1, or use -g for the GPUs of one node"
        )
        output.slips.append(Mistake(code="one_rank", what=words))
    if facts.get("validation") == 0:
        output.skipped.append("whether results were right: the run had validation off (-c 0)")
    return output


def read_json(document: dict[str, Any]) -> Output | None:
    """The file that -J writes; None when it is another program's."""
    config, results = document.get("config"), document.get("results")
    if not isinstance(config, dict) or not isinstance(results, list) or "nthreads" not in config:
        return None
    devices = [device for device in config.get("devices") or [] if isinstance(device, dict)]
    arguments = " ".join(map(str, document.get("args") or []))
    name = NAME.search(arguments) or NAME.search(json.dumps(results[:1]))
    output = Output(KIND, [row for result in results for row in _json_rows(result)])
    output.collective = collective(name[1]) if name else _guessed(output.rows)
    output.device = str(devices[0].get("device_info", "")) if devices else ""
    output.n_nodes = len({device.get("hostname") for device in devices}) or None
    listed = max(len(devices), int(config["nthreads"]) * int(config.get("ngpus") or 1))  # built without MPI it lists one device only
    output.n_ranks = _ranks(listed, output)
    output.facts = {"warmup_iters": config.get("warmup_iters", 1), "iters": config.get("iterations", 20), "validation": config.get("validation", 1)}
    output.facts |= {"out_of_bounds": (document.get("out_of_bounds") or {}).get("count", 0), "environment": document.get("env") or []}
    if average := (document.get("average_bus_bandwidth") or {}).get("bandwidth"):
        output.facts["average_busbw_gb_s"] = average
    return _finished(output)


def _json_rows(result: dict[str, Any]) -> list[Row]:
    rows = []
    for key, place in (("out_of_place", "out-of-place"), ("in_place", "in-place")):
        found = result.get(key)
        if isinstance(found, dict) and isinstance(found.get("bus_bw"), int | float):
            wrong = found.get("nwrong")
            facts = {"dtype": result.get("type"), "redop": result.get("redop", ""), "root": str(result.get("root", "")).strip()}
            counted = int(wrong) if isinstance(wrong, int | float) else None
            rows.append(Row("", place=place, bytes=result.get("size"), time_us=found.get("time", found.get("cpu_time")),
                            algbw_gb_s=found.get("alg_bw"), busbw_gb_s=found["bus_bw"], wrong=counted, facts=facts))  # fmt: skip
    return rows
