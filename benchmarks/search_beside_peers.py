"""What the search answers, and how fast, beside what people use instead.

    python benchmarks/search_beside_peers.py [--handbook CHECKOUT] [--questions FILE] [--grow]

Questions with their facts and the scorer come from ../shared/cases beside the project, or from a FILE of that form. With a
checkout of the ML Engineering book the peers search its text, and ours is asked with it, without it and of it alone.
`--grow` also builds the index of ten times the pages: noisy copies with words dropped, swapped and invented.
Out-of-scope questions are in out_of_scope.txt. Times are wall-clock medians of 7 rounds, CPU time in brackets.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import search_peers as peers

from skillserver import paths
from skillserver.knowledge import library, search
from skillserver.knowledge.search import Chosen
from skillserver.knowledge.sources import OUR_LICENCE, OURS, Folder
from skillserver.tools.knowledge import search_knowledge

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
OUT_OF_SCOPE = Path(__file__).with_name("out_of_scope.txt")
LIMITS = (2_000, 8_000)
REFUSAL = "no section answers this"
ROUNDS = 7
GROWTH = 10


def answered(facts: list[str], text: str) -> bool:
    """All facts stand in the text; emphasis and white space do not matter."""
    plain = re.sub(r"\s+", " ", text.replace("`", "").replace("**", "").replace("\\_", "_").replace("\u00a0", " "))
    return all(re.search(fact, plain, re.I | re.S) for fact in facts)


def rates(ask: Callable[[str], str], questions: list[dict]) -> dict[str, list[int]]:
    """Group -> questions, answered within each limit."""
    table: dict[str, list[int]] = {}
    for row in questions:
        told = ask(row["query"])
        hits = [answered(row["facts"], told[:limit]) for limit in LIMITS]
        for group in (row["group"], "all"):
            counts = table.setdefault(group, [0] * (1 + len(LIMITS)))
            table[group] = [count + more for count, more in zip(counts, [1, *hits], strict=True)]
    return dict(sorted(table.items(), key=lambda pair: (pair[0] == "all", pair[0])))


def show_rates(engines: dict[str, Callable[[str], str]], questions: list[dict]) -> None:
    """One line an engine: share answered within 2,000 and 8,000 characters, by group."""
    for number, (name, ask) in enumerate(engines.items()):
        table = rates(ask, questions)
        if not number:
            print(f"{'answered within 2,000 | 8,000 characters':44}" + "".join(f"{f'{group} ({row[0]})':>15}" for group, row in table.items()))
        print(f"{name:44}" + "".join(f"{f'{row[1] / row[0]:.0%} | {row[2] / row[0]:.0%}':>15}" for row in table.values()))


def shelf(cache: Path, *folders: Folder) -> library.Library:
    return library.at((Folder("", str(paths.shipped(OURS)), OUR_LICENCE), *folders), cache)


def timed(calls: Iterable[Callable[[], object]]) -> list[tuple[float, float]]:
    """(wall, CPU) milliseconds of each call."""
    found = []
    for call in calls:
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        found.append(((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3))
    return found


def spread(rounds: list[list[tuple[float, float]]]) -> str:
    """p50 and p95 over the questions of each one's median."""
    said = []
    for which in (0, 1):
        medians = sorted(statistics.median(times[which] for times in of_one) for of_one in zip(*rounds, strict=True))
        said.append((medians[len(medians) // 2], medians[int(len(medians) * 0.95)]))
    return f"p50 {said[0][0]:.1f} ms, p95 {said[0][1]:.1f} ms (CPU {said[1][0]:.1f}, {said[1][1]:.1f})"


def show_speed(asked: list[str], cache: Path) -> None:
    """Whole warm calls of the tool, a cold command line, a build and an open."""
    [(wall, cpu)] = timed([lambda: shelf(cache / "new")])
    library.forget()
    [(opened, _)] = timed([lambda: shelf(cache / "new")])
    print(f"index build {wall / 1e3:.2f} s (CPU {cpu / 1e3:.2f}), open {opened:.0f} ms")
    rounds = [timed(lambda question=question: search_knowledge(question) for question in asked) for _ in range(ROUNDS + 1)][1:]
    print(f"warm call, {len(asked)} questions: {spread(rounds)}")
    command = [sys.executable, "-m", "skillserver", "search", "NCCL watchdog timeout"]
    subprocess.run(command, capture_output=True, check=True)
    cold = sorted(time_ms for time_ms, _ in timed([lambda: subprocess.run(command, capture_output=True, check=True)] * ROUNDS))
    print(f"cold command line: median {cold[ROUNDS // 2]:.0f} ms, least {cold[0]:.0f} ms")


def noisy(text: str, chance: random.Random) -> str:
    """Words dropped, swapped and invented, so that the vocabulary grows as it does in real text."""
    words = text.split(" ")
    for number in range(len(words) - 1):
        dice = chance.random()
        if dice < 0.02:
            words[number], words[number + 1] = words[number + 1], words[number]
        elif dice < 0.03:
            words[number] = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=7))
        elif dice < 0.06:
            words[number] = ""
    return " ".join(words)


def show_growth(asked: list[str], root: Path) -> None:
    """Build, open and ask ten times the pages."""
    chance = random.Random(7)
    for copy in range(1, GROWTH):
        for name, text in peers.sections.files(paths.shipped(OURS)).texts.items():
            path = root / "copies" / str(copy) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(noisy(text, chance), encoding="utf-8")
    folder = Folder("copies", str(root / "copies"), "")
    [(wall, cpu)] = timed([lambda: shelf(root / "cache", folder)])
    library.forget()
    [(opened, _)] = timed([lambda: shelf(root / "cache", folder)])
    big = shelf(root / "cache", folder)
    rounds = [timed(lambda question=question: search.answer(big, question) for question in asked) for _ in range(ROUNDS + 1)][1:]
    build = f"build {wall / 1e3:.1f} s (CPU {cpu / 1e3:.1f}), open {opened:.0f} ms"
    print(f"{GROWTH} times the pages, {big.index.size:,} sections: {build}; {spread(rounds)}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--handbook", type=Path)
    options.add_argument("--questions", type=Path, default=CASES / "questions.json")
    options.add_argument("--grow", action="store_true")
    chosen = options.parse_args()
    strange = [line for line in OUT_OF_SCOPE.read_text(encoding="utf-8").splitlines() if line]
    questions = json.loads(chosen.questions.read_text(encoding="utf-8")) if chosen.questions.is_file() else []
    with tempfile.TemporaryDirectory() as place:
        cache = Path(place) / "cache"
        ours = shelf(cache)
        engines: dict[str, Callable[[str], str]] = {"ours": lambda question: search.answer(ours, question)}
        engines |= {f"{name}, our pages": ask for name, ask in peers.engines(paths.shipped(OURS)).items()}
        if chosen.handbook:
            book = Folder("handbook", str(chosen.handbook), "CC-BY-SA-4.0")
            [(wall, cpu)] = timed([lambda: shelf(cache, book)])
            both = shelf(cache, book)
            print(f"handbook: {both.index.size - ours.index.size} sections added to {ours.index.size} in {wall / 1e3:.1f} s (CPU {cpu / 1e3:.1f})")
            engines["our search, both texts"] = lambda question: search.answer(both, question)
            engines["our search, the handbook's text alone"] = lambda question: search.answer(both, question, 2000, Chosen(source="handbook"))
            engines |= {f"{name}, the handbook's text": ask for name, ask in peers.engines(chosen.handbook).items()}
        if questions:
            show_rates(engines, questions)
        refused = sum(search.answer(ours, question).startswith(REFUSAL) for question in strange)
        print(f"out of scope: {refused} of {len(strange)} answered by `{REFUSAL}`")
        asked = [row["query"] for row in questions] or strange
        show_speed(asked, cache)
        if chosen.grow:
            show_growth(asked, Path(place))


if __name__ == "__main__":
    main()
