"""`dcgmi diag` results, table or JSON -> outcomes: one for each test that failed or warned, with the GPUs it names.

The table wraps its cells in the middle of words; they are joined before they are read. Tests that passed or were
skipped count as judged and give nothing. What a failed test means stands in data/health_outcomes.toml.

>>> [(one.name, one.status) for one in parse("paste", '{"DCGM Diagnostic": {...}}').outcomes]
[('persistence_mode', 'fail')]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from skillserver.health import documents
from skillserver.health.fields import snake
from skillserver.health.reading import Facts, Outcome, Unjudged

KIND = "dcgmi diag (table or JSON)"
ROW = re.compile(r"^\|\s?(.*?)\s*\|\s?(.*?)\s*\|?\s*$")
WIDEST = 200
STATUS = re.compile(r"\b(Pass|Fail|Warn|Skip|Error)\b(?:\s*-\s*((?:GPUs?: [\d, ]+|All)))?", re.I)
TABLE = re.compile(
    r"dcgmi diag|^\| Diagnostic\s|^\|-+\s*(?:Deployment|Hardware|Integration|Stress|Metadata)|^\|[^\n|]{3,40}\|\s?(?:Pass|Fail|Warn|Skip)\b", re.M
)
DOCUMENT = re.compile(r'"DCGM[\w ]{0,20}Diagnostic"')
HARDWARE = re.compile(r"^\|\s?(?:PCIe|GPU Memory|Memory|SM Stress)\b|^[|+]-+\s*(?:Hardware|Integration|Stress)", re.M)


def parse(source: str, text: str) -> Facts | None:
    """Outcomes of a diagnostic run, or None when there is none."""
    if "|" not in text or not TABLE.search(text):
        return None
    rows = list(_rows(text))
    outcomes = [one for row in rows for one in _row(source, *row)]
    if not outcomes:
        return None
    facts = Facts(outcomes=outcomes, judged=True)
    if not HARDWARE.search(text) and all(one.status in ("pass", "skip") for one in outcomes):
        facts.unjudged.append(Unjudged(source, "the table ends before the hardware tests: only deployment was judged"))
    return facts


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """(test, whole cell), wrapped lines joined as they were cut. A Warning or Error row goes with the test above it."""
    key = ""
    cells: list[str] = []
    for line in text.splitlines():
        found = ROW.match(line) if len(line) < WIDEST else None
        if not found or "-----" in line or "=====" in line or (found[1], found[2]) == ("Diagnostic", "Result"):
            continue
        if found[1] and found[1] != "Warning":
            if key:
                yield key, "".join(cells)
            key, cells = found[1], [found[2]]
        else:
            joint = "\n" if found[1] or STATUS.match(found[2]) else ""
            cells.append(joint + line.split("|")[2][1:].rstrip() if line.count("|") > 1 else joint + found[2])
    if key:
        yield key, "".join(cells)


def _row(source: str, test: str, cell: str) -> Iterator[Outcome]:
    name = snake(test)
    if name in ("error", "info"):
        if name == "error":
            yield _outcome(source, name, "error", "", cell)
        return
    for found in STATUS.finditer(cell):
        yield _outcome(source, name, found[1].lower(), found[2] or "", cell)


def _outcome(source: str, name: str, status: str, place: str, cell: str) -> Outcome:
    named = place if place and place != "All" else next(iter(re.findall(r"\bGPU \d+", cell)), "")
    return Outcome(source, "dcgm", name, status, named.replace(" ,", ",").strip(" ,"), f"{name}: {' '.join(cell.split())}"[:300])


def parse_json(source: str, text: str) -> Facts | None:
    """The same of `dcgmi diag -j`."""
    if not DOCUMENT.search(text):
        return None
    try:
        run = next(value for one in documents.found(text) if isinstance(one, dict) for key, value in one.items() if "Diagnostic" in key)
        if "test_categories" not in run and isinstance(run.get("runtime_error"), str):
            return Facts(outcomes=[Outcome(source, "dcgm", "diag", "error", "", f"diag: {run['runtime_error']}"[:300])], judged=True)
        tests = [(test["name"], result) for group in run["test_categories"] for test in group["tests"] for result in test["results"]]
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        return Facts(unjudged=[Unjudged(source, "the JSON of dcgmi diag is cut or of a form that is not known; expected dcgmi diag -j whole")])
    outcomes = [
        Outcome(
            source,
            "dcgm",
            snake(str(name)),
            str(result.get("status", "")).lower(),
            _gpu(result),
            f"{name}: {result.get('status')} {_said(result)}".strip(),
        )
        for name, result in tests
    ]
    return Facts(outcomes=outcomes, judged=bool(outcomes))


def _gpu(result: dict[str, Any]) -> str:
    gpu = result.get("gpu_id", result.get("gpu_ids", result.get("entity_id")))
    return f"GPU {gpu}" if gpu not in (None, "") else ""


def _said(result: dict[str, Any]) -> str:
    words = result.get("warnings") or result.get("info") or ""
    return str(words)[:200] if words else ""
