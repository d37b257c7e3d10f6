"""Matmuls, stress tests, memory and copy bandwidth of devices, held against published figures and data sheets.

Joins hardware.catalogue with measure.judge, measure.shares and measure.published. Devices of one output are compared
with each other too: one far below the median of its peers is a finding even where no reference is known.

>>> judge(output, setting).judgement.reason
'82% of the 794.5 TFLOPS published for this part: ...'
"""

from __future__ import annotations

import re
from statistics import median

from skillserver import topics
from skillserver.errors import BadRequest
from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator
from skillserver.measure import judge as judging
from skillserver.measure import published, shares
from skillserver.measure.judge import Judgement
from skillserver.measure.outputs.records import Mistake, Output, Row
from skillserver.procedures.judged import NO_PART, ComparedWith, Judged, agreed, off, unknown
from skillserver.procedures.measured_setting import Setting

ASSUMED_DTYPE = "bf16"
QUICK_LOW = 0.70  # mamf-finder's quick line finds 70 to 90% of the best
PEERS_LOW = 0.90  # of the median: up to 5% between GPUs of a node is normal, 10% never
CACHE_BYTES = 2e8  # the default of BabelStream, 268 MB an array, is large enough
ACTION = "observe: call check_gpu_health (power limit, clocks, throttling, other processes), then measure again on an idle device"


def matmul(output: Output, setting: Setting) -> Judged:
    """mamf-finder, dcgmproftester, or a sentence about matmul FLOPS."""
    row = max(output.rows, key=lambda row: row.tflops or 0.0)
    found = _peers(output)
    if not setting.parts:
        return unknown(_no_part(setting), row=row, findings=found, topics=["mamf"])
    dtype, assumed = _dtype(output, row)
    readings = [(part.id, _matmul_of(part, dtype, row, output)) for part in setting.parts]
    judged = Judged(agreed(readings), row=row, findings=found, assumed=assumed, topics=["mamf"], compared=_matmul_reference(setting.parts[0], dtype))
    judged.mistakes = _matmul_mistakes(setting.parts[0], dtype, row, output)
    if judged.judgement.verdict == "warning":
        judged.findings.append(off("matmul_off", "matmul", judged.judgement.reason, ACTION, topics.sections("mamf")))
    return judged


def _no_part(setting: Setting) -> str:
    return f"{setting.unknown_part!r} is not in the catalogue, so there is nothing to compare with" if setting.unknown_part else NO_PART


def _dtype(output: Output, row: Row) -> tuple[str, list[str]]:
    name = str(row.facts.get("dtype") or output.dtype or "")
    try:
        return catalogue.dtype(name), []
    except BadRequest:
        return ASSUMED_DTYPE, [f"dtype {name!r} is not known: taken as {ASSUMED_DTYPE}" if name else f"dtype not given: taken as {ASSUMED_DTYPE}"]


def _published(part: Accelerator, dtype: str) -> published.Published | None:
    """fp16 and bf16 run on the same units, so one stands for the other where their peaks are equal."""
    found = published.published(part.id, dtype)
    other = {"fp16": "bf16", "bf16": "fp16"}.get(dtype)
    same = other and catalogue.peak_tflops(part, other) == catalogue.peak_tflops(part, dtype)
    return found or (published.published(part.id, other) if other and same else None)


def _matmul_of(part: Accelerator, dtype: str, row: Row, output: Output) -> Judgement:
    tflops, peak, other = row.tflops or 0.0, catalogue.peak_tflops(part, dtype), _published(part, dtype)
    if row.facts.get("units") == "vector":
        peak, other = part.vector.get(catalogue.dtype(dtype)), None
    stress = output.kind in ("dcgmproftester", "gpu-fryer", "gpu-burn")
    if stress and other and peak and tflops <= judging.ABOVE_PAPER * peak:
        return shares.of_published_burn(tflops, other.tflops)
    judged = judging.matmul(tflops, peak_tflops=peak, published_tflops=other.tflops if other else None)
    if not output.dtype and not row.facts.get("dtype") and judged.ratio and judged.ratio > judging.ABOVE_PAPER:
        return Judgement(
            verdict="unknown", reason=f"{tflops:.4g} TFLOPS is more than {dtype} can give on {part.id}, and the dtype is not said; pass it"
        )
    return _excused(judged, output)


def _excused(judged: Judgement, output: Output) -> Judgement:
    """A low figure of one shape, of few shapes or of a search that was cut need not be the device's fault."""
    single = output.kind == "sentence" and not output.facts.get("is_best")
    if judged.verdict != "warning" or judged.ratio is None or judged.ratio < QUICK_LOW or judged.ratio > 1:
        return judged
    if output.facts.get("few_shapes") or output.facts.get("partial"):
        seen = output.facts.get("shapes")
        why = f"only {seen} shapes were tried, which finds 70 to 90% of the best"
    elif single:
        why = "one shape need not be the fastest; search shapes (MAMF) before judging the device"
    elif output.facts.get("tunable_off"):
        why = "PYTORCH_TUNABLEOP_ENABLED was 0, and AMD parts need it for their best"
    else:
        return judged
    return Judgement(verdict="unknown", reason=f"{judged.reason.split(':')[0]}, but {why}", ratio=judged.ratio)


def _matmul_reference(part: Accelerator, dtype: str) -> ComparedWith | None:
    other, peak = _published(part, dtype), catalogue.peak_tflops(part, dtype)
    if other:
        what = f"best matmul measured on {part.id} ({other.software}, {other.shape})" + (f"; peak on paper {peak:g}" if peak else "")
        return ComparedWith(value=other.tflops, unit=f"TFLOPS {other.dtype} dense", basis="published", source=other.source, what=what)
    if peak:
        return ComparedWith(value=peak, unit=f"TFLOPS {dtype} dense", basis="data sheet", what=f"peak on paper of {part.id}", source=part.sources[0])
    return None


def _matmul_mistakes(part: Accelerator, dtype: str, row: Row, output: Output) -> list[Mistake]:
    tflops, peak = row.tflops or 0.0, catalogue.peak_tflops(part, dtype)
    sparse = catalogue.peak_tflops(part, dtype, sparse=True)
    if peak and sparse and peak * judging.ABOVE_PAPER < tflops <= sparse * judging.ABOVE_PAPER and dtype != "fp8":
        words = (
            f"{tflops:.4g} lies above the dense {dtype} peak {peak:g}; {sparse:g} is the 2:4 sparse figure, or another dtype or FLOP count was used"
        )
        return [Mistake(code="sparse_peak", what=words)]
    return []


def training(output: Output, setting: Setting) -> Judged:
    """TFLOPS of a training run: a share of the peak, which this tool does not judge."""
    row, peak = output.rows[0], None
    if setting.part and row.tflops:
        dtype, assumed = _dtype(output, row)
        peak = catalogue.peak_tflops(setting.part, dtype)
    if not peak or not row.tflops:
        return unknown(
            "this reads as the speed of a training run; without part and dtype its share of the peak is not known", row=row, topics=["mfu"]
        )
    if row.tflops > judging.ABOVE_PAPER * peak:
        return Judged(
            judging.matmul(row.tflops, peak_tflops=peak), row=row, topics=["mfu"], mistakes=_matmul_mistakes(setting.parts[0], dtype, row, output)
        )
    words = f"{row.tflops:.4g} TFLOPS is {row.tflops / peak:.0%} of the dense {dtype} peak: the MFU of a run, or its HFU if recomputation is counted"
    compared = ComparedWith(value=peak, unit=f"TFLOPS {dtype} dense", basis="data sheet", what="peak on paper", source=setting.parts[0].sources[0])
    return unknown(f"{words}; what is good depends on model and scale", row=row, compared=compared, assumed=assumed, topics=["mfu"],
                   next="estimate_gpu_hours(mfu=...) or read the mfu section")  # fmt: skip


def stress(output: Output, setting: Setting) -> Judged:
    """gpu-burn and gpu-fryer: errors and peers decide; the speed is judged only where precision and part are known."""
    rows = [row for row in output.rows if row.tflops]
    slowest = min(rows, key=lambda row: row.tflops or 0.0, default=None)
    found = _peers(output)
    if not output.facts.get("computed") or slowest is None:
        return unknown("no GPU computed anything, so OK means nothing: look for an initialisation error above", row=slowest, findings=found)
    judged = unknown("")
    if setting.parts and output.dtype in ("bf16", "fp8", "fp16"):
        judged = matmul(Output(output.kind, [slowest], dtype=output.dtype), setting)
        judged.findings += found
    judged.row, judged.topics = slowest, ["mamf", "gpu_throttling"]
    if output.kind == "gpu-burn":
        return _burn_verdict(judged, output, found)
    if judged.judgement.verdict == "unknown" and not found and not output.alarms and len(rows) > 1:
        judged.judgement = Judgement(
            verdict="ok", reason=f"{len(rows)} GPUs within {1 - PEERS_LOW:.0%} of each other, none throttled; " + _speed_note(judged)
        )
    return judged


def _burn_verdict(judged: Judged, output: Output, found: list[judging.Finding]) -> Judged:
    judged.skipped.append("absolute speed: gpu-burn is no benchmark; use run_mamf")
    judged.compared = None
    judged.findings = found
    if output.facts.get("finished"):
        judged.judgement = Judgement(verdict="ok", reason=f"no wrong result on {len(output.rows)} GPUs until the end")
    else:
        judged.judgement = Judgement(verdict="unknown", reason="no wrong result so far, but the end (GPU 0: OK ...) is not shown")
    return judged


def _speed_note(judged: Judged) -> str:
    return judged.judgement.reason or "absolute speed not judged"


def _peers(output: Output) -> list[judging.Finding]:
    """Devices far below the median of at least three."""
    rows = [row for row in output.rows if row.tflops and row.subject]
    if len(rows) < 3 or len({row.what for row in rows}) > 1:
        return []
    middle = median(row.tflops or 0.0 for row in rows)
    slow = [row for row in rows if (row.tflops or 0.0) < PEERS_LOW * middle]
    if not slow:
        return []
    evidence = [f"{row.subject}: {row.tflops:.4g} of {middle:.4g} TFLOPS" for row in slow[:4]]
    return [judging.Finding(code="slower_than_peers", severity="warning", subject=", ".join(row.subject for row in slow), evidence=evidence,
                            reason="More than 10% below the median of the node: every synchronous job waits for it.", action=ACTION,
                            sections=topics.sections("gpu_throttling"))]  # fmt: skip


def memory(output: Output, setting: Setting) -> Judged:
    """STREAM and BabelStream, or a sentence about memory bandwidth: the triad (else the best kernel) against the data sheet."""
    rows = [row for row in output.rows if row.gb_s]
    if not rows:
        return unknown("no bandwidth is shown", topics=["memory_bandwidth"])
    row = next((row for row in rows if row.what == "triad"), max(rows, key=lambda row: row.gb_s or 0.0))
    if not setting.parts:
        reason = NO_PART if not setting.unknown_part else f"{setting.unknown_part!r} is not in the catalogue"
        if output.kind == "STREAM":
            reason = "a CPU's memory rate is not in the catalogue: compare with channels x MT/s x 8 bytes; 75 to 90% of that is normal"
        return unknown(reason, row=row, topics=["memory_bandwidth"])
    part, size = setting.parts[0], output.facts.get("array_bytes")
    judged = Judged(agreed([(each.id, shares.of_link(row.gb_s or 0.0, each.memory_bandwidth_gb_s, "memory")) for each in setting.parts]), row=row,
                    topics=["memory_bandwidth"], compared=ComparedWith(value=part.memory_bandwidth_gb_s, unit="GB/s", basis="data sheet",
                    what=f"memory of {part.id}", source=part.sources[0]))  # fmt: skip
    if size and size < CACHE_BYTES:
        judged.mistakes.append(
            Mistake(code="too_small", what=f"arrays of {size / 1e6:.4g} MB may live in the cache; use at least {CACHE_BYTES / 1e6:.0f} MB")
        )
        judged.judgement = Judgement(verdict="unknown", reason=f"{judged.judgement.reason}; the arrays are small enough for a cache")
    if judged.judgement.verdict == "warning":
        judged.findings.append(off("memory_off", "memory", judged.judgement.reason, ACTION, topics.sections("memory_bandwidth")))
    return judged


def stated_figures(text: str, parts: list[Accelerator], output: Output) -> list[Mistake]:
    """Data-sheet totals that a sentence holds against the measurement: both directions added, or 2:4 sparsity."""
    numbers = {float(found.replace(",", "")) for found in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)}
    told = []
    for part in parts[:1]:
        total, dtype = part.link_stated_total_gb_s, catalogue.dtype(output.dtype) if output.dtype in catalogue.DTYPES else "bf16"
        sparse = part.sparse.get(dtype)
        if total and total in numbers and any(row.gb_s or row.busbw_gb_s for row in output.rows):
            words = f"{total:g} GB/s adds both directions of {part.id}'s links; one way is {part.link_each_way_gb_s:g}, and benchmarks report one way"
            told.append(Mistake(code="duplex_total", what=words))
        if sparse and any(abs(number / sparse - 1) < 0.003 for number in numbers if number > 50) and any(row.tflops for row in output.rows):
            told.append(
                Mistake(
                    code="sparse_peak", what=f"{sparse:g} TFLOPS is the 2:4 sparse peak of {part.id}; dense {dtype} is {part.tensor.get(dtype, 0):g}"
                )
            )
    return told
