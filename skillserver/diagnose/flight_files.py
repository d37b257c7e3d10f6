"""Many Flight Recorder files -> reduced dumps, in a few children, each file reduced before the next is read.

4,096 dumps do not fit in memory as Python objects; reduced they do. A child is this module run by name, with the paths
on its stdin: unlike a process pool it does not import the caller's main module again. Several dumps of one rank are
ordered by what they know; two equal ones written seconds apart show that nothing moved. Knows files and time; not what
the groups mean. Standard library only.

>>> reading.latest[3]["groups"]          # the newest dump of rank 3
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillserver.diagnose import flight_entries, plain_pickle

IN_PROCESS_BYTES = 4 * 2**20  # below this a child costs more than it saves
DEADLINE_S = 300.0
MOMENT_S = 5.0  # two equal dumps this far apart are two looks, not one file twice
Dump = dict[str, Any]


@dataclass
class Reading:
    """`latest` by rank; `earlier` where a rank has an older look; `still_s` how long it stood unchanged between two looks."""

    latest: dict[int, Dump] = field(default_factory=dict)
    earlier: dict[int, Dump] = field(default_factory=dict)
    still_s: dict[int, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)


def read(paths: Sequence[Path], children: int) -> Reading:
    """All dumps, broken ones named; at most `children` processes beside this one."""
    by_rank: dict[int, list[Dump]] = {}
    reading = Reading()
    for dump in _reduced(paths, children):
        name = Path(dump["path"]).name
        if "problem" in dump:
            reading.broken.append(f"{name}: {dump['problem']}")
        elif dump["rank"] is None:
            reading.broken.append(f"{name}: no rank in its name; call it rank_N")
        else:
            by_rank.setdefault(dump["rank"], []).append(dump)
            if dump["guessed"]:
                reading.guessed.append(name)
    for rank, dumps in sorted(by_rank.items()):
        _order(reading, rank, dumps)
    return reading


def _order(reading: Reading, rank: int, dumps: list[Dump]) -> None:
    """The newest look of one rank, and what an older one adds."""
    dumps.sort(key=lambda dump: (dump["last_ns"], _known(dump), dump["mtime"]))
    newest = dumps[-1]
    same = [dump for dump in dumps if _state(dump) == _state(newest)]
    older = [dump for dump in dumps if _state(dump) != _state(newest)]
    kept = min(same, key=lambda dump: (dump["path"].endswith(".json"), -dump["mtime"]))  # only the pickle has stacks
    reading.latest[rank] = kept | {"mtime": max(dump["mtime"] for dump in same)}
    if older:
        reading.earlier[rank] = older[-1]
    elif (apart := max(dump["mtime"] for dump in same) - min(dump["mtime"] for dump in same)) >= MOMENT_S:
        reading.still_s[rank] = apart


def _known(dump: Dump) -> int:
    return sum(group["last"] * 2 - group["open"] for group in dump["groups"].values())


def _state(dump: Dump) -> tuple[object, ...]:
    places = sorted((key, group["last"], group["pending"], group["open"]) for key, group in dump["groups"].items())
    return (*places, sum(row["calls"] * 2 - row["open"] for row in dump["p2p"]))


def _reduced(paths: Sequence[Path], children: int) -> Iterator[Dump]:
    sizes = [(path.stat().st_size if path.exists() else 0, path) for path in paths]
    if sum(size for size, _path in sizes) < IN_PROCESS_BYTES or children < 2:
        yield from map(flight_entries.reduced_file, paths)
        return
    shares = [[path for _size, path in sorted(sizes)[start::children]] for start in range(children)]
    running = [(_child(share), share) for share in shares if share]
    for child, share in running:
        yield from _answer(child, share)


def _child(share: Iterable[Path]) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if child.stdin:
        child.stdin.write("\0".join(map(str, share)).encode("utf-8", "surrogateescape"))
        child.stdin.close()
        child.stdin = None
    return child


def _answer(child: subprocess.Popen[bytes], share: list[Path]) -> list[Dump]:
    """What a child reduced; when it was killed (memory) or hangs, its files are named as not read."""
    try:
        out, _none = child.communicate(timeout=DEADLINE_S)
        found: list[Dump] = plain_pickle.loads(out)
        return found
    except (subprocess.TimeoutExpired, plain_pickle.NotPlain):
        child.kill()
        child.communicate()
        return [{"path": str(path), "rank": None, "problem": "the process that read it was ended (memory or time)"} for path in share]


def main() -> None:
    """The child: paths on stdin, a pickled list of reduced dumps on stdout."""
    names = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").split("\0")
    found = [flight_entries.reduced_file(Path(name)) for name in names if name]
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
