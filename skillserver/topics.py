"""Topic -> sections of the knowledge base to read: the one place where code and pages meet.

`data/topics.toml` maps a short topic ("nccl_timeout") to section ids; a test proves that every section exists and that
every topic named in the code or in a table stands there. Knows ids only; not what the sections say.

>>> sections("nccl_timeout")
['debugging/hangs#nccl-watchdog-timeout']
"""

from __future__ import annotations

import functools

from skillserver import tables


class Topic(tables.Record):
    """One row of topics.toml."""

    topic: str
    sections: list[str]


@functools.cache
def _by_topic() -> dict[str, list[str]]:
    return {row.topic: row.sections for row in tables.load("topics.toml", Topic)}


def known() -> set[str]:
    """Every topic of the table."""
    return set(_by_topic())


def sections(*topics: str) -> list[str]:
    """Section ids for `read_knowledge`, in the order of the topics, each once."""
    found = _by_topic()
    return list(dict.fromkeys(section for topic in topics for section in found.get(topic, [])))
