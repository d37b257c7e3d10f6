"""Stacks of the ranks of a job -> equal ones merged, smallest group first, and who keeps the others waiting.

Many wait, one is elsewhere: ranks in a collective are victims, a rank in data loading, saving, a debugger or its own
code is the one they wait for. Alone that is a suspicion: a running job shows the same for a moment, so one look gives
a warning and asks for a second; two equal looks give certainty. Different collectives on different ranks may be
pipeline stages: named, blamed only when one small group stands apart. Knows processes; dumps are joined in `hang`.

>>> judge(read([("rank0.txt", text0, None), ("rank1.txt", text1, None)])).culprits
[1]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from skillserver import topics
from skillserver.diagnose import stack_kinds, stack_text
from skillserver.diagnose.ranks import show_ranks
from skillserver.diagnose.stack_kinds import COMMUNICATING, Frame, Kind
from skillserver.diagnose.stack_text import Process
from skillserver.findings import Finding, Severity

Key = int | str  # a rank, or the label of a process whose rank is unknown
STILL_S = 15.0
MOMENT_S = 1.0
AGAIN = "dump the stacks once more, half a minute later, and pass both: what stands still in both hangs"


@dataclass
class Look:
    """One stack of one rank or process at one moment; `at` is the file's time, None for pasted text."""

    key: Key
    frames: list[Frame]
    kind: Kind
    where: str = ""
    at: float | None = None
    main: bool = True

    @property
    def place(self) -> tuple[tuple[str, str, int], ...]:
        """What makes two stacks equal: functions, names of files, lines; paths and native frames differ between formats."""
        return tuple((name, file.rpartition("/")[2], line) for name, file, line in self.frames if file.endswith(".py") or file[:1] == "<")


@dataclass
class Seen:
    """The newest look of each process, an older one where there is one, and what is no rank."""

    latest: dict[Key, Look] = field(default_factory=dict)
    earlier: dict[Key, Look] = field(default_factory=dict)
    still_s: dict[Key, float] = field(default_factory=dict)
    aside: list[Look] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass
class Judged:
    """What the stacks say."""

    findings: list[Finding] = field(default_factory=list)
    culprits: list[Key] = field(default_factory=list)
    waiting: list[Key] = field(default_factory=list)
    again: bool = False


def read(texts: Iterable[tuple[str, str, float | None]]) -> Seen:
    """Looks of (name, text, file time)."""
    seen, guessed, looks = Seen(), [], []
    for name, text, at in texts:
        processes = stack_text.of_file(name, text)
        if not processes:
            seen.skipped.append(f"{name}: no stack in it")
        guessed += [name for process in processes if process.guessed]
        looks += [look for process in processes if (look := _look(process, at))]
    if guessed:
        seen.skipped.append(f"the rank is guessed from the last number in the name of {', '.join(guessed[:3])}")
    return arranged(seen, looks)


def arranged(seen: Seen, looks: Iterable[Look]) -> Seen:
    """Looks of one process put in order; equal ones at one moment are one look (text, JSON and native of one dump)."""
    by_key: dict[Key, list[Look]] = {}
    for look in looks:
        if look.kind in stack_kinds.ASIDE:
            seen.aside.append(look)
        else:
            by_key.setdefault(look.key, []).append(look)
    for key, several in by_key.items():
        several.sort(key=lambda look: look.at or 0.0)
        newest = several[-1]
        seen.latest[key] = next((look for look in several if look.kind != "code" and look.place == newest.place), newest)
        older = [look for look in several if look.place != newest.place and _later(newest, look)]
        if older:
            seen.earlier[key] = older[-1]
        elif (apart := (newest.at or 0.0) - (several[0].at or 0.0)) >= MOMENT_S:
            seen.still_s[key] = apart
    return seen


def _later(look: Look, other: Look) -> bool:
    """Whether two looks are of different moments; pasted text has no time and is taken in its order."""
    return look.at is None or other.at is None or look.at - other.at >= MOMENT_S


def _look(process: Process, at: float | None) -> Look | None:
    main = process.main()
    if not main or not main.frames:
        return None
    key: Key = process.rank if process.rank is not None else process.label
    return Look(key, main.frames, stack_kinds.kind(main.frames), process.where, at)


def judge(seen: Seen) -> Judged:
    """Who is elsewhere while others wait."""
    out = Judged()
    inside = [look for look in seen.latest.values() if look.kind in COMMUNICATING]
    outside = [look for look in seen.latest.values() if look.kind not in stack_kinds.WAITING]
    if inside and outside:
        _elsewhere(seen, inside, outside, out)
    elif len(inside) > 1 and len(inside) == len(seen.latest):
        _all_inside(seen, inside, out)
    out.culprits = ordered(out.culprits)
    out.waiting = ordered(set(out.waiting) - set(out.culprits))
    return out


def groups(seen: Seen) -> list[tuple[list[Look], Look]]:
    """Equal stacks together, the smallest group first."""
    same: dict[tuple[object, ...], list[Look]] = {}
    for look in seen.latest.values():
        same.setdefault(look.place, []).append(look)
    return [(looks, looks[0]) for looks in sorted(same.values(), key=len)]


def ordered(keys: Iterable[Key]) -> list[Key]:
    """Ranks first, by number."""
    return sorted(set(keys), key=lambda key: (isinstance(key, str), key if isinstance(key, int) else 0, str(key)))


def named(keys: Iterable[Key]) -> str:
    """`rank 0-2, thread 688514`"""
    keys = ordered(keys)
    ranks, labels = [key for key in keys if isinstance(key, int)], [key for key in keys if isinstance(key, str)]
    more = f" and {len(labels) - 6} more" if len(labels) > 6 else ""
    return ", ".join([*([f"rank {show_ranks(ranks)}"] if ranks else []), *labels[:6]]) + more


def shown(look: Look, limit: int = 2) -> str:
    """The innermost frames and the user's own below them."""
    python = [frame for frame in look.frames if frame[1].endswith(".py") or frame[1][:1] == "<"] or look.frames
    top = [frame for frame in python if "wrapper" not in frame[0]][: 1 if look.kind in COMMUNICATING else 3]
    own = [frame for frame in python if stack_kinds.is_own(frame[1]) and frame not in top][:limit]
    return " <- ".join(f"{name} ({file.rpartition('/')[2]}:{line})" for name, file, line in [*top, *own])


def _elsewhere(seen: Seen, inside: Sequence[Look], outside: Sequence[Look], out: Judged) -> None:
    out.waiting = [look.key for look in inside]
    moved = [look for look in outside if look.key in seen.earlier]
    busy = len(outside) > len(inside) and all(look.kind in ("code", "compile") for look in outside)
    still = min((seen.still_s.get(look.key, 0.0) for look in [*inside, *outside]), default=0.0)
    sure = still >= STILL_S
    out.again = not sure
    blamed = [] if (busy and not sure) else [look for look in outside if look not in moved]
    out.culprits = [look.key for look in blamed]
    paired = all(look.kind == "pair" for look in inside)  # each waits for its partner, which need not be among those outside
    by_place: dict[tuple[object, ...], list[Look]] = {}
    for look in outside:
        by_place.setdefault(look.place, []).append(look)
    for same in sorted(by_place.values(), key=len)[:4]:
        slow = same[0] in moved
        code = "slow_rank" if slow else "progressing" if not blamed else "rank_elsewhere"
        severity: Severity = "critical" if sure and not slow and not paired else "info" if code == "progressing" else "warning"
        out.findings.append(_finding(code, severity, same, inside, still if sure else 0.0))


def _finding(code: str, severity: Severity, same: Sequence[Look], inside: Sequence[Look], still: float) -> Finding:
    first = same[0]
    doing = stack_kinds.SAID[first.kind]
    ends = {
        "slow_rank": "Its stack changed between two looks: it is slow, not hung.",
        "progressing": "Most processes run code of their own, as in a running job; one look cannot tell more.",
        "rank_elsewhere": f"Nothing moved for {still:.0f} s." if still else "One look cannot tell hung from slow.",
    }
    partner = (
        " In send or recv each waits for its partner only, which may be another of these." if all(look.kind == "pair" for look in inside) else ""
    )
    topic = {"data": "dataloader_hang", "rendezvous": "rendezvous"}.get(first.kind, "missing_rank")
    return Finding(
        code=code, severity=severity, subject=named(look.key for look in same), count=len(same),
        evidence=[f"{named(look.key for look in same)}: {shown(first)}", f"{named(look.key for look in inside)} wait: {shown(inside[0])}"],
        reason=f"It {doing}, while {len(inside)} process{'es wait' if len(inside) > 1 else ' waits'} in communication. {ends[code]}{partner}",
        action=_action(code, severity, first.kind),
        sections=topics.sections(topic) + topics.sections("hang_stacks"),
    )  # fmt: skip


def _action(code: str, severity: Severity, kind: Kind) -> str:
    if code == "progressing":
        return "none"
    remedy = REMEDY.get(kind, "read that stack and the log of that rank")
    return f"restart_app after removing the cause: {remedy}" if severity == "critical" else f"observe: {AGAIN}; usual cause: {remedy}"


REMEDY: dict[str, str] = {
    "data": "a stuck data loader worker (num_workers=0 shows its error), uneven numbers of batches, or storage",
    "files": "storage, or saving and loading on some ranks only", "debugger": "take the breakpoint out",
    "finished": "this rank ran fewer steps than the others", "lock": "a thread or child process that does not end",
}  # fmt: skip


def _all_inside(seen: Seen, inside: Sequence[Look], out: Judged) -> None:
    """Everybody waits: in one call (a member that is not here, or the network), or in different ones."""
    out.waiting, out.again = [look.key for look in inside], True
    calls: dict[tuple[str, object], list[Look]] = {}
    for look in inside:
        calls.setdefault((stack_kinds.operation(look.frames), look.place), []).append(look)
    parts = sorted(calls.values(), key=len)
    still = min(seen.still_s.get(look.key, 0.0) for look in inside)
    lines = [f"{named(look.key for look in part)}: {shown(part[0])}" for part in parts[:4]]
    if len(parts) == 1:
        out.findings.append(Finding(
            code="all_in_one_collective", severity="critical" if still >= STILL_S else "info",
            subject=named(look.key for look in inside), evidence=lines,
            reason="All these processes are at the same call. A running job shows this for a moment; if it lasts, the one they wait for "
                   "is not among these stacks, sizes differ, or a GPU or link failed.",
            action=f"observe: {AGAIN}, with Flight Recorder dumps", sections=topics.sections("slow_or_hung", "network_hang"),
        ))  # fmt: skip
        return
    apart = len(parts[0]) < len(parts[1]) and len(parts) == 2 and len(parts[0]) * 2 <= len(parts[1])
    out.culprits = [look.key for look in parts[0]] if apart else []
    out.findings.append(Finding(
        code="different_collectives", severity="warning", subject=named(look.key for look in parts[0]) if apart else "all ranks", evidence=lines,
        reason="These processes wait in different calls. Pipeline stages and sub-groups do so rightly; ranks of one group that do so run different "
               "programs, and then the smallest part is the suspect.",
        action="observe: Flight Recorder dumps of all ranks decide (TORCH_FR_BUFFER_SIZE=2000)", sections=topics.sections("collective_mismatch"),
    ))  # fmt: skip
