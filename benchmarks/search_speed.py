"""How long a search takes: CPU milliseconds a question over given questions, index open and warm.

    python benchmarks/search_speed.py [questions.json]

Reads ../shared/cases/questions.json beside the project when no file is named; without either asks a few of its own.
Prints one line: sections, questions, p50 and p95 of the median of 7 rounds, and what the first question of a process took.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from skillserver.knowledge import library, search

ROUNDS = 7
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "cases" / "questions.json"
OWN = ["CUDA out of memory", "NCCL watchdog timeout", "显存不足怎么办", "how many GPUs for a 70B model", "Xid 79"]


def questions(arguments: list[str]) -> list[str]:
    """The questions of the named file, else of the cases beside the project, else our own."""
    path = Path(arguments[0]) if arguments else BESIDE
    return [row["query"] for row in json.loads(path.read_text(encoding="utf-8"))] if path.is_file() else OWN


def milliseconds(asked: str) -> float:
    """CPU time of one search."""
    started = time.process_time()
    search.search(asked)
    return (time.process_time() - started) * 1e3


def main() -> None:
    asked = questions(sys.argv[1:])
    started = time.perf_counter()
    search.search(asked[0])
    first = (time.perf_counter() - started) * 1e3
    rounds = [[milliseconds(question) for question in asked] for _ in range(ROUNDS + 1)][1:]
    times = sorted(statistics.median(of_one) for of_one in zip(*rounds, strict=True))
    p50, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    print(f"search: {library.current().index.size} sections, {len(asked)} questions, p50 {p50:.1f} ms, p95 {p95:.1f} ms, first {first:.0f} ms")


if __name__ == "__main__":
    main()
