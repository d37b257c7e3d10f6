"""What storage_bench.py measured -> the three IO needs of training judged apart, one verdict, and the numbers to keep.

Rows of fio are read by the same parser and held against the same needs as pasted output of fio. What was read or written
inside memory, or came through the page cache, is never called fit. One client was measured: what a file system gives to
many at once is not in these numbers.

>>> answer({"folder": "/scratch", "rows": [...], "files": {...}})[0]["needs"][0]["verdict"]
'ok'
"""

from __future__ import annotations

from typing import Any

from skillserver import findings, topics
from skillserver.findings import Finding
from skillserver.measure import storage_needs
from skillserver.measure.history import Metric
from skillserver.measure.judge import Judgement
from skillserver.measure.outputs import fio
from skillserver.measure.outputs.records import Row
from skillserver.procedures import judged_runs, judged_storage, kept_runs
from skillserver.units import show_bytes

Document = dict[str, Any]
TOOL = "run_storage_bench"
IN_MEMORY = ("tmpfs", "ramfs")
MEDIA = {"nfs": "nfs", "nfs4": "nfs", "lustre": "parallel", "gpfs": "parallel", "wekafs": "parallel", "beegfs": "parallel", "ceph": "parallel",
         "fuse.gcsfuse": "object", "fuse.s3fs": "object", "fuse.mountpoint-s3": "object", "fuse.goofys": "object"}  # fmt: skip
HINTS = {
    "nfs": "NFS: one server for all clients, a round trip for each open; nconnect, rsize and wsize decide what one client gets",
    "lustre": "Lustre: a file lies on as many targets as its stripe count says (lfs getstripe -d FOLDER); large files want lfs setstripe -c 8",
    "overlay": "overlay: a container's own layer; on its host this is another file system, and the data ends with the container",
    "tmpfs": "tmpfs: this is memory, not storage, and counts against the job's RAM; nothing here is judged",
    "ramfs": "ramfs: this is memory, not storage; nothing here is judged",
}
NEED_OF = {"random read 64k": "data_loading", "sequential read": "data_loading", "sequential write": "checkpoints", "random read 4k": "small_reads",
           "random write 4k": "small_writes"}  # fmt: skip
FLUSHED = "sequential write"  # its time includes the flush, so the page cache cannot flatter it
SHORT_S = 30.0
CHECKPOINT_GB = 1000.0  # 70B parameters with Adam states
FULL_SHARE = 0.8
FALLBACK = "fio is not here: plain Python measured, at most 16 requests in flight; a low figure may be Python's own (apt install fio)"
CACHED = "this file system does not let O_DIRECT through: reads may come from the page cache"
CACHE = "data pages were dropped before cold reads, names and attributes were not (that takes root: echo 3 > /proc/sys/vm/drop_caches)"
ONE_CLIENT = "one client: what many nodes get at once, and what other users do to it meanwhile"


def shape(payload: Document) -> Document:
    """Payload -> the answer, kept for comparison when it is whole."""
    told, metrics = answer(payload)
    mount = payload.get("mount") or {}
    kept_runs.keep(TOOL, told, metrics, part=f"{mount.get('type') or 'unknown'} at {mount.get('mount') or payload.get('folder', '')}")
    return told


def answer(payload: Document) -> tuple[Document, dict[str, Metric]]:
    """What run_storage_bench answers, and its numbers by name."""
    mount = payload.get("mount") or {}
    rows = [_row(one) for one in payload.get("rows") or []]
    needs, found = _needs(payload, rows)
    found = findings.worst_first([*found, *_broken(payload), *_nearly_full(payload)])
    told = {
        "needs": needs,
        "rows": judged_runs.rounded([_shown(name, row) for name, row in rows]),
        "code": judged_runs.rounded(_code(payload)),
        "file_system": {"type": mount.get("type", ""), "mount": mount.get("mount", ""), "options": ",".join(mount.get("options", []))},
        "verdict": findings.verdict(found, judged=any(one["verdict"] != "unknown" for one in needs)),
        "reason": _reason(needs),
        "findings": [one.model_dump(exclude_defaults=True) for one in found],
        "conditions": judged_runs.rounded((payload.get("conditions") or {}) | {"worker": payload.get("worker"), "method": _method(payload)}),
        "assumptions": _assumptions(payload, needs),
        "sections": topics.sections("storage_needs", "fio", *(["file_systems"] if mount.get("type", "").startswith("nfs") else [])),
        "skipped": _skipped(payload),
        "partial": bool(payload.get("partial")),
    }
    return told, _metrics(payload, rows)


def _reason(needs: list[Document]) -> str:
    """The needs by verdict, with the figure of each that is not simply served."""
    told = []
    for verdict, words in (("warning", "slow"), ("ok", "enough"), ("unknown", "not judged, or depends on the job")):
        named = [one["need"] + ("" if verdict == "ok" or one["value"] is None else f" ({one['value']:,.4g} {one['unit']})")
                 for one in needs if one["verdict"] == verdict]  # fmt: skip
        told += [f"{words}: {', '.join(named)}"] if named else []
    return "; ".join(told)


def _row(one: Document) -> tuple[str, Row]:
    """The row of a pattern, by fio's own document or by plain Python."""
    if "fio" in one:
        output = fio.read_json(one["fio"])
        return one["name"], output.rows[0] if output and output.rows else Row(one["name"])
    facts = {"block_bytes": one["block_bytes"], "jobs": one["in_flight"], "iodepth": 1, "engine": "psync", "seconds": one["seconds"]}
    return one["name"], Row(one["way"], gb_s=one["gb_s"], iops=one["iops"], facts=facts)


def _shown(name: str, row: Row) -> Document:
    told = {"what": name, "gb_s": row.gb_s, "iops": row.iops, "p99_us": row.facts.get("p99_us"), "in_flight": judged_storage.in_flight(row)}
    return told | {"seconds": row.facts.get("seconds")}


def medium(mount: Document) -> str:
    """The kind of storage in storage_media.toml, "" when the mount does not tell."""
    if str(mount.get("source", "")).startswith("/dev/nvme"):
        return "nvme"
    return MEDIA.get(mount.get("type", ""), "")


def _needs(payload: Document, rows: list[tuple[str, Row]]) -> tuple[list[Document], list[Finding]]:
    """One line a need with the figure that speaks to it; the random read speaks for data loading where it was measured."""
    needs, found, mount = [], [], payload.get("mount") or {}
    measured = {NEED_OF[name]: (name, row) for name, row in rows if row.gb_s is not None}
    for need_id, (name, row) in measured.items():
        need = storage_needs.need(need_id)
        judged = judged_storage.judge_row(row, bool(payload.get("direct")) or name == FLUSHED, medium(mount))
        needs.append(_need(need, name, row.iops if need.metric == "iops" else row.gb_s, _unless_plain(judged.judgement, payload), mount))
        by_fio = bool((payload.get("conditions") or {}).get("fio"))
        found += [finding for finding in judged.findings if finding.code == "slow_for_medium" and by_fio]
    rates = (payload.get("files") or {}).get("rates") or {}
    for need_id, name in (("file_reads", "open_read"), ("file_creates", "create")):
        if rates.get(name):
            need = storage_needs.need(need_id)
            needs.append(_need(need, f"small files, {name}", rates[name], storage_needs.judge_files(need, rates[name]), mount))
    return needs, [*_slow(needs), *found] if mount.get("type") not in IN_MEMORY else []


def _slow(needs: list[Document]) -> list[Finding]:
    """One finding for all needs that this storage does not serve."""
    lines = [f"{one['need']}: {one['value']:,.4g} {one['unit']}, slow below {one['poor_below']:,g}" for one in needs if one["verdict"] == "warning"]
    if not lines:
        return []
    return [Finding(code="storage_slow", severity="warning", subject="storage", evidence=lines, reason="It is slower than these uses want.",
                    action=judged_storage.ACTION, sections=topics.sections("storage_needs"))]  # fmt: skip


def _need(need: storage_needs.StorageNeed, name: str, value: float | None, judgement: Judgement, mount: Document) -> Document:
    judgement = _unless_memory(judgement, mount)
    unit = {"gb_s": "GB/s", "iops": "IOPS", "files_s": "files/s"}[need.metric]
    return {"need": need.title, "verdict": judgement.verdict, "value": judged_runs.rounded(value), "unit": unit, "measured_as": name,
            "ok_from": need.ok_from, "poor_below": need.poor_below, "reason": judgement.reason, "source": need.source}  # fmt: skip


def _unless_plain(judgement: Judgement, payload: Document) -> Judgement:
    """What plain Python cannot reach is no fault of the storage."""
    if judgement.verdict != "warning" or (payload.get("conditions") or {}).get("fio"):
        return judgement
    return Judgement(verdict="unknown", reason=f"{judgement.reason}; not judged, because plain Python may be what is slow: install fio",
                     ratio=judgement.ratio)  # fmt: skip


def _unless_memory(judgement: Judgement, mount: Document) -> Judgement:
    if mount.get("type") in IN_MEMORY:
        return Judgement(verdict="unknown", reason=f"{mount['type']} is memory, not storage", ratio=judgement.ratio)
    return judgement


def _code(payload: Document) -> Document:
    """The developer's view: small files, imports, git."""
    files = payload.get("files") or {}
    told = {"small_files_per_s": files.get("rates"), "create_with_fsync_ms": files.get("fsync_ms"), "files": files.get("files")}
    told |= {"import_package": payload.get("package"), "git_status": payload.get("git"), "import_torch": _torch(payload)}
    return {name: value for name, value in told.items() if value is not None}


def _torch(payload: Document) -> Document | None:
    """Where torch lies decides whether its import says anything of this folder."""
    told = payload.get("torch")
    if not told:
        return None
    here = told["mount"] == (payload.get("mount") or {}).get("mount")
    return told | {"same_file_system": here, "reference": "1.3 s warm, 2.4 s cold on a local NVMe drive"}


def _broken(payload: Document) -> list[Finding]:
    """Patterns that failed, and files that could not be removed."""
    found = [Finding(code="io_error", severity="warning", subject=name, evidence=[words], reason="This pattern gave no result.",
                     action="observe: read the words; look at dmesg and the file system's log, then repeat it",
                     sections=topics.sections("fio")) for name, words in (payload.get("failed") or {}).items()]  # fmt: skip
    if left := payload.get("not_removed"):
        found.append(Finding(code="files_left", severity="warning", subject=payload.get("folder", ""), evidence=left[:4], count=len(left),
                             reason="Some files of the benchmark could not be removed.", action="fix_setup: remove them by hand"))  # fmt: skip
    return found


def _nearly_full(payload: Document) -> list[Finding]:
    share = payload.get("used_share") or 0.0
    if share < FULL_SHARE or (payload.get("mount") or {}).get("type") in IN_MEMORY:
        return []
    return [Finding(code="nearly_full", severity="info", subject=payload.get("folder", ""), evidence=[f"{share:.0%} of it is not free for this user"],
                    reason="Distributed file systems slow down and fail from about 80%; local ones slow down near the end.",
                    action="observe: clean up before a long run", sections=topics.sections("storage_needs"))]  # fmt: skip


def _method(payload: Document) -> Document:
    one: Document = next((one for one in payload.get("rows") or [] if "options" in one), {})
    return {"tool": (payload.get("conditions") or {}).get("fio") or "plain Python", "file_bytes": payload.get("bytes"),
            "direct": payload.get("direct"), "fio_options": one.get("options"), "seconds_each": payload.get("seconds_each"),
            "units": "GB/s = 10^9 bytes a second"}  # fmt: skip


def _assumptions(payload: Document, needs: list[Document]) -> list[str]:
    kind = (payload.get("mount") or {}).get("type", "")
    conditions = payload.get("conditions") or {}
    told = [HINTS["nfs" if kind.startswith("nfs") else kind]] if ("nfs" if kind.startswith("nfs") else kind) in HINTS else []
    told += [FALLBACK] if conditions and not conditions.get("fio") else []
    told += [CACHED] if not payload.get("direct") and payload.get("rows") and kind not in IN_MEMORY else []
    if (payload.get("seconds_each") or SHORT_S) < SHORT_S:
        told.append("patterns of less than 30 s: caches of drives and servers and burst credits flatter them; budget_s=300 or more tells more")
    if (memory := conditions.get("memory_bytes")) and (size := payload.get("bytes")) and size < memory:
        told.append(
            f"the file of {show_bytes(size)} is smaller than this host's memory ({show_bytes(memory)}), and maybe than the storage's own cache"
        )
    return [*told, *([] if kind in IN_MEMORY else _checkpoint(needs)), *([CACHE] if payload.get("files") else [])]


def _checkpoint(needs: list[Document]) -> list[str]:
    """What the write rate means for a checkpoint."""
    rate = next((one["value"] for one in needs if one["measured_as"] == FLUSHED), None)
    return [f"derived: at {rate:.3g} GB/s this one client writes the 1 TB of a 70B model with Adam in {CHECKPOINT_GB / rate:,.0f} s"] if rate else []


def _skipped(payload: Document) -> list[str]:
    told = [f"left of an earlier run: {line}" for line in payload.get("left") or []]
    told += ["the run was ended early"] if payload.get("partial") else []
    if "code" in (payload.get("parts") or []) and not payload.get("partial"):
        told += [f"{what}: {why}" for name, what, why in (("git", "git status", "git is not here"), ("torch", "import torch", "this Python has none"))
                 if not payload.get(name)]  # fmt: skip
    return [*told, ONE_CLIENT]


def _how(payload: Document) -> str:
    """What keeps a figure from being compared with one of fio past the page cache."""
    plain = "" if (payload.get("conditions") or {}).get("fio") else " by plain Python"
    return plain + ("" if payload.get("direct") else " not direct")


def _metrics(payload: Document, rows: list[tuple[str, Row]]) -> dict[str, Metric]:
    metrics = {}
    for name, row in rows:
        if row.gb_s is not None and row.iops is not None:
            large = storage_needs.need(NEED_OF[name]).metric == "gb_s"
            metrics[f"storage {name}{_how(payload)}"] = Metric(value=row.gb_s if large else row.iops, unit="GB/s" if large else "IOPS")
    rates = (payload.get("files") or {}).get("rates") or {}
    return metrics | {f"small files {name}": Metric(value=rate, unit="files/s") for name, rate in rates.items() if rate}
