"""Sizes, counts, durations and rates as people write them, and back.

Knows "70B", "15T", "3 days", "1.5h", "64MiB", "1GB". Does not know currencies or dates.
Counts are decimal (1K = 1,000), memory is GiB = 2^30 bytes, links are GB/s = 10^9 bytes a second.

>>> parse_count("70B"), parse_seconds("3 days"), parse_bytes("64MiB")
(70000000000.0, 259200.0, 67108864)
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator

GIB = 2**30
GB = 10**9

COUNT_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15, "q": 1e15}
COUNT_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
COUNT_WORDS_ZH = {"万": 1e4, "亿": 1e8, "万亿": 1e12}
SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "m": 60.0, "minute": 60.0, "h": 3600.0, "hr": 3600.0,
           "hour": 3600.0, "d": 86400.0, "day": 86400.0, "w": 604800.0, "week": 604800.0, "month": 2629800.0, "year": 31557600.0,
           "秒": 1.0, "分钟": 60.0, "小时": 3600.0, "天": 86400.0, "周": 604800.0, "月": 2629800.0, "年": 31557600.0}  # fmt: skip
BYTES = {"": 1, "b": 1, "k": 2**10, "kib": 2**10, "kb": 10**3, "m": 2**20, "mib": 2**20, "mb": 10**6, "g": 2**30, "gib": 2**30,
         "gb": 10**9, "t": 2**40, "tib": 2**40, "tb": 10**12}  # fmt: skip
SEEN = 40  # characters of a bad value worth repeating
NUMBER = re.compile(r"^\s*([+-]?[\d,_]*\.?\d+(?:e[+-]?\d+)?)\s*(.*?)\s*$", re.I)


def _split(text: str) -> tuple[float, str]:
    """("1.5", "GB") of "1.5 GB"; ValueError when it does not start with a number."""
    found = NUMBER.match(text)
    if not found:
        raise ValueError(f"{text[:SEEN]!r} does not start with a number")
    return float(found[1].replace(",", "").replace("_", "")), found[2].lower()


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


def parse_count(value: object) -> float:
    """A number from 70e9, "70B", "15T", "15 trillion", "1.5e12", "7亿". Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("give a number, or text such as '70B' or '15T'")
    if not isinstance(value, str):
        return _finite(float(value))
    number, unit = _split(value)
    unit = re.sub(r"\s*(tokens?|params?|parameters?|flops?)$", "", unit)
    for table in (COUNT_SUFFIXES, COUNT_WORDS, COUNT_WORDS_ZH):
        if unit in table:
            return _finite(number * table[unit])
    raise ValueError(f"{value[:SEEN]!r} ends in no count suffix; use K, M, B, T or a plain number")


def parse_seconds(value: object) -> float:
    """Seconds from 90, "90s", "1.5h", "3 days", "2天". A bare number is seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("give seconds, or text such as '90s', '1.5h' or '3 days'")
    if not isinstance(value, str):
        return _finite(float(value))
    number, unit = _split(value)
    factor = SECONDS.get(unit or "s") or SECONDS.get(unit.removesuffix("s"))
    if factor is None:
        raise ValueError(f"{value[:SEEN]!r} has no known time unit; use ms, s, min, h, days or weeks")
    return _finite(number * factor)


def parse_bytes(value: object) -> int:
    """Bytes from 4096, "64MiB", "1GB" (10^9), "8M" (2^20, as nccl-tests means it). Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("give bytes, or text such as '64MiB' or '1GB'")
    if not isinstance(value, str):
        return int(_finite(float(value)))
    number, unit = _split(value)
    if unit not in BYTES:
        raise ValueError(f"{value[:SEEN]!r} has no known size unit; use B, KiB, MiB, GiB, KB, MB or GB")
    return int(_finite(number * BYTES[unit]))


Count = Annotated[float, BeforeValidator(parse_count, json_schema_input_type=float | str)]
Seconds = Annotated[float, BeforeValidator(parse_seconds, json_schema_input_type=float | str)]
Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str)]


def _trim(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def show_count(value: float) -> str:
    """`1.23 T`-style text: 70e9 -> "70B"."""
    for suffix, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(value) >= factor:
            return f"{_trim(value / factor)}{suffix}"
    return _trim(value)


def show_bytes(value: float) -> str:
    """Binary size for people: 67108864 -> "64 MiB"."""
    for suffix, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= factor:
            return f"{_trim(value / factor)} {suffix}"
    return f"{value:.0f} B"


def show_seconds(value: float) -> str:
    """Duration for people: 5400 -> "1.5 h"."""
    for suffix, factor in (("days", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if abs(value) >= factor:
            return f"{_trim(value / factor)} {suffix}"
    return f"{value * 1e6:.3g} us"
