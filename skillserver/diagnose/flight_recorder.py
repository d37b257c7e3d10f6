"""Flight Recorder dumps of a job -> who hangs, who only waits, what the ranks called differently.

Order of judgement: calls that do not match (certain), then the roots of the wait-for graph, weighed one by one, then
circles, then members that nobody has seen, then collectives that everybody entered and that did not end. Knows dumps;
stacks are joined in `hang`, words are in `flight_findings`.

>>> judge(flight_files.read(paths, children=2)).culprits
[1]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from skillserver.diagnose import awaited, flight_findings, flight_groups, wait_graph
from skillserver.diagnose.awaited import Awaited, Place
from skillserver.diagnose.flight_files import Reading
from skillserver.diagnose.flight_groups import Group, Job, Mismatch
from skillserver.diagnose.ranks import show_ranks
from skillserver.diagnose.wait_graph import Wait
from skillserver.findings import Finding

CHAINED = 512  # ranks up to which everybody behind a root is named
FILES_NAMED = 8
UNRECORDED = "send and recv of gloo: it does not record them, a hang between two ranks there shows in stacks only"


@dataclass
class Judged:
    """What the dumps say. `late` ranks are awaited but not blamed; `again` = a second look would decide."""

    findings: list[Finding] = field(default_factory=list)
    culprits: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    job: Job | None = None
    again: bool = False


def judge(reading: Reading) -> Judged:
    """The findings of all dumps, causes first."""
    if len(worlds := flight_groups.worlds(reading)) > 1:
        return Judged(findings=[flight_findings.several_jobs(worlds)], skipped=reading.broken[:FILES_NAMED])
    job = flight_groups.assembled(reading)
    places = awaited.places(job)
    waits = [place.wait for place in places] + job.pairs
    blocked = [wait for wait in waits if wait.lacking or wait.unseen]
    out = Judged(job=job, skipped=_skipped(job), waiting=sorted({rank for wait in blocked for rank in wait.waiting}))
    if not _mismatches(job, out):
        _roots(job, places, blocked, out)
    if all(finding.severity == "info" for finding in out.findings):
        _open_to_all(job, places, out)
    if (missing := job.world - job.dumped) and not out.findings:
        out.findings.append(flight_findings.no_dump(missing))
    out.waiting = sorted(set(out.waiting) - set(out.culprits))
    return out


def _skipped(job: Job) -> list[str]:
    reading = job.reading
    said = reading.broken[:FILES_NAMED]
    if len(reading.broken) > FILES_NAMED:
        said.append(f"{len(reading.broken) - FILES_NAMED} more files that could not be read")
    if reading.guessed:
        said.append(f"the rank is guessed from the last number in the name of {', '.join(reading.guessed[:3])}")
    if missing := job.world - job.dumped:
        said.append(f"no dump of rank {show_ranks(missing)}")
    if any(group.backend == "gloo" for group in job.groups):
        said.append(UNRECORDED)
    cut = [rank for rank, dump in reading.latest.items() if not dump["complete"]]
    if cut and len(cut) < len(job.dumped):
        said.append(f"older entries of rank {show_ranks(cut)}: overwritten")
    return said


def _mismatches(job: Job, out: Judged) -> bool:
    """Report the first mismatch of each group, the earliest first; True when one of them stopped the job."""
    found = [(group, mismatch) for group in job.groups if (mismatch := group.mismatch())]
    found.sort(key=lambda pair: min((time for rank in pair[0].per if (time := pair[0].time_ns(rank, pair[1].seq))), default=0))
    stopped = False
    for group, mismatch in found:
        if mismatch.kind == "size" and _went_on(group, mismatch):
            out.findings.append(flight_findings.passed(group, mismatch))
            continue
        if not stopped:
            out.culprits = mismatch.odd or sorted(rank for _call, ranks in mismatch.calls for rank in ranks)
            standing = {rank for rank, own in group.per.items() if own["pending"] is not None or own["last"] == mismatch.seq}
            out.waiting = sorted({*out.waiting, *standing} - set(out.culprits))
        out.findings.append(flight_findings.unequal(job, group, mismatch, "warning" if stopped else "critical"))
        stopped = True
    return stopped


def _went_on(group: Group, mismatch: Mismatch) -> bool:
    """Whether every rank that made the call has finished it and made another."""
    made = [group.per[rank] for _call, ranks in mismatch.calls for rank in ranks]
    return all(own["last"] > mismatch.seq and (own["pending"] is None or own["pending"] > mismatch.seq) for own in made)


def _roots(job: Job, places: list[Place], blocked: list[Wait], out: Judged) -> None:
    """Blame the ends of the arrows, or the circles, or say why nobody is blamed."""
    solution = wait_graph.solve(blocked)
    stale = {rank for group in job.groups for rank in group.stale()}
    best = _best_places(places)
    found = [awaited.weigh(job, Awaited(rank, best[rank], _behind(job, blocked, rank)), rank in stale) for rank in solution.roots if rank in best]
    peers = {rank for rank in solution.roots if rank not in best}
    out.culprits = sorted({one.rank for one in found if one.sure in ("hung", "unclear")} | peers & job.dumped)
    out.late = sorted(one.rank for one in found if one.sure in ("slow", "close"))
    out.again = bool(out.late or peers) or any(one.sure == "unclear" for one in found)
    out.findings += _grouped(job, found)
    out.findings += [flight_findings.pair(job, wait) for wait in job.pairs if wait.lacking & peers][:4]
    if not out.culprits and solution.cycles:
        out.culprits = sorted({rank for cycle in solution.cycles for rank in cycle})
        out.findings += [flight_findings.circle(job, cycle, blocked) for cycle in solution.cycles[:3]]
    if not solution.roots and not solution.cycles:
        _unseen(job, [wait for wait in blocked if wait.unseen], blocked, out)


def _best_places(places: list[Place]) -> dict[int, Place]:
    """For each awaited rank the place where most ranks wait for it."""
    best: dict[int, Place] = {}
    for place in sorted(places, key=lambda place: len(place.standing)):
        best.update(dict.fromkeys(place.wait.lacking, place))
    return best


def _behind(job: Job, blocked: list[Wait], rank: int) -> list[int]:
    return sorted(wait_graph.behind(blocked, rank)) if len(job.dumped) <= CHAINED else []


def _grouped(job: Job, found: list[Awaited]) -> list[Finding]:
    """One finding for the ranks that are awaited at one place for one reason."""
    same: dict[tuple[int, str, bool], list[Awaited]] = {}
    for one in found:
        same.setdefault((id(one.place), one.sure, one.rank in job.dumped), []).append(one)
    return [flight_findings.missing(job, ranks) for ranks in sorted(same.values(), key=lambda ranks: ranks[0].sure != "hung")]


def _unseen(job: Job, waits: list[Wait], blocked: list[Wait], out: Judged) -> None:
    """A gloo group of which the dumps show one member only: somebody who never used it is awaited."""
    if not waits:
        return
    standing = {rank for wait in waits for rank in wait.waiting}
    idle = sorted(job.dumped - {rank for group in job.groups for rank in group.places})
    chained = {rank for wait in blocked if wait.lacking & standing for rank in wait.waiting}  # a circle can close through them
    if not idle or chained:
        out.culprits = sorted(standing | chained)
    elif len(job.dumped) == 2:
        out.culprits = sorted(job.dumped - standing)
    elif len(waits) == 1 or len(idle) <= len(waits):
        out.culprits = idle
    circle = not idle and len(standing) > 1
    out.waiting, out.again = sorted({*out.waiting, *standing} - set(out.culprits)), True
    out.findings.append(flight_findings.unseen(job, waits, out.culprits, circle))


def _open_to_all(job: Job, places: Iterable[Place], out: Judged) -> None:
    """Everybody came, the calls agree, and still it is open: in flight, or the network; or too few dumps to know."""
    for place in places:
        group, ranks = place.group, place.standing
        if place.wait.lacking or place.wait.unseen or group.floor >= place.seq:
            continue
        if missing := group.members - job.dumped:
            out.findings.append(flight_findings.few(job, place, missing))
            return
        waited = place.waited_s(job, ranks)
        still = min(job.reading.still_s.get(rank, 0.0) for rank in ranks)
        stalled = still >= awaited.STILL_S or (waited is not None and 0 < 0.95 * place.timeout_s <= waited)
        if stalled:
            out.waiting = sorted({*out.waiting, *ranks})
        out.findings.append(flight_findings.open_to_all(job, place, stalled))
        return
