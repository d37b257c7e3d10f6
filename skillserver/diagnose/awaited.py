"""A rank for which others wait: is it hung, slow, or were the dumps only written at an unlucky moment?

One set of dumps cannot tell slow from hung. `hung` therefore needs a second witness: two equal looks some time apart, a
wait as long as the collective's own timeout, or a collective that the others gave up long ago. `slow` is a rank that
always comes late, `usual` a wait no longer than between any two collectives, `close` a dump that may be older than the
others'. File times bound a wait from above (copying makes them later, never earlier); one that is later than the
timeout allows says nothing. Knows one rank at a time.

>>> weigh(job, Awaited(1, place), stale=False).sure
'unclear'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from skillserver.diagnose.flight_groups import Group, Job
from skillserver.diagnose.wait_graph import Wait
from skillserver.units import show_seconds

Sureness = Literal["hung", "unclear", "slow", "close", "usual"]
STILL_S = 15.0  # two equal looks must be this far apart
LATE_S, LATE_SHARE, LATE_TIMES = 0.05, 0.3, 10.0  # a rank is known to be late; how many of its latenesses are still usual
CLOSE_INTERVAL_S, CLOSE_WAIT_S = 0.1, 10.0  # dumps of a healthy job written around one collective look like an absent rank
GIVEN_UP_S = 30.0
SHORT_S = 1.5  # a rank that writes its first dump holds the GIL for about a second (torch 2.13), and the others wait for it meanwhile
DAY_S = 86_400.0
PATIENCE, SLACK_S = 1.5, 60.0  # a collective that is open for longer than its timeout times this has a file time that was changed


@dataclass
class Place:
    """One collective in which ranks stand."""

    group: Group
    wait: Wait
    seq: int

    @cached_property
    def standing(self) -> list[int]:
        """Ranks that stand exactly here."""
        return sorted(self.wait.waiting)

    @cached_property
    def ended(self) -> bool:
        """Whether all of them left it, although somebody had not come."""
        return all(self.group.places[rank][1] for rank in self.standing)

    @cached_property
    def interval_s(self) -> float:
        """The longest usual gap between two of their collectives."""
        return self.group.interval_s(self.standing)

    @cached_property
    def entered_ns(self) -> list[int]:
        """When they entered."""
        return [time for rank in self.standing if (time := self.group.time_ns(rank, self.seq))]

    @cached_property
    def timeout_s(self) -> float:
        """The longest timeout among them; 0 when none was recorded."""
        return max((float(self.group.per[rank]["timeout_s"]) for rank in self.standing), default=0.0)

    def waited_s(self, job: Job, until: Iterable[int]) -> float | None:
        """Seconds from the first entry to the newest file of these ranks: an upper bound; None when file times say nothing."""
        written = [float(job.reading.latest[rank]["mtime"]) for rank in until if rank in job.dumped]
        if not written or not self.entered_ns:
            return None
        seconds = max(written) - min(self.entered_ns) / 1e9
        return seconds if 0 <= seconds <= (PATIENCE * self.timeout_s + SLACK_S if self.timeout_s else DAY_S) else None


@dataclass
class Awaited:
    """A rank at the end of the arrows; `behind` are all that wait for it, straight or through others."""

    rank: int
    place: Place
    behind: list[int]
    sure: Sureness = "unclear"
    why: str = ""


def places(job: Job) -> list[Place]:
    """Every collective in which somebody stands."""
    return [Place(group, wait, int(wait.place.rpartition("#")[2])) for group in job.groups for wait in group.waits()]


def weigh(job: Job, found: Awaited, stale: bool) -> Awaited:
    """Set `sure` and `why`."""
    place = found.place
    late = place.group.usual_lateness_s(found.rank, place.standing)
    if found.rank not in job.dumped:
        found.why = "it left no dump: it died, or its file is not among these"
    elif stale:
        found.sure, found.why = (
            "usual",
            "another rank finished a collective that this dump does not show as ended: the job moved while they were written",
        )
    elif (still := _still_s(job, found)) >= max(STILL_S, LATE_TIMES * max(place.interval_s, late)):
        found.sure, found.why = "hung", f"nothing moved between two dumps {show_seconds(still)} apart"
    elif place.ended:
        _weigh_ended(found, place.waited_s(job, [found.rank]))
    else:
        _weigh_open(found, place.waited_s(job, [found.rank]), late)
    return found


def _still_s(job: Job, found: Awaited) -> float:
    """Seconds between two looks in which neither the rank nor one that waits for it had moved."""
    return min(job.reading.still_s.get(found.rank, 0.0), max((job.reading.still_s.get(rank, 0.0) for rank in found.place.standing), default=0.0))


def _weigh_ended(found: Awaited, waited: float | None) -> None:
    """The others left without it: they failed, or this dump is older than theirs by a moment."""
    usual = found.place.interval_s
    if usual >= CLOSE_INTERVAL_S and waited is not None and waited < max(CLOSE_WAIT_S, LATE_TIMES * usual):
        found.sure, found.why = "close", "its dump may have been written just before it entered that collective"
        return
    found.sure = "hung" if waited is not None and waited >= GIVEN_UP_S else "unclear"
    found.why = "the others left that collective without it, which happens only when it failed or when this rank's dump is older than theirs"


def _weigh_open(found: Awaited, waited: float | None, late: float) -> None:
    """The others still stand there."""
    usual, timeout = found.place.interval_s, found.place.timeout_s
    if waited is not None and timeout and waited >= 0.95 * timeout:
        found.sure, found.why = "hung", f"the dump was written {show_seconds(waited)} after the others entered: as long as their timeout"
    elif waited is not None and waited <= max(SHORT_S, 3 * usual):
        found.sure, found.why = "usual", f"waited for {show_seconds(waited)} at most: no longer than may be between two collectives"
    elif late >= max(LATE_S, LATE_SHARE * usual) and (waited is None or waited <= LATE_TIMES * late):
        found.sure, found.why = "slow", f"it usually comes {show_seconds(late)} later than the others: rather slow than hung"
    else:
        bound = f" (waited for {show_seconds(waited)} at most)" if waited is not None else ""
        found.why = f"one set of dumps cannot tell a hung rank from a slow one{bound}"
