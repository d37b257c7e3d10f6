"""What node_parts.py measured -> a row, findings and numbers to keep for each part.

Joins the catalogue, the published figures and the limits of measure/ with the runs. A short run is held against what one
hot shape gives, not against the best that a long search finds. Devices of one node are compared with each other too.
Wrong bits are the one thing that needs no reference.

>>> [one.row.part for one in measured({"parts": {"bandwidth": {"runs": [...]}}, "skipped": {}}, ["memory"], ["cpu"])]
['memory']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skillserver import topics
from skillserver.findings import Finding
from skillserver.hardware import catalogue
from skillserver.measure import history, judge, published, shares, storage_needs
from skillserver.measure.history import Metric
from skillserver.measure.judge import Judgement
from skillserver.procedures import collective_runs, copy_references, judged_runs
from skillserver.procedures.copy_references import NO_REFERENCE, part_of
from skillserver.procedures.node_row import Row, Told, judged, skipped

Document = dict[str, Any]
STEP_OF = {"memory": "bandwidth", "transfers": "bandwidth", "peers": "bandwidth", "correctness": "bandwidth"}
IN_MEMORY = ("tmpfs", "ramfs")
OBSERVE = "observe: call check_gpu_health on it (power limit, clocks, throttling, other processes), then measure it alone"
SUSPECT = "drain_rma: take the node out of use, repeat the test, run dcgmi diag -r 3, and return the part with the evidence when it repeats"


def measured(payload: Document, parts: list[str], devices: list[str]) -> list[Told]:
    """One Told for each part asked for, in that order."""
    return [_part(part, payload, devices) for part in parts]


def _part(part: str, payload: Document, devices: list[str]) -> Told:
    if why := payload.get("skipped", {}).get(part):
        return Told(skipped(part, why))
    runs = payload.get("parts", {}).get(STEP_OF.get(part, part), {}).get("runs")
    if not runs:
        return Told(skipped(part, "the run was ended before this part" if payload.get("partial") else "nothing was measured"))
    failures = [(place, run["failure"]) for place, run in enumerate(runs) if run.get("failure")]
    if why := (runs[0].get("result") or {}).get("skipped", {}).get(part) if part in STEP_OF else "":
        return Told(skipped(part, why))
    lacking = part == "storage" or devices == ["cpu"]  # GPUs that are here and that torch cannot use are no lack but a fault
    if lacking and len(failures) == len(runs) and all(one.get("kind") in ("not_here", "bad_request") for _, one in failures):
        return Told(skipped(part, str(failures[0][1].get("message"))))
    told = READERS[part]([run.get("result") or {} for run in runs], devices)
    return _with_failures(told, failures, devices if part == "matmul" else [STEP_OF.get(part, part)])


def _with_failures(told: Told, failures: list[tuple[int, Document]], names: list[str]) -> Told:
    found = [Finding(code="part_failed", severity="warning", subject=names[place], evidence=[f"{one.get('code')}: {one.get('message')}"],
                     reason="This part of the test did not end as it should, so the device or the software under it is not cleared.",
                     action="observe: pass the words to explain_error; call check_gpu_health, then repeat this part alone",
                     sections=topics.sections("gpu_diagnostics"))
             for place, one in failures]  # fmt: skip
    if not found:
        return told
    worst = told.row.verdict if told.row.verdict == "critical" else "warning"
    note = "; ".join([*([told.row.note] if told.row.note else []), found[0].evidence[0]])
    return Told(told.row.model_copy(update={"verdict": worst, "note": note}), [*told.findings, *found], told.metrics)


def _values(row: Row, metrics: dict[str, Metric], n: int | None = None) -> Row:
    """The row with the lowest and highest of its numbers."""
    if not metrics:
        return row
    values = [one.value for one in metrics.values()]
    return row.model_copy(update={"value": _digits(min(values)), "unit": next(iter(metrics.values())).unit, "n": n or len(values),
                                  "high": _digits(max(values)) if len(values) > 1 else None})  # fmt: skip


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _slow_ones(metrics: dict[str, Metric], what: str) -> list[Finding]:
    """Devices or pairs below their neighbours; one that is faster slows nobody down."""
    strange = history.odd({name: one.value for name, one in metrics.items()})
    return [Finding(code="device_outlier", severity="warning", subject=name.split()[-1],
                    evidence=[f"{what}: {metrics[name].value:.4g} {metrics[name].unit}, {share:+.0%} of the median of {len(metrics)}"],
                    reason="It is slower than its equals in this node, and every synchronous job would wait for it.", action=OBSERVE,
                    sections=topics.sections("odd_node"))
            for name, share in strange.items() if share < 0]  # fmt: skip


def _below(part: str, judgements: list[Judgement], topic: str) -> list[Finding]:
    """One finding for all devices that a reference calls slow."""
    low = [one.reason for one in judgements if one.verdict == "warning"]
    if not low:
        return []
    return [Finding(code=f"{part}_off", severity="warning", subject=part, evidence=list(dict.fromkeys(low))[:4], count=len(low),
                    reason="The number does not fit what healthy parts show.", action=OBSERVE, sections=topics.sections(topic))]  # fmt: skip


def matmul(runs: list[Document], devices: list[str]) -> Told:
    """Short searches, one a device, all at once."""
    metrics, found, judgements = {}, [], []
    for device, run in zip(devices, runs, strict=False):
        if not run.get("best"):
            continue
        metrics[f"matmul {run['dtype']} {device}"] = Metric(value=run["best"]["tflops"], unit="TFLOPS")
        own = [Finding(**one) for one in judged_runs.matmul(run)["findings"] if one["code"] != "matmul_off"]
        judged_one = judge.excused(_short_matmul(run), own)
        judgements.append(judged_one)
        found += [
            one.model_copy(
                update={"subject": one.subject if device == "cpu" else device, "severity": "info" if one.code == "unsteady" else one.severity}
            )
            for one in own
        ]
    found += [*_slow_ones(metrics, "matmul"), *_below("matmul", judgements, "mamf")]
    return Told(_values(judged("matmul", found, judgements), metrics), found, metrics)


def _short_matmul(run: Document) -> Judgement:
    """Against the published best where there is one: a short search finds at least one hot shape."""
    tflops, part = run["best"]["tflops"], part_of(run.get("device_name", ""))
    peak = catalogue.peak_tflops(part, run["dtype"]) if part else (run.get("peak") or {}).get("tflops")
    other = published.published(part.id, run["dtype"]) if part else None
    if other and not (peak and tflops > judge.ABOVE_PAPER * peak):
        return shares.of_published_burn(tflops, other.tflops)
    judgement = judge.matmul(tflops, peak_tflops=peak)
    if part is None and judgement.verdict == "warning":  # the peak of a CPU is worked out, and a search of seconds finds no best shape there
        return Judgement(
            verdict="unknown",
            reason=f"{judgement.ratio or 0:.0%} of the peak worked out for this CPU; too short a search to judge it by",
            ratio=judgement.ratio,
        )
    return judgement


def memory(runs: list[Document], devices: list[str]) -> Told:
    """STREAM triad of each device against its memory rate on paper."""
    metrics, found, judgements = {}, judge.circumstances(runs[0].get("conditions") or {}, on_cpu=devices == ["cpu"]), []
    for device, one in (runs[0].get("memory") or {}).items():
        if one.get("correct") is False:
            found.append(_wrong(device, ["the triad left wrong numbers in memory"]))
        if not one.get("triad"):
            continue
        metrics[f"memory triad {device}"] = Metric(value=one["triad"]["gb_s"], unit="GB/s")
        part = part_of(runs[0]["devices"][device])
        judgements.append(NO_REFERENCE if one.get("cached") else copy_references.judge(one["triad"]["gb_s"], copy_references.memory(part)))
    found += [*_slow_ones(metrics, "memory triad"), *_below("memory", judgements, "memory_bandwidth")]
    return Told(_values(judged("memory", found, judgements), metrics), found, metrics)


def transfers(runs: list[Document], devices: list[str]) -> Told:
    """Pinned copies between host and device against the PCIe generation of the part."""
    metrics, found, judgements = {}, [], []
    for device, one in (runs[0].get("transfers") or {}).items():
        if one.get("correct") is False:
            found.append(_wrong(device, ["what came back from the device differs from what was sent"]))
        part = part_of(runs[0]["devices"][device])
        for way in ("to_device", "to_host"):
            if rate := one.get(f"{way}_pinned"):
                metrics[f"{way} pinned {device}"] = Metric(value=rate["gb_s"], unit="GB/s")
                judgements.append(copy_references.judge(rate["gb_s"], copy_references.pcie(part)))
    for way in ("to_device", "to_host"):
        found += _slow_ones({name: one for name, one in metrics.items() if name.startswith(way)}, f"{way} pinned")
    found += _below("transfers", judgements, "pcie_link")
    return Told(_values(judged("transfers", found, judgements), metrics, len(runs[0].get("transfers") or {})), found, metrics)


def peers(runs: list[Document], devices: list[str]) -> Told:
    """Copies between every two accelerators, against NVLink where the part has it."""
    rows = [row for row in runs[0].get("peers") or [] if row.get("rate")]
    metrics = {f"peer copy {row['from']}>{row['to']}": Metric(value=row["rate"]["gb_s"], unit="GB/s") for row in rows}
    found = [_wrong(f"{row['from']} to {row['to']}", ["the copy differs from what was sent"]) for row in rows if row.get("correct") is False]
    found += _slow_ones(metrics, "peer copy")
    judgements = [
        copy_references.judge(row["rate"]["gb_s"], copy_references.nvlink(part_of(runs[0]["devices"][row["from"]]), row.get("direct")))
        for row in rows
    ]
    found += _below("peers", judgements, "nvlink_faults")
    row = _values(judged("peers", found, judgements), metrics)
    lowest = {"peer copy lowest": Metric(value=min(one.value for one in metrics.values()), unit="GB/s")} if metrics else {}
    return Told(row, found, lowest)


def correctness(runs: list[Document], devices: list[str]) -> Told:
    """Products whose every bit is known, repeated."""
    rows = [(device, row) for device, all_rows in (runs[0].get("correctness") or {}).items() for row in all_rows]
    rounded = {dtype for dtype in {row["dtype"] for _, row in rows} if _is_systematic([row for _, row in rows if row["dtype"] == dtype])}
    found = [_wrong(device, [_in_words(row)]) for device, row in rows if row["wrong_rounds"] and row["dtype"] not in rounded]
    found += [_rounding(dtype, next(row for _, row in rows if row["dtype"] == dtype)) for dtype in sorted(rounded)]
    rounds = sum(row["rounds"] for _, row in rows)
    note = f"every product of whole numbers equal to the last bit: {', '.join(dict.fromkeys(row['dtype'] for _, row in rows))}"
    row = judged("correctness", found, [], fine=rounds > 0, note=found[0].evidence[0] if found else note)
    return Told(row.model_copy(update={"value": sum(row["wrong_rounds"] for _, row in rows), "unit": "wrong products", "n": rounds}), found)


def _in_words(row: Document) -> str:
    return (f"{row['wrong_rounds']} of {row['rounds']} {row['dtype']} products of {row['size']} differ, "
            f"{row['wrong_elements']} elements; {row['first']}")  # fmt: skip


def _is_systematic(rows: list[Document]) -> bool:
    """The same number of wrong elements in every round on every device: arithmetic by design rather than a fault of one part."""
    each = {row["wrong_elements"] / row["rounds"] for row in rows if row["rounds"]}
    return len(each) == 1 and each != {0.0} and all(row["wrong_rounds"] == row["rounds"] for row in rows)


def _rounding(dtype: str, row: Document) -> Finding:
    return Finding(code="inexact_kernel", severity="warning", subject=f"{dtype} matmul", evidence=[_in_words(row)],
                   reason="Every product on every device differs in the same number of places: a library whose kernel rounds where none should, "
                   "or a fault that all of them share; this test cannot tell which.",
                   action="observe: repeat it with another torch (python=) and on a node known to be good",
                   sections=topics.sections("silent_corruption"))  # fmt: skip


def _wrong(subject: str, evidence: list[str]) -> Finding:
    return Finding(code="wrong_result", severity="critical", subject=subject, evidence=evidence,
                   reason="The device gave wrong bits where every right answer is the same; training on it would be silently wrong.",
                   action=SUSPECT, sections=topics.sections("silent_corruption"))  # fmt: skip


def all_reduce(runs: list[Document], devices: list[str]) -> Told:
    """The collective over all devices, at the largest size that was reached."""
    rows = runs[0].get("rows") or []
    if not rows:
        return Told(skipped("all_reduce", "no size was measured"))
    told, largest = collective_runs.collective(runs[0]), max(rows, key=lambda row: row["bytes"])
    found = [Finding(**one) for one in told["findings"]]
    name = f"all_reduce {runs[0]['nproc']} ranks {runs[0]['backend']} {largest['bytes']} bytes"
    metrics = {name: Metric(value=largest["busbw_gb_s"], unit="GB/s busbw")}
    row = Row(part="all_reduce", verdict=told["verdict"], note=f"{runs[0]['backend']}, {largest['bytes'] / 2**20:g} MiB: {told['reason']}")
    return Told(_values(row, metrics, runs[0]["nproc"]), found, metrics)


def storage(runs: list[Document], devices: list[str]) -> Told:
    """One stream into a folder and back; a low figure of one stream does not condemn a file system."""
    one = runs[0]
    if not one.get("bytes"):
        return Told(skipped("storage", "nothing was written"))
    kind = one.get("file_system") or "unknown file system"
    rates = {"write": one["write_gb_s"], "read": one["read_gb_s"]}
    metrics = {f"storage {way} {kind}": Metric(value=rate, unit="GB/s") for way, rate in rates.items() if rate}
    found = []
    if one.get("wrong_blocks"):
        found.append(Finding(code="storage_wrong", severity="critical", subject=one["folder"],
                             evidence=[f"{one['wrong_blocks']} blocks of {one['block_bytes']} bytes differ from what was written"],
                             reason="The folder gives back other bytes than it took.", action="drain_rma: keep data off it; check the disk and its "
                             "file system, repeat the test", sections=topics.sections("storage_needs")))  # fmt: skip
    note = f"{kind}, {one['bytes'] / 2**20:g} MiB, one stream: write with fsync {rates['write']:.3g}, read {rates['read'] or 0:.3g} GB/s"
    note += "" if one.get("past_page_cache") else " (perhaps from the page cache)"
    row = judged("storage", found, [] if kind in IN_MEMORY else _one_stream(rates), note=f"{note}: this is memory" if kind in IN_MEMORY else note)
    return Told(_values(row, metrics).model_copy(update={"n": 1}), found, metrics)


def _one_stream(rates: dict[str, float | None]) -> list[Judgement]:
    """Only what is enough counts: the needs are of many streams."""
    told = [storage_needs.judge(storage_needs.need_for(way, 2**23), iops=None, gb_s=rate, in_flight=1, medium="") for way, rate in rates.items()]
    return told if all(one.verdict == "ok" for one in told) else []


READERS: dict[str, Callable[[list[Document], list[str]], Told]] = {
    "matmul": matmul, "memory": memory, "transfers": transfers, "peers": peers, "correctness": correctness,
    "all_reduce": all_reduce, "storage": storage}  # fmt: skip
