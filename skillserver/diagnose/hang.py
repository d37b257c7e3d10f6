"""Flight Recorder dumps and stacks of one job -> one verdict: who hangs, who only waits, what to do next.

Dumps decide who is missing, for they count collectives group by group; stacks say where that rank is. Stacks alone
blame by the odd one out, and not where the dumps show that the job moves. What was not judged stands in `skipped`.
Knows files and text; live processes are read by `live_stacks`.

>>> diagnose([Path("fr/rank_0"), Path("fr/rank_1")], []).culprits
[1]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from skillserver import findings, processes, topics
from skillserver.diagnose import flight_files, flight_recorder, stack_kinds, stacks
from skillserver.diagnose.flight_groups import Group
from skillserver.diagnose.ranks import show_ranks
from skillserver.diagnose.stacks import Key
from skillserver.findings import Finding, Verdict

CHILDREN = 8
TEXT_BYTES = 64 * 2**20
LISTED, FINDINGS, GROUPS = 64, 8, 8
MOVING = ("progressing", "in_flight", "slow_rank", "moment_unclear")
BLIND = " These dumps cannot show a send or recv, which gloo does not record: if the job stands still, stacks decide."
Text = tuple[str, str, float | None]  # name, text, time of the file


class GroupSeen(BaseModel):
    """One process group: where its ranks stand. `open` ranks have not left the collective that they entered last."""

    group: str
    backend: str
    ranks: str
    entered: str = Field(description="last collective entered: how many ranks at which number")
    open: int


class StackSeen(BaseModel):
    """Equal stacks of main threads."""

    who: str
    count: int
    doing: str
    frames: str


class HangDiagnosis(BaseModel):
    """`culprits` are ranks (a label where the rank is unknown), empty when nobody hangs; `waiting` are held up by them."""

    verdict: Verdict
    summary: str
    culprits: list[int | str]
    waiting: list[int | str]
    findings: list[Finding]
    groups: list[GroupSeen] = Field(default_factory=list)
    stacks: list[StackSeen] = Field(default_factory=list)
    skipped: list[str] = Field(default_factory=list)
    next: str


def diagnose(files: Sequence[Path], texts: Sequence[Text], skipped: Sequence[str] = ()) -> HangDiagnosis:
    """One verdict from dump and stack files of any mixture and pasted or live stacks."""
    dumps, written, unread = sorted_files(files)
    reading = flight_files.read(dumps, min(processes.allowed_cpus(), CHILDREN))
    flight = flight_recorder.judge(reading) if dumps else flight_recorder.Judged()
    seen = stacks.read([*written, *texts])
    spied = stacks.judge(seen)
    found, culprits, waiting = _joined(flight, seen, spied)
    judged = bool(reading.latest or seen.latest)
    left_out = [f"{len(waiting) - LISTED} more ranks that wait"] if len(waiting) > LISTED else []
    left_out += [f"{len(culprits) - LISTED} more culprits"] if len(culprits) > LISTED else []
    verdict = findings.verdict(found, judged=judged)
    blind = BLIND if _is_blind(flight, seen, found) else ""
    return HangDiagnosis(
        verdict=verdict, summary=_summary(verdict, culprits, waiting, found, len(reading.latest), len(seen.latest)) + blind,
        culprits=culprits[:LISTED], waiting=waiting[:LISTED], findings=findings.worst_first(found)[:FINDINGS],
        groups=_groups(flight), stacks=_stacks(seen), skipped=_few([*skipped, *unread, *flight.skipped, *seen.skipped, *left_out]),
        next=_next(verdict, culprits, found, flight, seen, spied),
    )  # fmt: skip


def _few(said: list[str]) -> list[str]:
    """Each once, and a count of the rest: ten thousand unreadable files are one fault."""
    once = list(dict.fromkeys(said))
    return [*once[:LISTED], f"{len(once) - LISTED:,} more like these"] if len(once) > LISTED else once


def sorted_files(files: Sequence[Path]) -> tuple[list[Path], list[Text], list[str]]:
    """(dumps, stack texts, what is neither): a pickle or a JSON object is a dump, other text holds stacks."""
    dumps: list[Path] = []
    texts: list[Text] = []
    unread = []
    for path in files:
        with path.open("rb") as opened:
            head = opened.read(4096)
        if not head:
            unread.append(f"{path.name}: empty")
        elif head[:1] in (b"\x80", b"{"):
            dumps.append(path)
        elif b"\0" in head or path.stat().st_size > TEXT_BYTES:
            unread.append(f"{path.name}: neither a dump nor text of at most {TEXT_BYTES // 2**20} MiB")
        else:
            texts.append((path.name, path.read_text(encoding="utf-8", errors="replace"), path.stat().st_mtime))
    return dumps, texts, unread


def _joined(flight: flight_recorder.Judged, seen: stacks.Seen, spied: stacks.Judged) -> tuple[list[Finding], list[Key], list[Key]]:
    """Findings, culprits and waiting ranks of both."""
    if flight.culprits:
        for finding in flight.findings[:1]:
            finding.evidence += _stacks_of(flight.culprits, seen)
        waiting: list[Key] = stacks.ordered({*flight.waiting, *spied.waiting} - set(flight.culprits))
        return [*flight.findings, *_aside(seen, flight.culprits)], list(flight.culprits), waiting
    moving = any(finding.code in MOVING for finding in flight.findings)
    sure = any(finding.severity == "critical" for finding in spied.findings)
    waiting = stacks.ordered({*flight.waiting, *spied.waiting})
    if moving and not sure:
        for finding in flight.findings[:1]:
            finding.evidence += _stacks_of(flight.late, seen)
        return flight.findings, [], waiting
    return [*flight.findings, *spied.findings, *_aside(seen, spied.culprits)], spied.culprits, [key for key in waiting if key not in spied.culprits]


def _stacks_of(keys: Sequence[Key], seen: stacks.Seen) -> list[str]:
    """Where those ranks are, by their stacks."""
    looks = [seen.latest[key] for key in keys if key in seen.latest]
    return [f"stack of {stacks.named([look.key])}: {stack_kinds.SAID[look.kind]}: {stacks.shown(look, 3)}" for look in looks[:3]]


def _aside(seen: stacks.Seen, culprits: Sequence[Key]) -> list[Finding]:
    """Data loader workers, when a culprit waits for data: the reason stands in their stacks."""
    workers = [look for look in seen.aside if look.kind == "worker"]
    if not workers or not any(seen.latest[key].kind == "data" for key in culprits if key in seen.latest):
        return []
    places = Counter(stacks.shown(look, 3) for look in workers)
    evidence = [f"{n}x {text}" for text, n in places.most_common(3)]
    return [Finding(
        code="dataloader_workers", severity="info", subject=f"{len(workers)} data loader workers", evidence=evidence,
        reason="The culprit waits for data; this is where its workers, or those of its neighbours, stand.", action="none",
        sections=topics.sections("dataloader_hang"),
    )]  # fmt: skip


def _summary(verdict: Verdict, culprits: Sequence[Key], waiting: Sequence[Key], found: Sequence[Finding], dumps: int, stacks_read: int) -> str:
    read = " and ".join(text for text in (f"{dumps} dumps" if dumps else "", f"{stacks_read} stacks" if stacks_read else "") if text)
    if verdict == "unknown":
        return "Nothing could be judged: no dump or stack could be read."
    if culprits:
        held = f"; {len(waiting)} rank{'s' if len(waiting) > 1 else ''} wait" if waiting else ""
        top = next((finding.reason for finding in findings.worst_first(found)), "")
        return f"{stacks.named(culprits).capitalize()} {'hangs' if verdict == 'critical' else 'hangs or is slow'}{held}. {top} Read: {read}."
    if found and verdict != "ok":
        return f"Nobody is blamed. {findings.worst_first(found)[0].reason} Read: {read}."
    return f"No rank is found to hang in {read}." + (f" {found[0].reason}" if found else "")


def _is_blind(flight: flight_recorder.Judged, seen: stacks.Seen, found: Sequence[Finding]) -> bool:
    """Whether nothing was found in dumps that cannot show a send or recv, and no stack was there to show it."""
    return flight_recorder.UNRECORDED in flight.skipped and not seen.latest and not found


def _groups(flight: flight_recorder.Judged) -> list[GroupSeen]:
    """The groups in which somebody stands first, then the largest."""
    if not flight.job:
        return []
    ordered = sorted(flight.job.groups, key=lambda group: (not group.places, -len(group.members)))
    return [_group_seen(group) for group in ordered[:GROUPS]]


def _group_seen(group: Group) -> GroupSeen:
    counts = Counter(own["last"] for own in group.per.values())
    entered = ", ".join(f"{n} at #{seq}" for seq, n in sorted(counts.items(), reverse=True)[:4])
    open_ = sum(own["pending"] is not None for own in group.per.values())
    return GroupSeen(group=group.name, backend=group.backend, ranks=show_ranks(group.members), entered=entered, open=open_)


def _stacks(seen: stacks.Seen) -> list[StackSeen]:
    return [
        StackSeen(who=stacks.named(look.key for look in looks), count=len(looks), doing=stack_kinds.SAID[first.kind], frames=stacks.shown(first))
        for looks, first in stacks.groups(seen)[:GROUPS]
    ]


def _next(verdict: Verdict, culprits: Sequence[Key], found: Sequence[Finding], flight: flight_recorder.Judged, seen: stacks.Seen,
          spied: stacks.Judged) -> str:  # fmt: skip
    codes = {finding.code for finding in found}
    if _is_blind(flight, seen, found):
        return "if the job stands still: py-spy dump of all ranks, then diagnose_hang with dumps and stacks"
    if verdict == "unknown":
        return "pass Flight Recorder dumps (TORCH_FR_BUFFER_SIZE=2000) named rank_N, or py-spy dumps of all ranks"
    if "transport_stalled" in codes:
        return "check_gpu_health on the nodes of these ranks"
    if any(code.endswith("_mismatch") for code in codes) or "circular_wait" in codes:
        return "compare the program at the named lines; nothing will move by itself"
    if culprits and not any(key in seen.latest for key in culprits):
        return f"py-spy dump of {stacks.named(culprits[:4])}, then diagnose_hang with dumps and stacks; explain_error on its log"
    if flight.again or spied.again:
        if any("left that collective" in finding.reason for finding in found):
            return f"explain_error on the log of {stacks.named(culprits[:4])}" if culprits else "explain_error on the logs of all ranks"
        return "a second set half a minute later, both passed together, tells slow from hung"
    return "explain_error on the log of that rank" if culprits else "nothing to do for a hang; for a slow run diagnose_training_log"
