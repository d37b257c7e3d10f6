"""Results of node health checks (LBNL NHC with Azure's tests, `node | Healthy` lists) -> one outcome a node and check.

A line that carries an Xid is left to the kernel-log parser. What a check means stands in data/health_outcomes.toml; a
check that nobody knows is shown as it is.

>>> parse("paste", "node-9 | ERROR: nhc: Health check failed: check_gpu_count: Expected 8 GPUs, found 7").outcomes[0].place
'node-9'
"""

from __future__ import annotations

import re

from skillserver.health.reading import Facts, Outcome

KIND = "NHC results"
LIST = re.compile(r"^\s*([\w.-]+)\s+\|\s+(Healthy\b.*|ERROR:.*)$")
FAILED = re.compile(r"(?:^|[^|\w])(?:(\S+):\s+)?(?:ERROR:?\s+)?nhc(?:\[\d+\])?:\s+Health check failed:\s*(.*)$", re.I)
CHECK = re.compile(r"^\s*((?:check|nv)_\w+)")
GPU = re.compile(r"\b(?:GPU(?: id)?|device)\s?(\d+)\b", re.I)


def parse(source: str, text: str) -> Facts | None:
    """One outcome a line; None without one."""
    if "nhc" not in text.lower() and "| Healthy" not in text and "| ERROR:" not in text:
        return None
    outcomes = [one for line in text.splitlines() if len(line) < 1000 and (one := _outcome(source, line))]
    return Facts(outcomes=outcomes, judged=True) if outcomes else None


def _outcome(source: str, line: str) -> Outcome | None:
    listed, failed = LIST.match(line), FAILED.search(line)
    if not listed and not failed:
        return None
    node = listed[1] if listed else (failed[1] or "" if failed else "")
    said = failed[2] if failed else listed[2] if listed else ""
    if "Xid (" in said:
        return None
    if listed and said.startswith("Healthy"):
        return Outcome(source, "nhc", "node", "pass", node, line.strip())
    check = found[1] if (found := CHECK.match(said)) else "check"
    gpu = f"GPU {number[1]}" if (number := GPU.search(said)) else ""
    place = " ".join(part for part in (node if node.upper() not in ("ERROR", "NHC") else "", gpu) if part)
    return Outcome(source, "nhc", check, "fail" if failed else "missing", place or "the host", line.strip()[:300])
