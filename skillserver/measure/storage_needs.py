"""Which of the three IO needs of training a storage figure speaks to, and whether it is plausible for its medium.

Knows data/storage_needs.toml and data/storage_media.toml. A low figure with few requests in flight says nothing of the
storage (one synchronous reader gets 1 / latency), so it is not judged; a figure that the medium's latency cannot give
with any usual queue depth came from a cache.

>>> judge(need_for("read", 4096), iops=350_000.0, gb_s=1.43, in_flight=None, medium="nfs").verdict
'unknown'
"""

from __future__ import annotations

from typing import Literal

from skillserver import tables
from skillserver.measure.judge import Judgement

ENOUGH_IN_FLIGHT = 64
ONE_WRITER = 1
SMALL = 16384


class StorageNeed(tables.Record):
    """What one need asks: fine from `ok_from`, slow below `poor_below`, in `metric`."""

    id: str
    title: str
    way: Literal["read", "write"]
    metric: Literal["gb_s", "iops", "files_s"]
    smallest_block: int
    ok_from: float
    poor_below: float
    derived: str
    source: str


class StorageMedium(tables.Record):
    """What a kind of storage can give one client."""

    id: str
    title: str
    latency_ms: float
    most_gb_s: float
    most_in_flight: int
    least_read_gb_s: float | None = None
    note: str
    source: str


def need_for(way: str, block_bytes: int | None) -> StorageNeed:
    """The need that reads or writes of that block size imitate; large blocks when the size is not known."""
    small = block_bytes is not None and block_bytes <= SMALL
    rows = tables.load("storage_needs.toml", StorageNeed)
    return next(row for row in rows if row.way == way and row.metric == ("iops" if small else "gb_s"))


def need(name: str) -> StorageNeed:
    """The need of that id."""
    return next(row for row in tables.load("storage_needs.toml", StorageNeed) if row.id == name)


def judge_files(need: StorageNeed, files_s: float) -> Judgement:
    """Files a second of one process, one after the other, against their need."""
    said, ratio = f"{files_s:,.0f} files/s", files_s / need.ok_from
    if ratio >= 1:
        return Judgement(verdict="ok", reason=f"{said} serve {need.title} ({need.ok_from:,g} are enough: {need.derived})", ratio=ratio)
    if files_s < need.poor_below:
        return Judgement(verdict="warning", reason=f"{said} are slow for {need.title}: {need.derived}", ratio=ratio)
    words = f"{said} lie between {need.poor_below:,g} (slow) and {need.ok_from:,g} (enough) for {need.title}: {need.derived}"
    return Judgement(verdict="unknown", reason=words, ratio=ratio)


def medium(name: str) -> StorageMedium | None:
    """The medium of that id; None for another."""
    return next((row for row in tables.load("storage_media.toml", StorageMedium) if row.id == name), None)


def judge(need: StorageNeed, *, iops: float | None, gb_s: float | None, in_flight: int | None, medium: str) -> Judgement:
    """One figure against its need. Raises nothing: without the metric it is unknown."""
    value = iops if need.metric == "iops" else gb_s
    if value is None:
        return Judgement(
            verdict="unknown", reason=f"{need.title} is judged by {'operations' if need.metric == 'iops' else 'bandwidth'}, not given here"
        )
    if doubt := implausible(iops, gb_s, in_flight, medium):
        return Judgement(verdict="unknown", reason=doubt)
    unit = "IOPS" if need.metric == "iops" else "GB/s"
    said = f"{value:,.0f} {unit}" if need.metric == "iops" else f"{value:.3g} {unit}"
    if value >= need.ok_from:
        return Judgement(verdict="ok", reason=f"{said} serves {need.title} ({need.ok_from:,g} is enough: {need.derived})", ratio=value / need.ok_from)
    if need.metric == "iops" and (in_flight or 0) < ENOUGH_IN_FLIGHT:
        seen = "an unknown number of" if in_flight is None else f"only {in_flight}"
        words = (
            f"{said} with {seen} requests in flight tells latency, not what the storage can do; use iodepth x numjobs of at least {ENOUGH_IN_FLIGHT}"
        )
        return Judgement(verdict="unknown", reason=words, ratio=value / need.ok_from)
    if value < need.poor_below:
        return Judgement(verdict="warning", reason=f"{said} is slow for {need.title}: {need.derived}", ratio=value / need.ok_from)
    words = f"{said} lies between {need.poor_below:,g} (slow) and {need.ok_from:,g} (enough) for {need.title}; it depends on the job: {need.derived}"
    return Judgement(verdict="unknown", reason=words, ratio=value / need.ok_from)


def implausible(iops: float | None, gb_s: float | None, in_flight: int | None, name: str) -> str:
    """Why the medium cannot have given this to one client; "" when it can."""
    kind = medium(name)
    if kind is None:
        return ""
    if gb_s and gb_s > kind.most_gb_s:
        return f"{gb_s:.3g} GB/s is more than {kind.title} gives ({kind.note}): was it the page cache? direct=1 bypasses it"
    needed = iops * kind.latency_ms / 1e3 if iops else 0.0
    allowed = in_flight or kind.most_in_flight
    if needed > allowed:
        flying = f"only {in_flight} were" if in_flight else "such a queue is unusual"
        return (
            f"{iops:,.0f} IOPS on {kind.title} need at least {needed:,.0f} requests in flight ({kind.note}), and {flying}: "
            "was it the client's page cache? Repeat with direct=1 and more data than memory"
        )
    return ""


def slow_for(gb_s: float | None, way: str, block_bytes: int | None, in_flight: int | None, name: str) -> str:
    """Why a sequential read is slow for its own medium; "" when it is not, or too little was in flight."""
    kind = medium(name)
    if kind is None or kind.least_read_gb_s is None or way != "read" or gb_s is None or (block_bytes or 0) < 131072 or (in_flight or 0) < 8:
        return ""
    return f"{gb_s:.3g} GB/s is slow for {kind.title}: {kind.note}" if gb_s < kind.least_read_gb_s else ""
