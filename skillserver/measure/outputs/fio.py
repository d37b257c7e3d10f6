"""Output of fio, for people (2.x and 3.x) and JSON -> one row a direction of each reporting group.

Bandwidth in GB/s (10^9) from MiB/s, KB/s or bytes; old versions print KB/s and MB/s that are powers of 1024. Facts:
rw, block bytes, jobs, iodepth, engine, direct (None when not shown), seconds, 99th percentile of clat in us.

>>> read_text(["  read: IOPS=258k, BW=1006MiB/s (1055MB/s)(177GiB/180001msec)"])[0].rows[0].iops
258000.0
"""

from __future__ import annotations

import re
from typing import Any

from skillserver.findings import Finding
from skillserver.measure.outputs.records import Mistake, Output, Row, to_gb_s

JOB = re.compile(r"^(\S.*?): \(g=\d+\): rw=(\w+), bs=(.*?), ioengine=([\w-]+), iodepth=(\d+)")
GROUP = re.compile(r"^(\S.*?): \(groupid=\d+, jobs=(\d+)\): err=\s*(\d+)")
NEW = re.compile(r"^\s+(read|write|trim)\s*: IOPS=([\d.]+)([kMG]?), BW=([\d.]+)([KMGT]?i?B/s) .*?/(\d+)(msec|sec)\)")
OLD = re.compile(r"^\s+(read|write)\s*: io=\S+, bw=([\d.]+)([KMGT]?B/s), iops=([\d.]+)([kM]?), runt=\s*(\d+)msec")
CLAT = re.compile(r"^\s+clat percentiles \((nsec|usec|msec)\)")
P99 = re.compile(r"99\.00th=\[\s*(\d+)\]")
BLOCK = re.compile(r"([\d.]+)([KMG]?i?)B?-")
DIRECT = re.compile(r"-{0,2}\bdirect[= ](\d)")
MICROSECONDS = {"nsec": 1e-3, "usec": 1.0, "msec": 1e3}
BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
THOUSANDS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
SYNCHRONOUS = {"sync", "psync", "vsync", "pvsync", "pvsync2", "mmap"}
SHORT_S = 30


def read_text(lines: list[str]) -> list[Output]:
    """Rows of what fio prints for people; the settings come from its job lines and the command, where shown."""
    output = Output("fio", [])
    settings: dict[str, dict[str, Any]] = {}
    job, scale = "", 1.0
    for line in lines:
        if found := JOB.match(line):
            settings[found[1]] = {"rw": found[2], "block_bytes": _block(found[3]), "engine": found[4], "iodepth": int(found[5])}
        elif found := GROUP.match(line):
            job = found[1]
            settings.setdefault(job, {})["jobs"] = int(found[2])
            if found[3] != "0":
                output.alarms.append(_failed(job, f"err={found[3]}"))
        elif row := _direction(line):
            row.facts = settings.get(job, {}) | row.facts
            output.rows.append(row)
        elif found := CLAT.match(line):
            scale = MICROSECONDS[found[1]]
        elif output.rows and (found := P99.search(line)) and "p99_us" not in output.rows[-1].facts:
            output.rows[-1].facts["p99_us"] = int(found[1]) * scale
    if not output.rows:
        return []
    text = "\n".join(lines)
    direct = DIRECT.search(text)
    return [_with_slips(output, text, direct[1] == "1" if direct else None)]


def _direction(line: str) -> Row | None:
    if found := NEW.match(line):
        seconds = int(found[6]) / (1000 if found[7] == "msec" else 1)
        return Row(found[1], iops=float(found[2]) * THOUSANDS[found[3]], gb_s=to_gb_s(float(found[4]), found[5]), facts={"seconds": seconds})
    if found := OLD.match(line):
        unit = re.sub(r"^([KMGT])B", r"\1iB", found[3])  # fio 2 counted in 1024s and wrote KB/s
        return Row(found[1], iops=float(found[4]) * THOUSANDS[found[5]], gb_s=to_gb_s(float(found[2]), unit), facts={"seconds": int(found[6]) / 1000})
    return None


def _block(text: str) -> int | None:
    """4096 of "(R) 4096B-4096B, (W) ..." and of the older "4K-4K/4K-4K/4K-4K"."""
    found = BLOCK.search(text)
    return int(float(found[1]) * BINARY[found[2].lower()[:1]]) if found else None


def _failed(job: str, seen: str) -> Finding:
    return Finding(code="io_error", severity="critical", subject=job, evidence=[seen],
                   reason="fio ended with an error, so its numbers are of a broken run.",
                   action="fix_setup: read the error above it; check free space and permissions, then run it again")  # fmt: skip


def read_json(document: dict[str, Any]) -> Output | None:
    """A document of --output-format=json (or json+); None when it is another program's."""
    jobs = document.get("jobs")
    if "fio version" not in document or not isinstance(jobs, list):
        return None
    output, everywhere = Output("fio", []), document.get("global options") or {}
    for job in jobs:
        options = everywhere | (job.get("job options") or {})
        if job.get("error"):
            output.alarms.append(_failed(str(job.get("jobname", "job")), f"error {job['error']}"))
        output.rows += [row for way in ("read", "write") if (row := _json_row(way, job.get(way) or {}, options))]
    direct = str(everywhere.get("direct", next((job["job options"].get("direct") for job in jobs if job.get("job options")), "0")))
    output = _with_slips(output, "", direct == "1") if output.rows else output
    return output if output.rows or output.alarms else None


def _json_row(way: str, told: dict[str, Any], options: dict[str, Any]) -> Row | None:
    if not told.get("io_bytes") and not told.get("bw"):
        return None
    rate = told["bw_bytes"] if told.get("bw_bytes") else told["bw"] * 1024  # bw is KiB/s
    iops, rw = float(told.get("iops") or 0), str(options.get("rw", options.get("readwrite", way)))
    percentiles = (told.get("clat_ns") or {}).get("percentile") or {}
    facts: dict[str, Any] = {
        "rw": rw,
        "block_bytes": _option_bytes(options) or (round(rate / iops) if iops else None),
        "seconds": (told.get("runtime") or 0) / 1000,
    }
    facts |= {"jobs": int(options.get("numjobs", 1)), "iodepth": int(options.get("iodepth", 1)), "engine": options.get("ioengine", "")}
    if "99.000000" in percentiles:
        facts["p99_us"] = percentiles["99.000000"] / 1000
    mean = (told.get("lat_ns") or {}).get("mean")
    return Row(way, iops=iops, gb_s=rate / 1e9, latency_us=mean / 1000 if mean else None, facts=facts)


def _option_bytes(options: dict[str, Any]) -> int | None:
    """The block size as asked for: "4k", "1m", "4096"; None for a range or a default."""
    found = re.fullmatch(r"(\d+)([kmgKMG]?)(?:i?[bB])?", str(options.get("bs", options.get("blocksize", ""))))
    return int(found[1]) * BINARY[found[2].lower()] if found else None


def _with_slips(output: Output, text: str, direct: bool | None) -> Output:
    output.facts["direct"] = direct
    engines = {row.facts.get("engine") for row in output.rows}
    if direct is False:
        words = "without direct=1 fio measures the page cache, not the storage; add --direct=1"
        output.slips.append(Mistake(code="page_cache", what=words))
    if direct is None:
        output.skipped.append("whether the page cache was bypassed: the output does not show direct=1")
    if "queue depth will be capped at 1" in text or (engines & SYNCHRONOUS and any(row.facts.get("iodepth", 1) > 1 for row in output.rows)):
        words = "a synchronous engine has one request in flight whatever iodepth says; use --ioengine=libaio or io_uring"
        output.slips.append(Mistake(code="sync_engine", what=words))
    if 0 < max(row.facts.get("seconds", SHORT_S) for row in output.rows) < SHORT_S:
        words = "shorter than 30 s: caches and burst credits flatter short runs; use --time_based --runtime=120"
        output.slips.append(Mistake(code="first_iterations", what=words))
    return output
