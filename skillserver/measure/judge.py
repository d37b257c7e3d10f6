"""Is a measured number good? Takes numbers and what they are compared with, gives a verdict and the reason in words.

A part is judged by what the same part was measured to reach; failing that by its share of the peak on paper, and only
where that share says something. What nothing is known of is `unknown`, never `ok`. Knows no catalogue and no tool.

>>> matmul(720.0, peak_tflops=989.4, published_tflops=794.5).verdict
'warning'
>>> busbw(370.0, 2**30, low_gb_s=None, high_gb_s=None).reason
'no reference is known to compare with'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from skillserver.findings import Finding, Verdict

NEAR = 0.93  # the same part under other clocks, power limits and library versions moves by several percent
ABOVE_PAPER = 1.02
PLAIN_SHARE, POOR_SHARE = 0.70, 0.50  # published parts lie between 0.51 (MI300X) and 0.97 (Gaudi 2) of their peak
UNSTEADY = 0.05  # width of the interval over the value
FELL = 0.15  # the luckiest of a hundred looks is a few percent too high
BUSY_CORES, STOLEN = 0.3, 0.02
ALARMING = {"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"}  # a power cap is normal under matmul load
SATURATING_BYTES = 2**30  # below this a busbw says more of latency than of links
LOW_BUSBW, HIGH_BUSBW = 0.92, 1.10
# Of the typical figure. Where NVLink SHARP is the default, healthy nodes show 0.86 and more of it from 1 GiB on, the ring
# 0.72 to 0.86 (H200 8 GPUs: 367 of 480; 7: 366 of 435; B200 8: 682 of 840; ML Engineering network chapter).
SLOWER_PATH = 0.85
SWITCH_MOST = 2.0  # an all-reduce in the switch sends n + 1 parts where a ring sends 2 (n - 1): 14/9 for 8 GPUs, below 2 for any number
NVLS_DTYPES = ("fp64", "fp32", "bf16", "fp16", "int64", "int32")  # ncclNvlsSupported() for sums; 8-bit kinds take the ring


class Judgement(BaseModel):
    """A verdict with its reason; `ratio` = measured over what it was compared with."""

    verdict: Verdict
    reason: str
    ratio: float | None = None


def matmul(tflops: float, *, peak_tflops: float | None, published_tflops: float | None = None) -> Judgement:
    """A matmul speed against a published one of the same part, or the peak on paper; all TFLOPS, dense."""
    share = tflops / peak_tflops if peak_tflops else None
    if share is not None and share > ABOVE_PAPER:
        words = f"{share:.0%} of the peak cannot be: the reference part or the clock that the peak assumes is wrong"
        return Judgement(verdict="warning", reason=words, ratio=share)
    if published_tflops:
        return _against_published(tflops, published_tflops)
    if share is None:
        return Judgement(verdict="unknown", reason="no reference is known to compare with")
    return _against_paper(share)


def _against_published(tflops: float, published: float) -> Judgement:
    ratio = tflops / published
    words = f"{ratio:.0%} of the {published:g} TFLOPS published for this part"
    if ratio >= NEAR:
        return Judgement(verdict="ok", reason=words, ratio=ratio)
    return Judgement(verdict="warning", reason=f"{words}: look at power limit, clocks, temperature, other processes, library versions", ratio=ratio)


def _against_paper(share: float) -> Judgement:
    if share >= PLAIN_SHARE:
        return Judgement(verdict="ok", reason=f"{share:.0%} of the peak on paper; no measured figure of this part is known", ratio=share)
    if share >= POOR_SHARE:
        words = f"{share:.0%} of the peak on paper; some parts reach no more, others 90%, and no measured figure of this one is known"
        return Judgement(verdict="unknown", reason=words, ratio=share)
    return Judgement(verdict="warning", reason=f"{share:.0%} of the peak on paper is less than any healthy part is known to reach", ratio=share)


def busbw(busbw_gb_s: float, size_bytes: int, *, low_gb_s: float | None, high_gb_s: float | None) -> Judgement:
    """The busbw of the largest size against the range that healthy nodes showed; GB/s = 10^9 bytes a second."""
    if not low_gb_s or not high_gb_s:
        return Judgement(verdict="unknown", reason="no reference is known to compare with")
    ratio, span = busbw_gb_s / low_gb_s, f"the {low_gb_s:g} to {high_gb_s:g} GB/s of healthy nodes"
    if busbw_gb_s > HIGH_BUSBW * high_gb_s:
        return Judgement(
            verdict="warning", reason=f"{busbw_gb_s:.4g} GB/s is above {span}: is this the part, and the size, that it is compared with?", ratio=ratio
        )
    if ratio >= 1.0:
        return Judgement(verdict="ok", reason=f"{busbw_gb_s:.4g} GB/s lies in {span}", ratio=ratio)
    if size_bytes < SATURATING_BYTES:
        words = f"{busbw_gb_s:.4g} GB/s at {size_bytes} bytes is below {span}, but links are full only from about 1 GiB"
        return Judgement(verdict="unknown", reason=words, ratio=ratio)
    if ratio >= LOW_BUSBW:
        return Judgement(verdict="ok", reason=f"{busbw_gb_s:.4g} GB/s is {ratio:.0%} of the lower end of {span}", ratio=ratio)
    return Judgement(verdict="warning", reason=f"{busbw_gb_s:.4g} GB/s is {ratio:.0%} of the lower end of {span}", ratio=ratio)


def node_busbw(busbw_gb_s: float, size_bytes: int, *, low_gb_s: float, high_gb_s: float, typical_gb_s: float, path: str, ring: bool) -> Judgement:
    """`busbw` inside one node, and whether the node took its default path: the one rule for our runs and for others' outputs.

    The links of a node at ring speed are fine, and yet its all-reduce runs a quarter slower than such nodes do by default, in
    training as well: a warning, unless `ring` says that a setting or a dtype without in-switch sums asked for it.
    """
    judged = busbw(busbw_gb_s, size_bytes, low_gb_s=low_gb_s, high_gb_s=high_gb_s)
    share = busbw_gb_s / typical_gb_s
    if judged.verdict != "ok" or size_bytes < SATURATING_BYTES or share >= SLOWER_PATH or ring:
        return judged
    words = f"{busbw_gb_s:.4g} GB/s is {share:.0%} of the {typical_gb_s:g} GB/s of the default path ({path})"
    return Judgement(verdict="warning", reason=words, ratio=share)


def ring_forced(environment: Mapping[str, str], dtype: str = "") -> bool:
    """Whether ring figures are to be expected: NVLink SHARP switched off, the ring chosen, or a dtype it cannot add."""
    algorithm = str(environment.get("NCCL_ALGO", "")).lower().removeprefix("allreduce:")
    chosen = algorithm.startswith("ring") and "nvls" not in algorithm
    return environment.get("NCCL_NVLS_ENABLE") == "0" or chosen or bool(dtype and dtype not in NVLS_DTYPES)


def past_the_wire(busbw_gb_s: float, one_way_gb_s: float, collective: str) -> str:
    """What it means that a busbw inside a node is above the links' rate in one direction; "" when it is not."""
    share = busbw_gb_s / one_way_gb_s
    if share <= 1.0:
        return ""
    said = f"{busbw_gb_s:.4g} GB/s of busbw is {share:.0%} of the {one_way_gb_s:g} GB/s that the links carry one way"
    if collective == "all_reduce" and share <= SWITCH_MOST:
        return f"{said}: the switch adds (NVLink SHARP, NVLS), so less crosses the links than busbw's ring formula counts; no wire speed"
    if collective == "send_recv" and share <= 2.0:
        return f"{said}: both directions were added up, or the pair is on one GPU or in one memory"
    return f"{said}, which cannot be: algbw or size miscounted, both directions added, another part, or data that never left a cache"


def circumstances(conditions: dict[str, object], *, on_cpu: bool) -> list[Finding]:
    """Findings about what was going on while it was measured; `conditions` as the workers record them."""
    found = []
    if others := conditions.get("other_processes"):
        found.append(_disturbed("GPU", [f"other processes: {', '.join(map(str, _listed(others)))}"]))
    cores, stolen = _number(conditions, "other_cpu_cores"), _number(conditions, "steal_share")
    if on_cpu and cores > BUSY_CORES:
        found.append(_disturbed("CPU", [f"other processes kept {cores:.2g} cores busy"]))
    if stolen > STOLEN:
        found.append(_disturbed("CPU", [f"the hypervisor took {stolen:.1%} of the time"]))
    return found + _throttled(conditions.get("gpu"))


def excused(judged: Judgement, found: list[Finding]) -> Judgement:
    """A low number of a disturbed measurement says nothing of the part: unknown, with the reason; any other stands."""
    disturbed = [finding.code for finding in found if finding.code in ("not_alone", "unsteady", "not_repeatable")]
    if not disturbed or judged.verdict != "warning" or judged.ratio is None or judged.ratio >= 1:
        return judged
    share = judged.reason.split(":")[0].split(" is less than")[0]
    return Judgement(
        verdict="unknown", reason=f"{share}, but the measurement was disturbed, so this is a lower bound and not judged", ratio=judged.ratio
    )


def _disturbed(subject: str, evidence: list[str]) -> Finding:
    return Finding(code="not_alone", severity="warning", subject=subject, evidence=evidence,
                   reason="Somebody else used the device during the measurement, so the number is a lower bound.",
                   action="observe: measure again when the device is idle")  # fmt: skip


def _throttled(gpu: object) -> list[Finding]:
    reasons = set(map(str, _listed(gpu.get("throttle_reasons")))) if isinstance(gpu, dict) else set()
    if not reasons & ALARMING:
        return []
    return [Finding(code="throttled", severity="warning", subject="GPU", evidence=[f"clock held back by {', '.join(sorted(reasons))}"],
                    reason="The GPU slowed itself down by heat or by its power supply; it will do so in training as well.",
                    action="observe: call check_gpu_health, look at cooling and power")]  # fmt: skip


def steadiness(value: float, low: float, high: float, unit: str) -> list[Finding]:
    """A finding when the interval of a value is too wide to compare it with anything."""
    if value <= 0 or (high - low) / value <= UNSTEADY:
        return []
    seen = f"interval {low:.4g} to {high:.4g} around {value:.4g} {unit}"
    return [Finding(code="unsteady", severity="warning", subject="measurement", evidence=[seen],
                    reason=f"The rounds differ by more than {UNSTEADY:.0%}: clocks that move, or a neighbour.",
                    action="observe: measure longer on an idle device")]  # fmt: skip


def repeatable(first: float | None, again: float, unit: str) -> list[Finding]:
    """A finding when the winner was much faster while it was looked for than when it was measured again."""
    if not first or again >= (1 - FELL) * first:
        return []
    seen = f"the winner gave {first:.4g} {unit} when it was found and {again:.4g} when it was measured again"
    return [Finding(code="not_repeatable", severity="warning", subject="measurement", evidence=[seen],
                    reason="More than luck explains: the clock fell, or somebody else came.",
                    action="observe: measure longer on an idle device")]  # fmt: skip


def wrong_result(subject: str, evidence: list[str]) -> Finding:
    """The arithmetic or the collective gave a wrong answer."""
    return Finding(code="wrong_result", severity="critical", subject=subject, evidence=evidence,
                   reason="The device returned a wrong answer; training on it would be silently wrong.",
                   action="observe: repeat it; when it happens again take the node out of use and run the vendor's diagnostics")  # fmt: skip


def _listed(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else []


def _number(conditions: dict[str, object], name: str) -> float:
    value = conditions.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
