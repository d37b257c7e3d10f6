"""Plain data -> YAML text that YAML 1.1 and 1.2 parsers read back unchanged: strings quoted, scripts as literal blocks.

Knows dicts, lists, strings, whole numbers and booleans. A string with a character that a literal block would change
(a control character, a foreign line break) is written in double quotes with escapes.

>>> document({"command": ["bash", "-c", "a\\nb\\n"]})
'command:\\n- "bash"\\n- "-c"\\n- |\\n  a\\n  b\\n'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z][\w./-]*")
SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def document(data: Mapping[str, Any]) -> str:
    """One YAML document without its separator."""
    return "".join(f"{line}\n" for line in _lines(data))


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [line for key, item in value.items() for line in _entry(f"{_key(key)}:", item)]
    return [line for item in value for line in _item(item)]


def _entry(head: str, item: Any) -> list[str]:
    if isinstance(item, Mapping | list) and item:
        pad = "  " if isinstance(item, Mapping) else ""
        return [head, *(pad + line for line in _lines(item))]
    return _scalar(head, item)


def _item(item: Any) -> list[str]:
    if isinstance(item, Mapping) and item:
        first, *rest = _lines(item)
        return [f"- {first}", *(f"  {line}" for line in rest)]
    return _scalar("-", item)


def _scalar(head: str, item: Any) -> list[str]:
    if isinstance(item, str) and _is_block(item):
        return [f"{head} |", *(f"  {line}" if line else "" for line in item[:-1].split("\n"))]
    return [f"{head} {_plain(item)}"]


def _is_block(text: str) -> bool:
    """More than a line, ends in one line break, starts with a letter that no indentation could swallow."""
    return (
        text.count("\n") > 1 and text.endswith("\n") and not text.endswith("\n\n") and text[0] not in " \n\t" and text.replace("\n", "").isprintable()
    )


def _plain(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return str(item)
    if item == {} or item == []:
        return str(item)
    return quoted(item)


def quoted(text: str) -> str:
    """A double-quoted scalar; what is not printable is escaped by its code point."""
    return '"' + "".join(SHORT.get(letter) or (letter if letter.isprintable() else _escaped(letter)) for letter in text) + '"'


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else quoted(key)
