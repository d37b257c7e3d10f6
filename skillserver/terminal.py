"""Results for people: a verdict line, findings, tables, key and value; progress on stderr. Knows no tool by name.

Everything drawn here is in the JSON document too; nothing is computed. `--json` bypasses this module.

>>> show({"verdict": "ok", "gpu_hours": {"low": 1.0, "expected": 2.0, "high": 4.0}})
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from skillserver.progress import Listener
from skillserver.units import show_count

COLOURS = {"ok": "green", "done": "green", "info": "cyan", "warning": "yellow", "running": "yellow", "unknown": "magenta",
           "critical": "red", "failed": "red", "cancelled": "magenta", "lost": "red"}  # fmt: skip
FIRST = ("state", "verdict", "summary")
LAST = ("conditions", "assumptions", "samples_file", "sections", "skipped", "next", "job_id")  # after the numbers, which people came for
COMMANDING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
WIDE = 60  # characters of a list or dict that still fit beside its name


def console(*, stderr: bool = False) -> Console:
    """A console that never colours a pipe and never wraps words away there."""
    return Console(stderr=stderr, highlight=False, soft_wrap=not stderr)


def show(document: dict[str, Any]) -> None:
    """Print one result."""
    out, document = console(), printable(document)
    names = [
        *(name for name in FIRST if name in document),
        *(name for name in document if name not in FIRST + LAST),
        *(n for n in LAST if n in document),
    ]
    for name in names:
        _field(out, name, document[name])


def printable(value: Any) -> Any:
    """The same without characters that command a terminal (escapes, backspaces, changes of direction): logs, servers and files may hold any."""
    if isinstance(value, str):
        return COMMANDING.sub(lambda found: found[0].encode("unicode_escape").decode(), value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value


def _field(out: Console, name: str, value: Any) -> None:
    if value is None or value == [] or value == {} or value == "":
        return
    if name == "findings":
        for finding in value:
            _finding(out, finding)
    elif name == "causes":
        for cause in value:
            _cause(out, cause)
    elif name == "checks" and isinstance(value[0], dict):
        for check in value:
            _check(out, check)
    elif isinstance(value, list) and isinstance(value[0], dict):
        _rows(out, name, value)
    elif isinstance(value, list):
        out.print(Text(f"{name}:", style="bold"))
        for item in value:
            out.print(f"  - {plain(item)}", markup=False)
    elif isinstance(value, dict) and not _is_interval(value) and len(plain(value)) > WIDE:
        out.print(Text(f"{name}:", style="bold"))
        for key, item in value.items():
            if isinstance(item, list) and item and all(isinstance(row, dict) for row in item):
                _rows(out, f"{name}: {key}", item)
            elif item not in (None, "", [], {}):
                out.print(f"  {key}: {plain(item)}", markup=False)
    else:
        out.print(Text.assemble((f"{name}: ", "bold"), (plain(value), COLOURS.get(str(value), ""))))


def _is_interval(value: dict[str, Any]) -> bool:
    return {"low", "expected", "high"} <= set(value)


def plain(value: Any) -> str:
    """One value on one line: numbers with thousands commas, intervals as a range of three digits (more would be false precision)."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return "-" if value is None else str(value)
    if isinstance(value, float | int):
        return _number(value)
    if isinstance(value, dict) and _is_interval(value):
        expected, low, high = (_rounded(value[name]) for name in ("expected", "low", "high"))
        return f"{expected}  (80%: {low} to {high})"
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items() if item not in (None, "", [], {}))
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value)
    return json.dumps(value)


def _rounded(value: Any) -> str:
    """A bound of an interval: 82337 -> "82,300", 13.4031 -> "13.4"."""
    return plain(float(f"{value:.3g}")) if isinstance(value, int | float) else plain(value)


def _number(value: float) -> str:
    """1234.5 -> "1,234" (whole numbers stay whole); from a hundred million on as people say them: "7B", "9.11e+22"."""
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    if abs(value) >= 1e8:
        return show_count(value)
    if isinstance(value, int) and value < 10_000:  # years, ports, steps
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 or isinstance(value, int) else f"{value:.4g}"


def _finding(out: Console, finding: dict[str, Any]) -> None:
    severity, count = finding["severity"], finding.get("count", 1)
    head = f"{severity.upper()} {finding['code']}"
    out.print(Text.assemble((head, COLOURS.get(severity, "")), f"  {finding['subject']}", f"  (x{count})" if count > 1 else ""))
    out.print(f"  {finding['reason']}", markup=False)
    for line in finding.get("evidence", []):
        out.print(f"  > {line}", markup=False, style="dim")
    out.print(f"  do: {finding['action']}", markup=False)
    if finding.get("confirm"):
        out.print(f"  confirm: {plain(finding['confirm'])}", markup=False)
    if finding.get("sections"):
        out.print(f"  read: {', '.join(finding['sections'])}", markup=False)


def _cause(out: Console, cause: dict[str, Any]) -> None:
    role = cause.get("role", "")
    out.print(
        Text.assemble(
            (f"{cause['id']}", "red" if role == "culprit" else "yellow"), f"  {cause['title']}  [{role}, confidence {plain(cause['confidence'])}]"
        )
    )
    for name, mark in (("evidence", ">"), ("reading", "="), ("checks", "check:"), ("remedy", "do:")):
        for line in cause.get(name) or []:
            out.print(f"  {mark} {plain(line)}", markup=False, style="dim" if name == "evidence" else None)
    if cause.get("sections"):
        out.print(f"  read: {', '.join(cause['sections'])}", markup=False)


def _check(out: Console, check: dict[str, Any]) -> None:
    mark, colour = ("ok     ", "green") if check["ok"] else ("missing", "yellow")
    out.print(Text.assemble((mark, colour), f"  {check['name']}: {check['found']}"))
    if check["next"]:
        out.print(f"         do: {check['next']}", markup=False)


def _rows(out: Console, name: str, rows: list[dict[str, Any]]) -> None:
    """A table, or a list where a cell holds a sentence that a column would break into syllables."""
    columns = _columns(rows)
    widths = [max(len(key), *(len(plain(row.get(key))) for row in rows)) for key in columns]
    if sum(widths) + 3 * len(widths) <= out.width:
        _table(out, name, rows)
        return
    out.print(Text(f"{name}:", style="bold"))
    for row in rows:
        first, *rest = [(key, plain(row[key])) for key in columns if row.get(key) not in (None, [], {}, "")]
        head = f"{first[0]} {first[1]}" if isinstance(row[first[0]], int | float) else first[1]
        out.print(f"  - {head}: " + "; ".join(f"{key} {value}" for key, value in rest), markup=False)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """The keys of all rows that hold something, in order: only some rows have an error."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if any(row.get(key) not in (None, [], {}, "") for row in rows)]


def _table(out: Console, name: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=name, title_justify="left", show_edge=False, pad_edge=False, title_style="bold")
    columns = _columns(rows)
    for column in columns:
        value = next(row[column] for row in rows if row.get(column) not in (None, [], {}, ""))
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(row.get(column))) for column in columns))
    out.print(table)


@contextmanager
def bar(title: str) -> Iterator[Listener]:
    """A progress bar on stderr while a call runs; silent when stderr is no terminal."""
    screen = console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    ) as progress:
        task = progress.add_task(title, total=None)

        async def listener(done: float, total: float | None, message: str) -> None:
            progress.update(task, completed=done, total=total, description=f"{title}: {message}"[:90])

        yield listener
