"""`dcgmi health -c`, table or JSON -> outcomes: the state of each system (PCIe, NVLink, memory, ...) of each GPU.

The table wraps its cells; the words below a system are its reason. Healthy counts as judged. DCGM's own thresholds
are not repeated here; what a failed system means stands in data/health_outcomes.toml.

>>> parse("paste", "| Overall Health   | Healthy |").outcomes[0].status
'healthy'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from skillserver.health import documents
from skillserver.health.fields import snake
from skillserver.health.reading import Facts, Outcome

KIND = "dcgmi health"
OVERALL = re.compile(r"Overall Health[\s|:]+(Healthy|Warning|Failure|Unhealthy)", re.I)
ENTITY = re.compile(r"^(?:->\s*)?(\d+)$")
SYSTEM = re.compile(r"(?:->\s*)?([A-Za-z][A-Za-z/ ]*(?:system|Power|Thermal|Driver|Inforom|Switch\w*))$", re.I)
STATES = ("healthy", "warning", "failure", "unhealthy")


def parse(source: str, text: str) -> Facts | None:
    """Outcomes of the health table; None without one."""
    overall = OVERALL.search(text) if "Overall Health" in text else None
    if not overall:
        return None
    outcomes = list(_systems(source, text[overall.end() :]))
    if not outcomes:
        outcomes = [Outcome(source, "dcgm_health", "overall", overall[1].lower(), "", " ".join(overall[0].split()))]
    return Facts(outcomes=outcomes, judged=True)


def _systems(source: str, text: str) -> Iterator[Outcome]:
    place, kind, now, words = "", "GPU", ("", ""), ""
    for line in text.splitlines():
        if not line.startswith("|") or len(line) > 200:
            continue
        left, _, right = line.strip().strip("|").partition("|")
        left, right = left.strip(), right.strip()
        if left in ("GPU", "Switch", "NvSwitch", "CPU"):
            kind = left
        elif found := ENTITY.match(left):
            place = f"{kind} {found[1]}"
        elif right.lower() in STATES and (found := SYSTEM.match(left)):
            if now[0]:
                yield _outcome(source, place, *now, words)
            now, words = (found[1], right.lower()), ""
        elif not left and now[0]:
            words += right if len(right) > 45 else f"{right} "
    if now[0]:
        yield _outcome(source, place, *now, words)


def _outcome(source: str, place: str, system: str, state: str, words: str) -> Outcome:
    said = re.search(r"GPU (\d+)", words)
    name = snake(system).removesuffix("_system")
    line = f"{system}: {state} {' '.join(words.split())}".strip()
    return Outcome(source, "dcgm_health", name, state, place or (f"GPU {said[1]}" if said else ""), line[:300])


def parse_json(source: str, text: str) -> Facts | None:
    """The same of `dcgmi health -c -j`."""
    if '"Overall Health"' not in text:
        return None
    try:
        body = next(one["body"] for one in documents.found(text) if isinstance(one, dict) and "Overall Health" in one.get("body", {}))
        overall = str(body["Overall Health"]["value"]).lower()
        outcomes = list(_walk(source, body, "", 0))
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None
    return Facts(outcomes=outcomes or [Outcome(source, "dcgm_health", "overall", overall, "", f"Overall Health: {overall}")], judged=True)


def _walk(source: str, node: dict[str, Any], place: str, depth: int) -> Iterator[Outcome]:
    for name, child in node.items() if depth < 8 else ():
        children, value = child.get("children") or {}, str(child.get("value", "")).lower()
        here = f"GPU {name}" if name.isdigit() else place
        if name.isdigit() or not SYSTEM.match(name):
            yield from _walk(source, children, here, depth + 1)
        elif value in STATES:
            words = " ".join(str(one.get("value", "")) for one in children.values())
            yield _outcome(source, place, name, value, words)
