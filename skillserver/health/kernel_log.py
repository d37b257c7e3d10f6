"""Xid and SXid lines of a kernel log -> events, whatever printed them: dmesg, syslog, journal, /dev/kmsg, a report.

Reads `NVRM: Xid (PCI:0000:9b:00): 79, ...`, the old form without `PCI:`, the MIG form with `GPU-I:05`, domains above 0,
and `SXid (PCI:...): 20034, Fatal, ...`; the `Data {...}` lines of an SXid repeat it and are left out. Moments are
compared only within one clock. Does not judge, and does not know other drivers' lines (see texts.py).

>>> parse("paste", "[12.5] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7, Contained").events[0].mig
'05'
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime

from skillserver.health.reading import Event, Facts, Unjudged, normal_pci

KIND = "kernel log (dmesg, journalctl -k, syslog) with NVRM or nvswitch lines"
XID = re.compile(r"\b(S?)Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?:\s+GPU-I:([0-9a-fA-F]+))?\):?\s*(\d+)\b,?\s*(.*)")
PLUGIN = re.compile(r"\bXid=(\d+) on Device=(\S+?)[,;]?(?:\s|$)")  # the Kubernetes device plugin
ROUTINE = re.compile(r"loading NVIDIA|persistence mode|Persistenced|GPU at PCI|Serial Number|tainting kernel|RPC history|"
                     r"entry function|GSP_RM_|GSP_INIT|^\s*-?\d+ +\d|^Initialized|^Enabling|bug-report|crash dump", re.I)  # fmt: skip
LOADED = re.compile(r"loading NVIDIA UNIX", re.I)
KERNEL_SECONDS = re.compile(r"\[\s*(\d+\.\d+)\]")
KMSG = re.compile(r"^\d+,\d+,(\d+),")
CTIME = re.compile(r"\b(?:[A-Z][a-z]{2} )?([A-Z][a-z]{2}) +(\d+) (\d\d:\d\d:\d\d)(?: (\d{4}))?")
ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:?\d\d)?")
TROUBLE = re.compile(r"fail|error|timeout|timed out|assert|lost|fatal|corrupt", re.I)
HARMLESS = re.compile(r"loading NVIDIA|RPC history|entry function|GSP_RM_|GSP RPC|GSP_INIT|rpc_rcRpc|^\s*NVRM:\s+-?\d+ |GPU at PCI|Serial Number|"
                      r"tainting kernel|\bXid\b|Dumping|\[<|crashcat|Call Trace|\bPost_event|nvgpu_", re.I)  # fmt: skip
SHOWN = 3
LONGEST_LINE = 4000


def parse(source: str, text: str) -> Facts | None:
    """Events of the log; None when the driver never speaks in it."""
    if "Xid" not in text and "NVRM:" not in text and "nvidia-nvswitch" not in text:
        return None
    events: list[Event] = []
    spoke = False
    unknown: Counter[str] = Counter()
    for line in text.splitlines():
        if "Xid" in line and (event := _event(source, line[:LONGEST_LINE])):
            events.append(event)
        elif "NVRM:" in line:
            said = line.split("NVRM:", 1)[1].strip()[:120]
            spoke = spoke or bool(ROUTINE.search(said))
            if LOADED.match(said) and events:
                events.append(Event(source, "load", 0, None, line.strip()[:LONGEST_LINE], "", *moment_of(line)))
            if TROUBLE.search(line) and not HARMLESS.search(line):
                unknown[said] += 1
        elif "Xid=" in line and (found := PLUGIN.search(line)):
            events.append(Event(source, "xid", int(found[1]), None, line.strip()[:LONGEST_LINE], f"on {found[2]}", *moment_of(line)))
    if not events and not spoke and not unknown:
        return None
    facts = Facts(events=[event for event in events if not _repeats(event)], judged=bool(events) or (spoke and not unknown))
    if unknown and not events:
        first = "; ".join(list(unknown)[:SHOWN])
        facts.unjudged.append(Unjudged(source, f"{sum(unknown.values())} driver lines without an Xid that look like trouble: {first}"))
    return facts


def _event(source: str, line: str) -> Event | None:
    found = XID.search(line)
    if not found:
        return None
    clock, moment = moment_of(line)
    number = int(found[4])
    kind = "sxid" if found[1] else "xid"
    return Event(source, kind, number, normal_pci(found[2].rstrip(":")), line.strip(), found[5].strip(), clock, moment, found[3] or "")


def _repeats(event: Event) -> bool:
    """The lines after an SXid carry its registers or its severity again, not another event."""
    return event.kind == "sxid" and bool(re.match(r"Data \{|Severity \d", event.text))


def moment_of(line: str) -> tuple[str | None, float | None]:
    """(clock, seconds): a name for the kind of clock, and the time on it. (None, None) without a stamp."""
    if found := KMSG.match(line):
        return "kernel", int(found[1]) / 1e6
    if found := KERNEL_SECONDS.search(line):
        return "kernel", float(found[1])
    if found := ISO.search(line):
        zone = (found[4] or "+00:00").replace("Z", "+00:00")
        seconds = _seconds(f"{found[1]} {found[2]} {zone}", "%Y-%m-%d %H:%M:%S %z")
        return ("wall", seconds + float(f"0.{found[3] or 0}")) if seconds is not None else (None, None)
    if found := CTIME.search(line):
        seconds = _seconds(f"{found[4] or 2000} {found[1]} {found[2]} {found[3]} +0000", "%Y %b %d %H:%M:%S %z")
        return ("local" if found[4] else "yearless", seconds) if seconds is not None else (None, None)
    return None, None


def _seconds(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).astimezone(UTC).timestamp()
    except ValueError:
        return None
