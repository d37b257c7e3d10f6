"""What the judges of Flight Recorder dumps found, in words: one finding each, with calls and user frames as evidence.

Stacks are not kept while thousands of dumps are read: the two or three that are shown are read again from their files.
Knows wording; decides nothing.

>>> missing(job, [found]).reason
'Rank 1 had not entered #4 of default_pg, and waits in no collective itself (gloo records no send or recv); ...'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from skillserver import topics
from skillserver.diagnose import flight_entries
from skillserver.diagnose.awaited import Awaited, Place
from skillserver.diagnose.flight_groups import Group, Job, Mismatch
from skillserver.diagnose.plain_pickle import NotPlain
from skillserver.diagnose.ranks import show_ranks
from skillserver.diagnose.wait_graph import Wait
from skillserver.findings import Finding, Severity

AGAIN = "write the dumps once more, half a minute later, and pass both sets of files: a rank that stands still in both hangs"
LIBRARY = ("site-packages", "dist-packages", "/lib/python3", "<frozen")
CODES = {"hung": "missing_rank", "unclear": "missing_rank", "slow": "slow_rank", "close": "moment_unclear", "usual": "progressing"}
SEVERITIES: dict[str, Severity] = {"hung": "critical", "unclear": "warning", "slow": "warning", "close": "info", "usual": "info"}


def unequal(job: Job, group: Group, mismatch: Mismatch, severity: Literal["critical", "warning"]) -> Finding:
    """Calls that do not match, and who differs."""
    what = {"type": "different operations", "dtype": "different dtypes", "size": "different sizes"}[mismatch.kind]
    named = mismatch.odd or [rank for _call, ranks in mismatch.calls for rank in ranks]
    blame = f"rank {show_ranks(mismatch.odd)} differs from the majority" if mismatch.odd else "no majority, so either side may be wrong"
    shift = f"; {mismatch.shift}" if mismatch.shift else ""
    return Finding(
        code=f"collective_{mismatch.kind}_mismatch", severity=severity, subject=f"rank {show_ranks(named)}",
        evidence=[f"rank {show_ranks(ranks)}: {words(call)}{_at(job, group, ranks[0], mismatch.seq)}" for call, ranks in mismatch.calls[:4]],
        reason=f"The ranks of {group.name} called {what} at #{mismatch.seq}: {blame}{shift}. They run different programs; waiting does not help.",
        action="restart_app after making every rank call the same collectives with the same sizes in the same order",
        sections=topics.sections("collective_mismatch"),
    )  # fmt: skip


def passed(group: Group, mismatch: Mismatch) -> Finding:
    """Sizes that differ where nobody hangs."""
    return Finding(
        code="collective_size_mismatch_passed", severity="warning", subject=f"rank {show_ranks(mismatch.odd)}",
        evidence=[f"rank {show_ranks(ranks)}: {words(call)}" for call, ranks in mismatch.calls[:3]],
        reason=f"Sizes differ at #{mismatch.seq} of {group.name}, and all ranks went on: no hang there, but what arrived may be wrong.",
        action="fix_setup: give every rank the same size there", sections=topics.sections("collective_mismatch"),
    )  # fmt: skip


def missing(job: Job, same: Sequence[Awaited]) -> Finding:
    """Ranks that are awaited at one place for one reason."""
    first, ranks = same[0], [found.rank for found in same]
    place, group = first.place, first.place.group
    verb = "left" if place.ended else "in"
    evidence = [f"rank {show_ranks(place.standing)} {verb} {_here(job, group, place.standing[0], place.seq)}"]
    if others := sorted(set(first.behind) - set(place.standing)):
        evidence.append(f"rank {show_ranks(others)} in other collectives, for ranks that wait for this one too")
    if first.rank in group.per:
        evidence.append(f"rank {first.rank} last entered {_here(job, group, first.rank, group.per[first.rank]['last'])}")
    sure = first.sure == "hung"
    free = "waits in no collective itself (gloo records no send or recv)" if group.backend == "gloo" else "waits for nobody itself"
    return Finding(
        code=CODES[first.sure], severity=SEVERITIES[first.sure], subject=f"rank {show_ranks(ranks)}", evidence=evidence,
        reason=f"Rank {show_ranks(ranks)} had not entered #{place.seq} of {group.name}, and {free}; {first.why}.",
        action=_action(first),
        sections=topics.sections("missing_rank") + ([] if sure else topics.sections("slow_or_hung")),
    )  # fmt: skip


def _action(found: Awaited) -> str:
    if found.sure == "usual":
        return "none"
    if found.sure == "hung":
        return "restart_app after reading the stack and log of that rank"
    if found.place.ended:
        return "observe: read the log of that rank up to its end; if its dump is older than the others', write all of them again"
    return f"observe: {AGAIN}"


def pair(job: Job, wait: Wait) -> Finding:
    """One end of a send without the other."""
    peer = min(wait.lacking)
    gone = "" if peer in job.dumped else " (it left no dump)"
    return Finding(
        code="missing_peer", severity="warning", subject=f"rank {peer}", evidence=[f"open: {wait.place}"],
        reason=f"Rank {min(wait.waiting)} stands in a point-to-point call for which rank {peer}{gone} shows no counterpart.",
        action=f"observe: {AGAIN}", sections=topics.sections("missing_rank"),
    )  # fmt: skip


def circle(job: Job, cycle: list[int], blocked: Iterable[Wait]) -> Finding:
    """Ranks that wait for each other: the same groups, used in another order."""
    evidence = []
    for wait in [wait for wait in blocked if wait.waiting & set(cycle) and wait.lacking & set(cycle)][:4]:
        inside = sorted(wait.waiting & set(cycle))
        evidence.append(f"rank {show_ranks(inside)} waits in {wait.place} for rank {show_ranks(wait.lacking & set(cycle))}{_stand(job, inside[0])}")
    return Finding(
        code="circular_wait", severity="critical", subject=f"rank {show_ranks(cycle)}", evidence=evidence,
        reason="These ranks wait for each other in different groups: they use the groups in a different order, and none can go on.",
        action="restart_app after making every rank use the groups in one order", sections=topics.sections("collective_mismatch"),
    )  # fmt: skip


def unseen(job: Job, waits: Sequence[Wait], culprits: list[int], is_circle: bool) -> Finding:
    """Somebody who never used a group is awaited in it."""
    standing = sorted({rank for wait in waits for rank in wait.waiting})
    free = sorted(set(culprits) - set(standing))
    reason = f"Rank {show_ranks(standing)}: each waits in a group of which the dumps show no other member (gloo does not record who belongs to it). "
    if is_circle:
        reason += "No rank is free, so they wait for each other, in a circle."
    else:
        reason += "Awaited is a rank that waits for nothing, or one that stands in another group; then they wait in a circle."
        reason += f" Rank {show_ranks(free)} fits best." if free else ""
    return Finding(
        code="circular_wait" if is_circle else "missing_rank", severity="critical" if is_circle else "warning",
        subject=f"rank {show_ranks(culprits)}" if culprits else "unknown rank",
        evidence=[f"rank {show_ranks(wait.waiting)} waits in {wait.place}{_stand(job, min(wait.waiting))}" for wait in waits[:4]],
        reason=reason, action=f"observe: {AGAIN}, with the stacks of all ranks", sections=topics.sections("missing_rank"),
    )  # fmt: skip


def several_jobs(worlds: Mapping[tuple[int, ...], list[int]]) -> Finding:
    """Dumps that do not agree on who belongs to the job."""
    said = [f"rank {show_ranks(ranks)}: a job of {len(world):,} ranks" for world, ranks in sorted(worlds.items(), key=lambda item: -len(item[1]))]
    return Finding(
        code="several_jobs", severity="warning", subject="these dumps", evidence=said[:4],
        reason="The dumps name different members of the default group: they are of different jobs, or of one before and after a restart. "
               "Compared with each other they would blame somebody at random, so nothing was judged.",
        action="observe: pass the files of one job and one start only; the newest by their time are the last start's",
        sections=topics.sections("flight_recorder"),
    )  # fmt: skip


def no_dump(ranks: Iterable[int]) -> Finding:
    """Everybody else is done; somebody left nothing."""
    return Finding(
        code="rank_without_dump", severity="warning", subject=f"rank {show_ranks(ranks)}",
        reason="The other ranks have no collective open: they finished or gave up. A rank without a dump may have died before it could write one.",
        action="observe: look at the log and exit status of that rank, and pass its dump if there is one",
        sections=topics.sections("flight_recorder"),
    )  # fmt: skip


def few(job: Job, place: Place, absent: Iterable[int]) -> Finding:
    """Waiters without the dumps of those they wait for."""
    return Finding(
        code="dumps_missing", severity="warning", subject=f"rank {show_ranks(place.standing)}",
        evidence=[f"open: {_here(job, place.group, place.standing[0], place.seq)}"],
        reason=f"These ranks wait there, but of rank {show_ranks(absent)} nothing is known: the one they wait for is probably among them.",
        action="observe: pass the dumps of all ranks", sections=topics.sections("flight_recorder"),
    )  # fmt: skip


def open_to_all(job: Job, place: Place, stalled: bool) -> Finding:
    """Every member came; `stalled` when it is open for too long."""
    text = "Every member entered this collective with equal arguments, and it was "
    text += ("not over long after: not the program, but a GPU, NIC or link, or a kernel before it on the same stream." if stalled
             else "open when the dumps were written, as in any running job.")  # fmt: skip
    return Finding(
        code="transport_stalled" if stalled else "in_flight", severity="critical" if stalled else "info",
        subject=f"rank {show_ranks(place.standing)}", evidence=[_here(job, place.group, place.standing[0], place.seq)], reason=text,
        action="drain_rma: look for Xid and NIC errors on the nodes of these ranks first (check_gpu_health)" if stalled else "none",
        sections=topics.sections("network_hang") if stalled else [],
    )  # fmt: skip


def words(call: tuple[str, str, str, str]) -> str:
    """`all_reduce [[1024]] [Float]`"""
    op, given, _made, dtypes = call
    return f"{op} {given} {dtypes}".replace("'", "").strip() if given not in ("[]", "None") else op


def user_frames(frames: Iterable[tuple[str, str, int]], limit: int = 2) -> str:
    """`step (train.py:33) <- main (train.py:70)`: the innermost frames that are not of an installed package."""
    frames = list(frames)
    own = [frame for frame in frames if not any(part in frame[1] for part in LIBRARY)]
    return " <- ".join(f"{name} ({Path(file).name}:{line})" for name, file, line in (own or frames)[:limit])


def _here(job: Job, group: Group, rank: int, seq: int) -> str:
    return f"#{seq} {words(group.call(rank, seq))} of {group.name}{_at(job, group, rank, seq)}"


def _at(job: Job, group: Group, rank: int, seq: int) -> str:
    """` at step (train.py:33) <- main (...)`, from that one file; JSON has no stacks, an older pickle may."""
    for dump in (job.reading.latest.get(rank), job.reading.earlier.get(rank)):
        try:
            frames = flight_entries.stack_at(Path(dump["path"]), group.key, seq) if dump else []
        except (NotPlain, OSError):
            continue
        if shown := user_frames(flight_entries.triples(frames)):
            return f" at {shown}"
    return ""


def _stand(job: Job, rank: int) -> str:
    """Where a rank stands, of the first group in which it does."""
    return next((_at(job, group, rank, group.places[rank][0]) for group in job.groups if rank in group.places), "")
