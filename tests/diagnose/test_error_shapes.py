"""What is remembered of a line's shape never changes what a line says."""

import random
import re

import pytest

from skillserver.diagnose import signatures

ENTRIES = {entry.signature.id: entry for _root, gated in signatures._index() for _gate, entries in gated for entry in entries}
LINES = [line for row in signatures.table() for text in (row.sample, *(each.text for each in row.variants)) for line in text.splitlines()]


def without_memory(line: str) -> set[str]:
    """Every signature tried on the line."""
    low = line.lower()
    return {name for name, entry in ENTRIES.items() if any(gate in low for gate in entry.signature.gates) and signatures._matched(entry, line)}


def with_other_digits(line: str, chance: random.Random) -> str:
    return re.sub(r"\d", lambda _digit: str(chance.randrange(10)), line)


def test_lines_of_one_shape_are_told_apart() -> None:
    chance = random.Random(7)
    lines = [other for line in LINES for other in (*(with_other_digits(line, chance) for _time in range(4)), line)]
    assert [line for line in lines if {found.signature.id for found in signatures.matches(line)} != without_memory(line)] == []


@pytest.mark.parametrize(("pattern", "line"), [(r"errno: 98\b", "errno: 98"), (r"[1-4]x{2,3}", "3xx"), (r"40[13] \d{3}", "403 123"), (r"(a)\1", "aa"),
                                               (r"[^5]b", "4b"), (r"7(?!9)", "78"), (r"(?P<n1>\d) 9?", "5 9")])  # fmt: skip
def test_a_pattern_made_blind_finds_every_line_that_the_pattern_finds(pattern: str, line: str) -> None:
    assert re.search(pattern, line)
    assert signatures._blind(pattern).search(signatures.shape(line).decode())
