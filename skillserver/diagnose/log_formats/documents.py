"""A whole JSON document read as it streams: Hugging Face's trainer_state.json, or any list of flat objects.

Bare NaN and Infinity are accepted, as Trainer writes them. The list is read one object at a time, so that a state of
hundreds of megabytes needs little memory, and a file that was cut off gives what it has. Knows JSON; not lines.

>>> [row.loss for _line, row in records(StringIO('{"log_history": [{"step": 1, "loss": NaN}]}'))]
[nan]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from skillserver.diagnose.log_formats.dicts import from_object
from skillserver.diagnose.log_formats.names import Record

CHUNK = 1 << 16
LONGEST = 1 << 22  # characters of one object; longer ones are no reports
LIST = re.compile(r'"log_history"\s*:\s*\[|^\s*\[|\[\s*(?=\{)')


def is_document(head: str) -> bool:
    """Whether a file that begins like this is one JSON document and not JSON lines."""
    text = head.lstrip("\ufeff \t\r\n")
    if text[:1] not in ("{", "[") or not re.match(r'[\[{]\s*["\[{}\]]', text):
        return False
    first, newline, rest = text.partition("\n")
    try:
        return not isinstance(json.loads(first), dict) or not (newline and rest.strip())
    except (ValueError, RecursionError):
        return True


def records(stream: TextIO) -> Iterator[tuple[int, Record]]:
    """(line, record) of each report in the document's list."""
    line = 1
    for text, parsed in _objects(stream):
        found = from_object(parsed)
        if found is not None:
            yield line, found
        line += text.count("\n")


def _objects(stream: TextIO) -> Iterator[tuple[str, Any]]:
    """(text passed over, object) of the list, decoding from a buffer that grows until an object is whole."""
    decoder, buffer = json.JSONDecoder(), stream.read(CHUNK)
    start = LIST.search(buffer)
    if start is None:
        yield from _columns(buffer + stream.read(LONGEST))
        return
    skipped, place = buffer[: start.end()], start.end()
    while True:
        while place < len(buffer) and buffer[place] in " \t\r\n,":
            place += 1
        if place < len(buffer) and buffer[place] == "]":
            return
        try:
            parsed, end = decoder.raw_decode(buffer, place)
        except (ValueError, RecursionError):
            more = stream.read(CHUNK)
            if not more or len(buffer) - place > LONGEST:
                return
            buffer, place = buffer[place:] + more, 0
            continue
        yield skipped, parsed
        skipped, place = buffer[place:end], end


def _columns(text: str) -> Iterator[tuple[str, Any]]:
    """Rows of a document that keeps one list for each quantity."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return
    lists = {key: value for key, value in parsed.items() if isinstance(value, list)} if isinstance(parsed, dict) else {}
    longest = max(map(len, lists.values()), default=0)
    for place in range(longest):
        yield "", {key: value[place] for key, value in lists.items() if len(value) == longest}
