"""JSON documents in a paste, wherever they stand: after a prompt, between log lines, several of them.

A document begins at `{` or `[` where a line begins, else at the first `{` of the text. Cut documents are not returned;
who expects one says so. Knows nothing of what the documents hold.

>>> list(found('$ amd-smi list --json\\n[{"gpu": 0}]\\n$'))
[[{'gpu': 0}]]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

START = re.compile(r"^[ \t]*[\[{]", re.M)
MOST_TRIES = 200  # log lines in brackets look like starts


def found(text: str) -> Iterator[Any]:
    """Every whole document, in order."""
    decoder, place, tries, any_found = json.JSONDecoder(), 0, 0, False
    while tries < MOST_TRIES and (start := START.search(text, place)):
        tries += 1
        place = start.end()
        try:
            document, place = decoder.raw_decode(text, start.end() - 1)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict | list) and document and not _numbers(document):
            any_found = True
            yield document
    if not any_found and (first := text.find("{")) >= 0:
        try:
            yield decoder.raw_decode(text, first)[0]
        except (ValueError, RecursionError):
            return


def _numbers(document: Any) -> bool:
    """`[12.5]` of a kernel line is a document too, and none of ours."""
    return isinstance(document, list) and not any(isinstance(one, dict | list) for one in document)
