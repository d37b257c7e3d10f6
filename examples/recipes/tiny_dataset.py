"""A small sample of a large JSONL file, drawn fairly in one pass, always the same for one seed.

    python tiny_dataset.py 100 < huge.jsonl > tiny.jsonl

The first lines of a file are no sample: data is often sorted by source or length. Reservoir sampling keeps `count` lines in
memory whatever the size of the input; lines that are no JSON are refused with their number rather than passed on.
"""

import json
import random
import sys
from collections.abc import Iterable


def sample(lines: Iterable[str], count: int, seed: int = 0) -> list[str]:
    """`count` lines, each of the input with the same chance, in the order of the input. Raises ValueError for a broken line."""
    chance = random.Random(seed)
    kept: dict[int, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        place = number if number < count else chance.randrange(number + 1)
        if place < count:
            try:
                json.loads(line)
            except ValueError as problem:
                raise ValueError(f"line {number + 1} is no JSON: {problem}") from None
            kept[place] = (number, line.rstrip("\n"))
    return [line for _number, line in sorted(kept.values())]


if __name__ == "__main__":
    print("\n".join(sample(sys.stdin, int(sys.argv[1]))))
