"""Lines of the numerics hook -> what each rank saw, in bounded memory whatever the file.

A line is a JSON object with a `rank`; several ranks may share a file, and a new `hello` of a rank begins a new attempt,
of which the last is kept. Lines that are cut, binary or of another program are counted and skipped. Knows the hook's
format (workers/scripts/numerics_hook.py); judges nothing.

>>> read([b'{"type": "hello", "rank": 0, "every": 10}']).ranks[0].every
10
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

LONGEST = 4_000_000  # bytes of a line: a scan of 50,000 modules
SCANS = 20  # the last ones of a rank
TROUBLED = 200  # passes with trouble of a rank
RECORDS = 12  # of one pass
NAMES = 20_000  # modules of a rank
RANKS = 8_192
DETAILED = 64  # ranks whose outputs are kept module by module
DEPTH = 6  # outputs before the first bad one
SAID = 20  # remarks of a rank
GIVE_UP = 5_000  # unreadable lines in a row
WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass
class Bad:
    """One non-finite value; `step` counts optimizer steps, `pass_` forward passes, both from 0."""

    pass_: int
    step: int
    where: str
    module: str
    what: str
    kind: str
    dtype: str
    module_class: str
    inputs: list[float]
    after: str
    last_clean: int | None
    scale: float | None


@dataclass
class Scan:
    """Largest absolute values of one pass; `gradient` is (value, name, dtype)."""

    pass_: int
    step: int
    outputs: dict[str, float]
    gradient: tuple[float, str, str]
    scale: float | None


@dataclass
class Rank:
    """What one rank's hook wrote in its last attempt."""

    rank: int
    starts: int = 0
    every: int = 1
    world_size: int = 1
    scaler: bool = False
    unseen: list[str] = field(default_factory=list)
    modules: dict[str, tuple[str, str, float]] = field(default_factory=dict)  # class, dtype, largest
    first_scan: Scan | None = None
    scans: deque[Scan] = field(default_factory=lambda: deque(maxlen=SCANS))
    clean_scans: int = 0
    last_pass: int = -1
    last_clean_pass: int = -1
    depth: list[tuple[str, float]] = field(default_factory=list)  # finite outputs in order, up to the first bad one
    troubled: list[list[Bad]] = field(default_factory=list)
    ranges: dict[str, tuple[float, str, float, int]] = field(default_factory=dict)  # absmax, dtype, largest, step
    harmless: list[Bad] = field(default_factory=list)


@dataclass
class Watched:
    """All ranks of the files read."""

    ranks: dict[int, Rank] = field(default_factory=dict)
    unreadable: int = 0
    gave_up: list[str] = field(default_factory=list)


def lines_of(path: Path) -> Iterator[bytes]:
    """Lines of a file, none longer than LONGEST (the rest of a longer one comes as a line of its own)."""
    with path.open("rb") as opened:
        yield from _lines(opened)


def _lines(opened: BinaryIO) -> Iterator[bytes]:
    while line := opened.readline(LONGEST):
        yield line


def read(lines: Iterable[bytes], into: Watched | None = None, name: str = "text") -> Watched:
    """Add these lines to what was read before. Stops where GIVE_UP lines in a row, or as many bytes, are not the hook's."""
    watched = into or Watched()
    strange = size = 0
    for line in lines:
        blank = not line.strip()
        if not blank and _take(watched, line):
            strange = size = 0
            continue
        watched.unreadable += not blank
        strange, size = strange + 1, size + len(line)
        if strange >= GIVE_UP or size > 16 * LONGEST:
            watched.gave_up.append(f"{name}: reading stopped after {strange:,} lines in a row that are not the hook's")
            break
    return watched


def _take(watched: Watched, line: bytes) -> bool:
    """Whether it is a line of the hook."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(row, dict) or row.get("type") not in TAKERS:
        return False
    number = _whole(row.get("rank"), -1)
    if number < 0 or (number not in watched.ranks and len(watched.ranks) >= RANKS):
        return False
    rank = watched.ranks.setdefault(number, Rank(number))
    if row["type"] == "hello":
        rank = watched.ranks[number] = Rank(number, starts=rank.starts + 1)
    TAKERS[row["type"]](rank, row)
    return True


def _hello(rank: Rank, row: dict[str, Any]) -> None:
    rank.every, rank.world_size, rank.scaler = (
        max(_whole(row.get("every"), 1), 1),
        max(_whole(row.get("world_size"), 1), 1),
        row.get("scaler") is True,
    )
    rank.unseen = [str(each)[:200] for each in _list(row.get("unseen"))[:SAID]]


def _module(rank: Rank, row: dict[str, Any]) -> None:
    if len(rank.modules) < NAMES:
        rank.modules[_text(row.get("module"))] = (_text(row.get("class")), _text(row.get("dtype")), _float(row.get("largest"), math.inf))


def _scan(rank: Rank, row: dict[str, Any]) -> None:
    outputs, given = row.get("outputs"), [*_list(row.get("gradient")), 0.0, "", ""]
    if not isinstance(outputs, dict):
        return
    values = {sys.intern(_text(name)): _float(value, math.nan) for name, value in list(outputs.items())[:NAMES]}
    scan = Scan(*_moment(row), values, (_float(given[0], 0.0), _text(given[1]), _text(given[2])), _float_or_none(row.get("scale")))
    rank.last_pass = max(rank.last_pass, scan.pass_)
    if any(trouble[0].pass_ == scan.pass_ for trouble in rank.troubled[-1:]):
        rank.depth = rank.depth or _finite_until(values)  # but nothing of growth from pass to pass
        return
    rank.last_clean_pass = max(rank.last_clean_pass, scan.pass_)
    rank.clean_scans += 1
    if rank.rank >= DETAILED:
        scan.outputs.clear()
    rank.first_scan = rank.first_scan or scan
    rank.scans.append(scan)


def _finite_until(values: dict[str, float]) -> list[tuple[str, float]]:
    """The outputs of a pass that broke, in the order of execution, before the first that is not finite."""
    pairs = list(values.items())
    end = next((place for place, (_name, value) in enumerate(pairs) if not math.isfinite(value)), 0)
    return pairs[max(end - DEPTH, 0) : end]


def _bad(rank: Rank, row: dict[str, Any]) -> None:
    bad = _record(row)
    rank.last_pass = max(rank.last_pass, bad.pass_)
    if rank.troubled and rank.troubled[-1][0].pass_ == bad.pass_:
        rank.troubled[-1] += [bad] if len(rank.troubled[-1]) < RECORDS else []
    elif len(rank.troubled) < TROUBLED:
        rank.troubled.append([bad])


def _harmless(rank: Rank, row: dict[str, Any]) -> None:
    if len(rank.harmless) < SAID:
        rank.harmless.append(_record(row))


def _range(rank: Rank, row: dict[str, Any]) -> None:
    if len(rank.ranges) < NAMES:
        rank.ranges[_text(row.get("module"))] = (_float(row.get("absmax"), 0.0), _text(row.get("dtype")), _float(row.get("largest"), math.inf),
                                                 _moment(row)[1])  # fmt: skip


def _remark(rank: Rank, row: dict[str, Any]) -> None:
    said = {"unseen": f"{_text(row.get('module')) or 'a pass'} could not be measured: {_text(row.get('why'))}",
            "full": "the file reached max_mb: later scans are missing", "stopped": "the hook ended itself after enough trouble"}  # fmt: skip
    if row["type"] in said and len(rank.unseen) < SAID:
        rank.unseen.append(said[row["type"]])


TAKERS = {"hello": _hello, "module": _module, "scan": _scan, "bad": _bad, "harmless": _harmless, "range": _range,
          "unseen": _remark, "full": _remark, "stopped": _remark, "end": _remark}  # fmt: skip


def _record(row: dict[str, Any]) -> Bad:
    last_clean = _whole(row.get("last_clean_pass"), -1)
    return Bad(
        *_moment(row), where=_text(row.get("where")), module=_text(row.get("module")), what=_text(row.get("what")), kind=_text(row.get("kind")),
        dtype=_text(row.get("dtype")), module_class=_text(row.get("class")), after=_text(row.get("after")), scale=_float_or_none(row.get("scale")),
        inputs=[_float(each, math.nan) for each in _list(row.get("inputs_absmax"))[:16]], last_clean=last_clean if last_clean >= 0 else None,
    )  # fmt: skip


def _moment(row: dict[str, Any]) -> tuple[int, int]:
    return _whole(row.get("pass"), 0), _whole(row.get("step"), 0)


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53 else default


def _float(value: Any, default: float) -> float:
    if isinstance(value, str):
        return WORDS.get(value, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return float(value) if abs(value) < 1e300 or isinstance(value, float) else math.inf


def _float_or_none(value: Any) -> float | None:
    found = _float(value, math.nan)
    return found if math.isfinite(found) else None


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
