"""What the NCCL watchdog's lines say when those of several ranks are laid side by side.

A line gives a rank's place in one process group: the collective it is stuck in (SeqNum, OpType, size) and the triple
at work / last enqueued / last completed. Sequence numbers count within one process group only, and `PG ID` is a rank's
own ordinal, so ranks are compared when the group's GUID or name is the same, or when its ranks are the world's.
Knows these lines only; not why a rank is late.

>>> read(hits).diverged, read(hits).reading[0]
(True, 'rank 0 is stuck in #122 _REDUCE_SCATTER_BASE, rank 1 in #126 _ALLGATHER_BASE: ...')
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from skillserver.diagnose.collecting import Hit

WORK = re.compile(
    r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,20}), NumelOut=(\d{1,20}))?, "
    r"Timeout\(ms\)=(\d{1,12})\)(?: ran for (\d{1,12}))?"
)
TRIPLE = re.compile(
    r"(?:(?:at work|at NCCL work|at work sequence id): (\d{1,18})(?:, | PG status: ))?"
    r"[Ll]ast enqueued (?:\w{1,12} )?work: ?(-?\d{1,18}), last completed (?:\w{1,12} )?work: ?(-?\d{1,18})"
)
GUID = re.compile(r"\[PG ID \d{1,6} PG GUID (\w{1,40})(?:\(([^)]{1,80})\))? Rank (\d{1,6})\]")
OLD_GROUP = re.compile(r"\[PG (\d{1,6})(?: \(([^)]{1,80})\))? Rank (\d{1,6})\]")
PAIRWISE = {"SEND", "RECV", "COALESCED", "RECVANYSOURCE", "UNKNOWN"}  # the two ends differ rightly
SAME_SIZE = {"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
BLOCKED = 1.5  # times the timeout: the watchdog thread itself was held up
NAMED = 8  # ranks named in a sentence


@dataclass
class Place:
    """Where one rank stood in one process group; None = its lines do not say."""

    rank: int
    seq: int | None = None
    op: str = ""
    numel: tuple[str, str] | None = None
    enqueued: int | None = None
    completed: int | None = None
    assumed: bool = False  # its line names no group; the default group is the only one in the log


@dataclass
class Reading:
    """`suspects` are ranks that the others waited for; `hits` the lines that show it."""

    diverged: bool = False
    confidence: float = 0.0
    reading: list[str] = field(default_factory=list)
    suspects: list[int] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)


def read(hits: Iterable[Hit]) -> Reading:
    """Compare the ranks group by group; the first group that disagrees decides."""
    hits = list(hits)
    groups = _groups(hits)
    notes = _times(hits)
    for name, places in groups.items():
        result = _compare(name, places)
        if result.reading:
            if any(place.assumed for place in places.values()):
                result.confidence -= 0.15
                notes.append("some lines name no process group: taken for the default group, the only one named here")
            result.reading += notes
            result.hits = _shown(hits, set(result.suspects))
            return result
    return Reading(reading=[*_alone(hits, groups), *notes], hits=hits)


def _shown(hits: list[Hit], suspects: set[int]) -> list[Hit]:
    """One line a rank, the suspects' first, those with a WorkNCCL before the others."""
    one: dict[int | None, Hit] = {}
    for hit in sorted(hits, key=lambda hit: (hit.rank not in suspects, not WORK.search(hit.full), hit.line)):
        one.setdefault(hit.rank, hit)
    return list(one.values())


def _rank(hit: Hit) -> int | None:
    """The world's rank: the prefix [rank12] before `Rank 0` in brackets, which counts within the group."""
    return hit.rank


def _group(hit: Hit) -> tuple[str, int | None]:
    """(comparable name of the group or "", rank within it)."""
    if match := GUID.search(hit.full):
        return f"{match[2] or 'group'} (GUID {match[1]})", int(match[3])
    if match := OLD_GROUP.search(hit.full):
        return match[2] or f"PG {match[1]}", int(match[3])
    return "", None


def _groups(hits: list[Hit]) -> dict[str, dict[int, Place]]:
    """{group: {rank: place}}; a line without a group belongs to the group where its rank's other lines put that work."""
    groups: dict[str, dict[int, Place]] = defaultdict(dict)
    odd: set[str] = set()
    for hit in hits:
        name, within = _group(hit)
        rank = _rank(hit)
        if not name or rank is None or not (triple := TRIPLE.search(hit.full)):
            continue
        if "GUID" not in name and name != "default_pg" and within != rank:
            odd.add(name)  # an ordinal or a kind of group ("tp"): not the same group on every rank
        place = groups[name].setdefault(rank, Place(rank))
        place.enqueued, place.completed = int(triple[2]), int(triple[3])
        place.seq = int(triple[1]) if triple[1] else place.seq
    for hit in hits:
        if work := WORK.search(hit.full):
            _fill(groups, hit, work)
    return {name: places for name, places in groups.items() if name not in odd}


def _fill(groups: dict[str, dict[int, Place]], hit: Hit, work: re.Match[str]) -> None:
    rank, seq = _rank(hit), int(work[1])
    name = _group(hit)[0]
    if rank is None:
        return
    homes = [name] if name else [other for other, places in groups.items() if rank in places and places[rank].seq == seq]
    only = next(iter(groups)) if len(groups) == 1 else ""
    assumed = not homes and only.startswith("default_pg") and rank not in groups[only]
    if len(homes) != 1 and not assumed:
        return
    place = groups[only if assumed else homes[0]].setdefault(rank, Place(rank, assumed=assumed))
    place.seq = seq if place.seq is None else place.seq
    if place.seq == seq:
        place.op, place.numel = work[2], (work[3], work[4]) if work[3] else None


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(set(ranks))
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed[:NAMED]))}{more}"


def _compare(name: str, places: dict[int, Place]) -> Reading:
    stuck = [place for place in places.values() if place.seq is not None and place.op]
    if not stuck or any(place.op in PAIRWISE for place in stuck):
        return Reading()
    stops: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place in stuck:
        stops[(place.seq or 0, place.op)].append(place.rank)
    if len(stops) > 1:
        return _different(name, places, stops)
    (seq, op), waiting = next(iter(stops.items()))
    absent = [place.rank for place in places.values() if place.enqueued is not None and place.enqueued < seq]
    if absent:
        last = max(places[rank].enqueued or 0 for rank in absent)
        said = f"waiting in #{seq} {op} of {name}: {_ranks(waiting)}; not enqueued it (last #{last}): {_ranks(absent)}"
        # https://github.com/pytorch/pytorch: collective() counts a work after launching it, so a hung launch looks the same
        return Reading(confidence=0.75, suspects=sorted(absent), reading=[f"{said}, which did not arrive or hang in launching it"])
    sizes = Counter(place.numel for place in stuck if place.numel)
    if len(sizes) > 1 and op in SAME_SIZE:
        odd = _minority({size: [place.rank for place in stuck if place.numel == size] for size in sizes}.values())
        return Reading(True, 0.85, [f"all ranks stand in #{seq} {op} of {name}, but with different sizes: "
                                    + ", ".join(f"{n} ranks {size[0]}" for size, n in sizes.most_common(3))], odd)  # fmt: skip
    return Reading()


def _different(name: str, places: dict[int, Place], stops: dict[tuple[int, str], list[int]]) -> Reading:
    where = ", ".join(f"{_ranks(ranks)} in #{seq} {op}" for (seq, op), ranks in sorted(stops.items())[:4])
    completed = [place.completed for place in places.values() if place.completed is not None]
    common = f"; the last collective that all of them completed is #{min(completed)}" if completed else ""
    places_apart = max(stops)[0] - min(stops)[0]
    if len({op for _seq, op in stops}) > 1 and places_apart != 1:
        why = "different operations at the same place" if places_apart == 0 else "different operations at different places"
        said = f"{where} of {name}: {why} = the ranks ran different programs{common}"
        return Reading(True, 0.85 if places_apart else 0.9, [said], _minority(stops.values()))
    late = _ranks(stops[min(stops)])
    # when a link or a GPU fails, a collective may end on one rank and not on another: one apart proves nothing
    why = f"{late} may be the first to have failed, or the link to them" if places_apart == 1 else f"{late} fell behind or ran fewer collectives"
    return Reading(confidence=0.55, suspects=sorted(stops[min(stops)]), reading=[f"{where} of {name}: {why}{common}"])


def _minority(parts: Iterable[list[int]]) -> list[int]:
    """The ranks of the one smallest part; nobody when sizes tie."""
    ordered = sorted(parts, key=len)
    return sorted(ordered[0]) if len(ordered) > 1 and len(ordered[0]) < len(ordered[1]) else []


def _times(hits: list[Hit]) -> list[str]:
    """Remarks on durations and on a collective that never worked."""
    notes = []
    works = [work for hit in hits if (work := WORK.search(hit.full))]
    slow = [work for work in works if work[6] and int(work[6]) > BLOCKED * int(work[5])]
    if slow:
        notes.append(f"the watchdog noticed after {int(slow[0][6]) / 1000:,.0f} s, far over its timeout of {int(slow[0][5]) / 1000:,.0f} s: "
                     "its own thread was blocked (GIL or a hung CUDA call)")  # fmt: skip
    triples = [triple for hit in hits if (triple := TRIPLE.search(hit.full))]
    if triples and all(int(triple[3]) <= 0 for triple in triples):
        notes.append("not one collective ever completed: a matter of set-up (network, interfaces, GPU mapping), not of this step")
    return notes


def _alone(hits: list[Hit], groups: dict[str, dict[int, Place]]) -> list[str]:
    """What can be said when the ranks do not disagree, or cannot be compared."""
    ranks = {rank for hit in hits if (rank := _rank(hit)) is not None and WORK.search(hit.full)}
    works = Counter((work[1], work[2]) for hit in hits if (work := WORK.search(hit.full)))
    if not works or not ranks:
        return []
    (seq, op), _count = works.most_common(1)[0]
    if len(works) > 1 and not groups:
        return ["the ranks name different collectives, but the lines do not say of which process group: sequence numbers of different groups "
                "cannot be compared"]  # fmt: skip
    if len(works) > 1:
        return []
    silent = sorted(set(range(max(ranks) + 1)) - ranks)
    said = f"{_ranks(ranks)} wait in #{seq} {op}"
    if silent and len(silent) <= len(ranks):
        return [f"{said}; {_ranks(silent)} printed no timeout here: they are the ones waited for, or their log is elsewhere"]
    return [f"{said}, all in the same collective: the rank they wait for is outside this log, or the network between them failed"]
