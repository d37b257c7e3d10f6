"""TensorBoard event files -> the scalars in them, grouped by step, without TensorFlow or protobuf.

A file is a row of frames: length, check sum, an Event message, check sum. Of an Event only time, step and scalar values are
walked through; what was flushed half is left, as a run that still writes needs. Check sums are not computed: a length that
leads nowhere ends the reading. Tags of one quantity (`lm loss`, `lm loss vs samples`) are told apart over the whole file.
Knows the framing and these messages; not what a loss means.

>>> next(events(path)), is_events(path.read_bytes()[:64])
((1700000000.0, 1, 'train/loss', 2.5), True)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from skillserver.diagnose.log_formats.names import Record, layout, record

VERSION = b"brain.Event:"  # the first frame of every file
LONGEST = 1 << 20  # bytes of a frame worth reading: images and graphs are longer, scalars are not
WHOLE = 1 << 31  # no writer makes a longer frame: the file is broken there
TAGS = 20_000
OTHER_AXIS = " vs "  # Megatron writes every quantity again over samples, time or tokens
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Scalar = tuple[float, int, str, float]  # time, step, tag, value
Value = int | bytes


def is_events(head: bytes) -> bool:
    """Whether a file that begins like this is an event file."""
    return len(head) >= 24 and VERSION in head[12:64] and int.from_bytes(head[:8], "little") < LONGEST


def tags(path: Path) -> dict[str, int]:
    """The scalars of a file and how often each was written."""
    found: dict[str, int] = {}
    for _time, _step, tag, _value in events(path):
        if tag in found or len(found) < TAGS:
            found[tag] = found.get(tag, 0) + 1
    return found


def records(path: Path) -> Iterator[tuple[int, Record]]:
    """(number, record) of each step, in the order of the file; of several tags for one column the most usual name counts."""
    names = tuple(tag for tag in tags(path) if OTHER_AXIS not in tag)
    chosen = {names[place] for place, column, _factor in layout(names) if column != "step"}
    scalars = (scalar for scalar in events(path) if scalar[2] in chosen)
    for number, (step, group) in enumerate(groupby(scalars, key=lambda scalar: scalar[1]), 1):
        values = list(group)
        found = record(tuple(tag for _time, _step, tag, _value in values), [value for _time, _step, _tag, value in values])
        found.step, found.time_s = step, values[0][0]
        yield number, found


def events(path: Path) -> Iterator[Scalar]:
    """Every scalar of a file."""
    with path.open("rb") as stream:
        for frame in _frames(stream):
            try:
                yield from _scalars(frame)
            except (ValueError, IndexError, struct.error):
                return  # broken from here on


def _frames(stream: BinaryIO) -> Iterator[bytes]:
    while len(head := stream.read(12)) == 12:
        length = int.from_bytes(head[:8], "little")
        if length > WHOLE:
            return
        if length > LONGEST:
            stream.seek(length + 4, 1)
            continue
        frame = stream.read(length + 4)
        if len(frame) < length + 4:
            return
        yield frame[:length]


def _scalars(frame: bytes) -> Iterator[Scalar]:
    """Event: 1 = wall time, 2 = step, 5 = summary, whose field 1 is a value."""
    time_s, step, summaries = 0.0, 0, []
    for field, value in _fields(frame):
        if field == 1 and isinstance(value, bytes):
            time_s = _float(value)
        elif field == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif field == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            if field == 1 and isinstance(value, bytes) and (found := _value(value)):
                yield time_s, step, *found


def _value(message: bytes) -> tuple[str, float] | None:
    """Value: 1 = tag, 2 = a plain float, 8 = a tensor (TensorFlow 2)."""
    tag, number = "", None
    for field, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            number = _float(value)
        elif field == 8 and isinstance(value, bytes):
            number = _tensor(value)
    return (tag, number) if tag and number is not None else None


def _tensor(message: bytes) -> float | None:
    """TensorProto of one number: 1 = its type, 4 = raw bytes, 5 = floats, 6 = doubles; None for anything else."""
    kind, raw = 0, b""
    for field, value in _fields(message):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field in (4, 5, 6) and isinstance(value, bytes):
            raw += value
    return _float(raw) if (kind, len(raw)) in ((1, 4), (2, 8)) else None


def _float(raw: bytes) -> float:
    found: float = struct.unpack("<f" if len(raw) == 4 else "<d", raw)[0]
    return found


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field: an int for a varint, else its bytes. Raises ValueError and IndexError for what is no message."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(wire)
        if wire == BYTES:
            size, place = _varint(message, place)
        if size is None or place + size > len(message):
            raise ValueError("no message")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = message[place]
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("no varint")
