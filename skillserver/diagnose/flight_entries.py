"""One Flight Recorder dump -> the few arrays that a comparison of ranks needs.

A dump is a dict (pickle, or JSON without stacks) with the last collectives of one rank. Reduced, each process group is
two arrays over consecutive sequence numbers: what was called (a hash over operation, sizes that must agree and dtypes)
and when. Traps: a group is known by its *name* (`pg_id` counts a rank's own groups), gloo never leaves the state
`scheduled` (only `retired` tells), its `pg_status` counts send and recv too, and JSON writes 0 where pickle writes None.
Knows one rank; comparing is `flight_recorder`. Standard library only. Format: torch/csrc/distributed/c10d/FlightRecorder.

>>> reduced({"entries": []})["entries"]
0
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skillserver.diagnose import plain_pickle
from skillserver.diagnose.plain_pickle import NotPlain

ROOTED = ("broadcast", "reduce", "gather", "scatter")  # may end on one rank before another came
P2P = re.compile(r"(send|recv)\s+(\d{1,7})\s*(?:->|<-)\s*(\d{1,7})")
NAMED_RANK = re.compile(r"rank[_\-. ]?(\d{1,7})(?!\d)", re.I)
NUMBER = re.compile(r"(\d{1,7})(?!.*\d)")
LISTED = re.compile(r"\d{1,7}")
SPAN = 4  # sequence numbers kept for each entry: holes are rare, a damaged number must not ask for gigabytes
DONE, STARTED, SCHEDULED = 2, 1, 0
MOST_SEQ = 2**62  # a larger one is damage and does not fit the arrays
MOST_TENSORS = 256  # of one coalesced call
Raw = dict[str, Any]
Sizes = tuple[tuple[int, ...], ...]


def rank_of(path: Path) -> tuple[int | None, bool]:
    """(rank in a file's or its folder's name, whether it is a guess): `rank_3` is said, the last number is guessed."""
    for name in (path.name, path.parent.name):
        if found := NAMED_RANK.findall(name):
            return int(found[-1]), False
    guess = NUMBER.search(path.name)
    return (int(guess[1]), True) if guess else (None, True)


def raw_file(path: Path) -> Raw:
    """The dump as it was written. Raises NotPlain when it is cut, no dump, or not plain data."""
    with path.open("rb") as opened:
        head = opened.read(1)
    if head == b"{":
        try:
            raw = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as problem:
            raise NotPlain(f"its JSON is cut or damaged ({str(problem)[:60]})") from None
    else:
        raw = plain_pickle.load_file(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("entries"), list):
        raise NotPlain("it is no Flight Recorder dump (no `entries`)")
    return raw


def reduced_file(path: Path) -> Raw:
    """The reduced dump with `path`, `rank`, `mtime`, or the same with `problem` instead."""
    rank, guessed = rank_of(path)
    about = {"path": str(path), "rank": rank, "guessed": guessed}
    try:
        return about | {"mtime": path.stat().st_mtime} | reduced(raw_file(path))
    except (NotPlain, OSError) as problem:
        return about | {"problem": str(problem)}
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as problem:
        return about | {"problem": f"its entries are not as a Flight Recorder writes them ({type(problem).__name__}: {str(problem)[:60]})"}


def reduced(raw: Raw) -> Raw:
    """{entries, complete, config {group: ranks}, groups {key: ...}, p2p, table {hash: (op, in, out, dtypes)}}."""
    entries = [entry for entry in raw["entries"] if isinstance(entry, dict)]
    signer = _Signer()
    by_group: dict[str, list[Raw]] = {}
    p2p: list[Raw] = []
    for entry in entries:
        if entry.get("is_p2p"):
            p2p.append(entry)
        else:
            by_group.setdefault(key_of(entry), []).append(entry)
    records = [entry.get("record_id", number) for number, entry in enumerate(entries)]
    return {
        "entries": len(entries), "version": _text(raw.get("version")),
        "complete": records == list(range(len(records))),  # nothing was overwritten or left out
        "config": _config(raw.get("pg_config")),
        "groups": {key: _group(found, signer) for key, found in by_group.items()},
        "p2p": _pairs(p2p), "table": signer.table,
        "states": any(entry.get("time_discovered_started_ns") for entry in entries),  # timing is on, so `started` means something
        "last_ns": max((int(entry.get("time_created_ns") or 0) for entry in entries), default=0),
    }  # fmt: skip


def key_of(entry: Raw) -> str:
    """`backend|name|desc`; two backends of one group count apart."""
    group = entry.get("process_group") or (entry.get("pg_id", "?"), "")
    return f"{backend_of(entry)}|{_text(group[0])}|{_text(group[1])}"


def backend_of(entry: Raw) -> str:
    """`nccl` of nccl:all_reduce."""
    return _text(entry.get("profiling_name")).partition(":")[0]


def _text(value: Any) -> str:
    """Text of a name or number. Never of a container: a few shared lists can stand for more text than fits in memory."""
    return str(value) if isinstance(value, str | int | float) else ""


def _sizes(value: Any) -> Sizes:
    """Shapes of tensors. Raises TypeError or ValueError for anything else."""
    rows: Sizes = tuple(map(tuple, (value or [])[:MOST_TENSORS]))
    for row in rows:
        sum(row)  # the quickest proof that they are numbers: a container in it is a TypeError
    return rows


def done(entry: Raw) -> bool:
    """Whether this rank has left the collective, well or by failure."""
    return bool(entry.get("retired") or entry.get("state") == "completed" or entry.get("time_discovered_completed_ns"))


def stack_at(path: Path, key: str, seq: int) -> list[Raw]:
    """The Python frames of one collective, innermost first; empty when they were not recorded."""
    for entry in raw_file(path)["entries"]:
        if not entry.get("is_p2p") and key_of(entry) == key and entry.get("collective_seq_id") == seq:
            return [frame for frame in entry.get("frames") or [] if isinstance(frame, dict)]
    return []


def triples(frames: Iterable[Any]) -> list[tuple[str, str, int]]:
    """(function, file, line) of recorded frames; what is not one is left out."""
    rows = [frame for frame in frames if isinstance(frame, dict)]
    return [(_text(row.get("name")) or "?", _text(row.get("filename")), row["line"] if isinstance(row.get("line"), int) else 0) for row in rows]


def _config(config: Any) -> dict[str, str]:
    """{group name: text of its ranks}; gloo leaves one entry without a name, which is the default group when it has ranks.

    Every dump of a large job repeats the same lists: kept as one text each, or 4,096 dumps would hold 16 million numbers.
    """
    found = {_text(group.get("name", number)): sys.intern(_text(group.get("ranks"))) for number, group in (config or {}).items()}
    return {name: ranks for name, ranks in found.items() if LISTED.search(ranks)}


@functools.lru_cache(maxsize=100_000)
def ranks_in(text: str) -> tuple[int, ...]:
    """(0, 1, 2) of "[0, 1, 2]"."""
    return tuple(int(number) for number in LISTED.findall(text))


class _Signer:
    """Hashes what must agree between ranks; equal on every rank and in every process."""

    def __init__(self) -> None:
        self.table: dict[int, tuple[str, str, str, str]] = {}
        self._known: dict[tuple[str, Sizes, Sizes, tuple[str, ...]], int] = {}

    def sign(self, entry: Raw) -> int:
        """The hash of one entry; `table` says what it stands for."""
        op = _text(entry.get("profiling_name")).partition(":")[2] or _text(entry.get("profiling_name"))
        given, made = _sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))
        dtypes = tuple((entry.get("input_dtypes") or [])[:MOST_TENSORS])
        "".join(dtypes)  # the same for text
        seen = (op, given, made, dtypes)
        if seen not in self._known:
            agreed = f"{op}|{_agreeing(op, given, made)}|{sorted(set(seen[3]))}"
            self._known[seen] = int.from_bytes(hashlib.blake2b(agreed.encode(), digest_size=8).digest(), "little") | 1  # 0 = a hole
            self.table.setdefault(self._known[seen], (op, _shown(given), _shown(made), ", ".join(sorted(set(seen[3])))[:40]))
        return self._known[seen]


def _shown(sizes: Sizes) -> str:
    text = ", ".join(str(list(size)) for size in sizes[:4])
    return f"[{text}{', ...' if len(sizes) > 4 else ''}]"


def _agreeing(op: str, given: Sizes, made: Sizes) -> int | None:
    """The number of elements that every rank must give alike; None where ranks may differ."""
    name = op.lstrip("_")
    if name.startswith(("all_to_all", "alltoall", "gather", "scatter")):
        return None  # the root has lists, and uneven splits are allowed
    return _elements(made if name.startswith(("all_gather", "allgather")) else given)


def _elements(sizes: Sizes) -> int:
    return sum(map(math.prod, sizes))


def _group(entries: list[Raw], signer: _Signer) -> Raw:
    """Arrays over sequence numbers; several entries of one number (a coalesced group) count as one."""
    seqs = [int(entry["collective_seq_id"]) for entry in entries]
    last = max(seqs)
    if not 0 <= last < MOST_SEQ:
        raise ValueError(f"sequence number {last:.3g}")
    first = max(min(seqs), last - SPAN * len(seqs) - 1000)
    signs, times, state = array("Q", bytes(8 * (last - first + 1))), array("q", bytes(8 * (last - first + 1))), bytearray(last - first + 1)
    open_: dict[int, int] = {}
    for seq, entry in zip(seqs, entries, strict=True):
        if (place := seq - first) < 0:
            continue
        sign = signer.sign(entry)
        signs[place] = sign if not signs[place] else (signs[place] * 31 + sign) & (2**63 - 1) | 1
        times[place] = times[place] or int(entry.get("time_created_ns") or 0)
        state[place] = 1
        if not done(entry):
            open_[seq] = STARTED if entry.get("state") == "started" else SCHEDULED
    stateful = any(entry.get("state") != "scheduled" for entry in entries)  # gloo never says more than `scheduled`
    ended = [seq for seq in (last - back for back in range(len(state)) if state[-1 - back]) if seq not in open_]
    pending = min(open_, default=None)
    return {
        "first": first, "last": last, "signs": signs.tobytes(), "times": times.tobytes(), "pending": pending, "open": len(open_),
        "state": open_.get(pending, DONE) if pending is not None else DONE, "done": ended[0] if ended else None,
        "timeout_s": float(entries[-1].get("timeout_ms") or 0) / 1000, "size": _size(entries[-1]), "pg_id": entries[-1].get("pg_id"),
        "stateful": stateful, "failed": stateful and any(entry.get("retired") and entry.get("state") != "completed" for entry in entries[-3:]),
    }  # fmt: skip


def _size(entry: Raw) -> int | None:
    """Members of the group, where an all_gather's output says it."""
    op = _text(entry.get("profiling_name"))
    if "all_gather" not in op:
        return None
    given, gathered = _elements(_sizes(entry.get("input_sizes"))), _elements(_sizes(entry.get("output_sizes")))
    return gathered // given if given and gathered > given and gathered % given == 0 else None


def _pairs(entries: Iterable[Raw]) -> list[Raw]:
    """[{key, kind, me, peer, calls, open}] of point-to-point calls; ranks are those within the group."""
    found: dict[tuple[str, str, int, int], Raw] = {}
    for entry in entries:
        if match := P2P.search(_text(entry.get("profiling_name"))):
            name = (key_of(entry), match[1], int(match[2]), int(match[3]))
            row = found.setdefault(name, dict(zip(("key", "kind", "me", "peer"), name, strict=True)) | {"calls": 0, "open": 0})
            row["calls"] += 1
            row["open"] += not done(entry)
    return list(found.values())
