"""Reduced dumps of many ranks -> process groups: members, where each rank stands, waits, first mismatch.

A group is its name (and its members, where two split groups share a name). Members come from `pg_config`, else from who
used the group: gloo tells no more, so a group seen on one rank only lacks somebody `unseen`. Dumps are written at
different moments: a collective that one rank finished for certain was entered by all, whatever an older dump says.
Knows ranks and numbers; judging is `flight_recorder`.

>>> assembled(reading).groups[0].waits()
[Wait(place='default_pg #4', waiting={0, 2}, lacking={1}, unseen=False)]
"""

from __future__ import annotations

import itertools
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from skillserver.diagnose.flight_entries import DONE, ROOTED, SCHEDULED, STARTED, ranks_in
from skillserver.diagnose.flight_files import Dump, Reading
from skillserver.diagnose.wait_graph import Wait

Kind = Literal["type", "dtype", "size"]
DEFAULT = "0"  # name of NCCL's default group
RECENT = 50  # collectives that show a job's usual rhythm
SURE_GAPS = 20
LATE_OVER = 20  # collectives that show a rank's usual lateness


@dataclass
class Mismatch:
    """The first place where the ranks of a group called different things; `odd` is the minority, empty when none is."""

    seq: int
    kind: Kind
    calls: list[tuple[tuple[str, str, str, str], list[int]]]
    odd: list[int]
    shift: str = ""


@dataclass
class Group:
    """One process group. `per` holds what each rank's dump says of it; `floor` is the last collective all entered for certain."""

    key: str
    name: str
    backend: str
    members: set[int]
    exact: bool
    per: dict[int, Dump]
    tables: dict[int, tuple[str, str, str, str]]
    dumped: set[int]
    incomplete: set[int]
    floor: int = 0
    places: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def call(self, rank: int, seq: int) -> tuple[str, str, str, str]:
        """(operation, input sizes, output sizes, dtypes) of one collective of one rank."""
        return self.tables.get(self.sign(rank, seq), ("?", "", "", ""))

    def sign(self, rank: int, seq: int) -> int:
        """The hash of what that rank called there; 0 when its dump does not reach."""
        own = self.per[rank]
        return array("Q", own["signs"])[seq - own["first"]] if own["first"] <= seq <= own["last"] else 0

    def entered(self, rank: int) -> int:
        """The last collective that a rank entered, by its own dump or by proof of another."""
        return max(self.per[rank]["last"] if rank in self.per else 0, self.floor)

    def stale(self) -> set[int]:
        """Ranks whose dump lacks a collective that they must have entered, or shows one open that another rank finished."""
        return {rank for rank, own in self.per.items() if own["last"] < self.floor or (own["pending"] or self.floor + 1) <= self.floor}

    def absent(self, seq: int) -> set[int]:
        """Dumped members that have not entered it; a member whose dump was overwritten and shows nothing is unknown."""
        return {rank for rank in self.members & self.dumped if self.entered(rank) < seq and (rank in self.per or rank not in self.incomplete)}

    def needs_all(self, rank: int, seq: int) -> bool:
        """Whether nobody can leave this collective before everybody entered it."""
        return not self.call(rank, seq)[0].lstrip("_").startswith(ROOTED)

    def waits(self) -> list[Wait]:
        """The places where ranks of this group stand, with who has not come."""
        standing: dict[int, set[int]] = defaultdict(set)
        for rank, (seq, _ended) in self.places.items():
            standing[seq].add(rank)
        return [self._wait(seq, ranks) for seq, ranks in sorted(standing.items())]

    def _wait(self, seq: int, ranks: set[int]) -> Wait:
        lacking = self.absent(seq)
        started = {rank for rank in ranks if self.per[rank]["state"] == STARTED}
        late = {rank for rank in ranks - started if started and self.per[rank]["state"] == SCHEDULED and self.per[rank]["pending"] == seq}
        gone = self.members - self.dumped
        if not lacking and not late and len(gone) <= len(self.members & self.dumped):  # of few dumps the absent ones say nothing
            lacking = gone
        return Wait(f"{self.name} #{seq}", ranks - late, lacking | late, not self.exact and not lacking and len(self.members) == 1)

    def interval_s(self, ranks: Iterable[int]) -> float:
        """Nine tenths of the recent gaps between two of these ranks' collectives are shorter; of few gaps the median, 0 of none."""
        gaps = sorted(gap for rank in list(ranks)[:8] for gap in _gaps(array("q", self.per[rank]["times"])[-RECENT:]))
        share = 0.9 if len(gaps) >= SURE_GAPS else 0.5  # the first steps have odd gaps: compilation, connecting
        return gaps[int(share * (len(gaps) - 1))] if gaps else 0.0

    def usual_lateness_s(self, rank: int, others: Iterable[int]) -> float:
        """Median of how much later than the first of the others this rank entered the collectives that they share."""
        if rank not in self.per:
            return 0.0
        late = []
        last = self.per[rank]["last"]
        for seq in range(max(last - LATE_OVER, 0), last + 1):
            times = [self.time_ns(other, seq) for other in list(others)[:16]]
            own = self.time_ns(rank, seq)
            if own and any(times):
                late.append((own - min(time for time in times if time)) / 1e9)
        return max(statistics.median(late), 0.0) if len(late) >= 3 else 0.0

    def time_ns(self, rank: int, seq: int) -> int:
        """When a rank entered a collective, by its own clock; 0 when unknown."""
        own = self.per.get(rank)
        return array("q", own["times"])[seq - own["first"]] if own and own["first"] <= seq <= own["last"] else 0

    def mismatch(self) -> Mismatch | None:
        """The first collective that the ranks of this group do not call alike."""
        parts: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        for rank, own in self.per.items():
            parts[(own["first"], own["signs"])].append(rank)
        if len(parts) < 2:
            return None
        rows = [(first, array("Q", signs), ranks) for (first, signs), ranks in parts.items()]
        for seq in sorted(set().union(*(range(first, first + len(signs)) for first, signs, _ranks in rows))):  # not what lies between far-apart dumps
            seen: dict[int, list[int]] = defaultdict(list)
            for first, signs, ranks in rows:
                if 0 <= seq - first < len(signs) and signs[seq - first]:
                    seen[signs[seq - first]].extend(ranks)
            if len(seen) > 1:
                return self._mismatch(seq, seen)
        return None

    def _mismatch(self, seq: int, seen: dict[int, list[int]]) -> Mismatch:
        ordered = sorted(seen.items(), key=lambda item: -len(item[1]))
        calls = [(self.tables.get(sign, ("?", "", "", "")), sorted(ranks)) for sign, ranks in ordered]
        kind: Kind = "size"
        if len({call[0] for call, _ranks in calls}) > 1:
            kind = "type"
        elif len({call[3] for call, _ranks in calls}) > 1:
            kind = "dtype"
        odd = sorted(rank for _sign, ranks in ordered[1:] for rank in ranks) if len(ordered[0][1]) > len(ordered[1][1]) else []
        return Mismatch(seq, kind, calls, odd, self._shift(seq, ordered[0][1][0], odd[0]) if odd else "")

    def _shift(self, seq: int, usual: int, odd: int) -> str:
        """Whether the odd rank is the others' program moved by one call."""
        if self.sign(odd, seq) == self.sign(usual, seq + 1):
            return f"its #{seq} is what the others call #{seq + 1}: it left one out"
        if self.sign(odd, seq + 1) and self.sign(odd, seq + 1) == self.sign(usual, seq):
            return f"its #{seq + 1} is what the others call #{seq}: it made one more"
        return ""


@dataclass
class Job:
    """All groups of a job; `world` are the ranks that must exist, `dumped` those with a dump."""

    groups: list[Group]
    world: set[int]
    dumped: set[int]
    pairs: list[Wait]
    reading: Reading


def worlds(reading: Reading) -> dict[tuple[int, ...], list[int]]:
    """{ranks of the default group: ranks whose dumps say so}; more than one are dumps of different jobs or restarts."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, dump in reading.latest.items():
        if text := dump["config"].get(DEFAULT):
            found[ranks_in(text)].append(rank)
    return found


def assembled(reading: Reading) -> Job:
    """Groups from the newest dump of each rank, each rank placed in each."""
    dumps = reading.latest
    world = set(dumps).union(*map(ranks_in, {text for dump in dumps.values() for text in dump["config"].values()}))
    if dumps and 2 * len(world) >= max(dumps) + 1:
        world |= set(range(max(dumps)))  # a gap in the numbers is a rank without a dump
    tables: dict[int, tuple[str, str, str, str]] = {}
    parts: dict[tuple[str, tuple[int, ...]], dict[int, Dump]] = defaultdict(dict)
    for rank, dump in dumps.items():
        tables.update(dump["table"])
        for key, own in dump["groups"].items():
            parts[(key, ranks_in(dump["config"].get(key.split("|")[1], "")))][rank] = own
    incomplete = {rank for rank, dump in dumps.items() if not dump["complete"]}
    groups = [_group(key, ranks, per, world, tables, set(dumps), incomplete) for (key, ranks), per in parts.items()]
    _ordinals(groups)
    for group in groups:
        _place(group)
    return Job(groups, world, set(dumps), _pairs(dumps, groups), reading)


def _group(key: str, ranks: tuple[int, ...], per: dict[int, Dump], world: set[int], tables: Any, dumped: set[int], incomplete: set[int]) -> Group:
    backend, name, desc = key.split("|", 2)
    default = desc == "default_pg" or (name == "0" and not ranks)
    members = set(ranks) or (set(world) if default else set(per))
    size = max((own["size"] or 0 for own in per.values()), default=0)
    exact = bool(ranks) or default or size == len(members)
    title = f"{desc} ({name})" if desc not in ("", "undefined", "default_pg") else desc if default and desc else f"group {name}"
    return Group(key, title, backend, members | set(per), exact, per, tables, dumped, incomplete)


def _ordinals(groups: list[Group]) -> None:
    """`pg_id` counts the groups of a rank: when it equals a group's number, the rank is in every group numbered below."""
    numbered = {int(group.key.split("|")[1]): group for group in groups if not group.exact and group.key.split("|")[1].isdigit()}
    for number, group in numbered.items():
        for rank in [rank for rank, own in group.per.items() if own["pg_id"] == number]:
            for below in [other for name, other in numbered.items() if name < number]:
                below.members.add(rank)


def _place(group: Group) -> None:
    """The collective in which each rank stands; True when it was given up there (ended although somebody never came)."""
    for rank, own in group.per.items():
        left = own["done"]
        if not own["stateful"] and left is not None and left == own["last"]:
            left -= 1  # gloo marks failure and success alike: only who went on is known to have succeeded
        if left is not None and not own["failed"] and left >= own["first"] and group.needs_all(rank, left):
            group.floor = max(group.floor, left)
    for rank, own in group.per.items():
        if own["pending"] is not None:
            group.places[rank] = (own["pending"], False)
        elif own["state"] == DONE and (not own["stateful"] or own["failed"]) and group.needs_all(rank, own["last"]) and group.absent(own["last"]):
            group.places[rank] = (own["last"], True)


def _pairs(dumps: dict[int, Dump], groups: list[Group]) -> list[Wait]:
    """Open sends and receives whose other end has no call for them."""
    members = {group.key: sorted(group.members) for group in groups}
    rows = {(rank, row["key"], row["kind"], row["peer"]): row for rank, dump in dumps.items() for row in dump["p2p"]}
    waits = []
    for (rank, key, kind, peer), row in rows.items():
        ranks = members.get(key) or sorted(ranks_in(dumps[rank]["config"].get(key.split("|")[1], "")))
        if not row["open"] or peer >= len(ranks):
            continue
        other = rows.get((ranks[peer], key, "recv" if kind == "send" else "send", row["me"]))
        whole = ranks[peer] in dumps and dumps[rank]["complete"] and dumps[ranks[peer]]["complete"]
        if not other or (not other["open"] and not (whole and other["calls"] >= row["calls"])):
            waits.append(Wait(f"{kind} {rank}{'->' if kind == 'send' else '<-'}{ranks[peer]}", {rank}, {ranks[peer]}))
    return waits


def _gaps(times: array[int]) -> list[float]:
    known = [time for time in times if time]
    return [(later - earlier) / 1e9 for earlier, later in itertools.pairwise(known)]
