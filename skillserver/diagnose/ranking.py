"""Which of the signatures in a log is the culprit, which only follows, and in what order to tell them.

Rules, in this order. Hardware (ECC, Xid, lost GPU) outranks software. Whatever closed a connection because its peer was
gone is a victim. A symptom (a timeout, an exit code) is a victim of any cause before it, and of the causes its row
names wherever they stand. Among causes the first in time is first; reporters that write afterwards (kernel, SLURM)
count from the first symptom, and so does an error on a rank that did not wait with the others. Python exceptions that
nobody knows come last, and behind all of them what was only warned of: it explains nothing else and, for a consequence,
says nothing when nothing else failed. Knows order and roles; not what the lines say.

>>> [(suspect.signature.id, suspect.role) for suspect in ranked(suspects)]
[('shm_full', 'culprit'), ('nccl_remote_error', 'victim')]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from skillserver.diagnose.collecting import Hit
from skillserver.diagnose.signatures import FALLBACK, Signature

Role = Literal["culprit", "victim"]
WAITING = {"nccl_watchdog_timeout", "nccl_heartbeat", "gloo_recv_timeout", "monitored_barrier", "store_wait_timeout"}
ENDS = ("exit_", "launcher_child", "shell_killed", "slurm_cancelled")  # they tell of an end and explain no exception
NEAR = 60  # lines: an exception this close to a known cause is its Python face
LATER, VICTIM = 0.6, 0.3  # what being second, or a consequence, leaves of a confidence
WARNED = 0.3  # the same of what was only warned of


@dataclass
class Suspect:
    """A signature that was seen. `position` is (time on the common clock or 0, line); `absent`: see _place; `mild`: in warnings only."""

    signature: Signature
    hits: list[Hit]
    count: int
    position: tuple[float, int]
    confidence: float
    role: Role = "culprit"
    title: str = ""
    reading: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    explained_by: str = ""
    absent: bool = False
    mild: bool = False


def ranked(suspects: list[Suspect]) -> list[Suspect]:
    """Roles, then order."""
    failed = any(not suspect.mild for suspect in suspects)
    suspects = [suspect for suspect in suspects if failed or suspect.signature.kind != "victim"]
    _place(suspects)
    _drop_python_faces(suspects)
    for suspect in suspects:
        suspect.explained_by = _explained_by(suspect, suspects)
        suspect.role = "victim" if suspect.signature.kind == "victim" or suspect.explained_by else "culprit"
    causes = any(
        suspect.role == "culprit" and _explains(suspect) and suspect.signature.kind in ("hardware", "cause", "circumstance") for suspect in suspects
    )
    culprits = sorted((suspect for suspect in suspects if suspect.role == "culprit"), key=lambda suspect: _order(suspect, causes))
    victims = sorted((suspect for suspect in suspects if suspect.role == "victim"), key=lambda suspect: suspect.position)
    for suspect in culprits[1:]:
        suspect.confidence *= LATER
    for suspect in culprits:
        suspect.confidence *= WARNED if suspect.mild else 1.0
    for suspect in victims if any(not suspect.mild for suspect in culprits) else victims[1:]:
        suspect.confidence *= VICTIM
    warned = [suspect for suspect in culprits if suspect.mild]
    return [suspect for suspect in culprits if not suspect.mild] + victims + warned


def _order(suspect: Suspect, causes: bool) -> tuple[int, tuple[float, int]]:
    """Hardware first, then time; an exception nobody knows comes after causes, and after timeouts of its own rank."""
    kind = suspect.signature.kind
    last = kind == "generic" and (causes or not suspect.absent)
    return 3 if suspect.mild or suspect.signature.aside else 0 if kind == "hardware" else 2 if last else 1, suspect.position


def _place(suspects: list[Suspect]) -> None:
    """Move to where it happened what the log shows later: reporters that write after the fact, and other ranks' part of
    a log put together from several. A rank with an error and without a timeout is the one that the timeouts waited for."""
    consequences = [other.position for other in suspects if other.signature.kind in ("symptom", "victim") and not other.mild]
    waits = [other for other in suspects if other.signature.id in WAITING and not other.mild]
    waiting = {hit.rank for other in waits for hit in other.hits}
    for suspect in suspects:
        kind, rank = suspect.signature.kind, suspect.hits[0].rank
        suspect.absent = kind in ("cause", "generic") and (not waits or (rank is not None and rank not in waiting))
        if suspect.mild:
            continue
        if (suspect.signature.late or kind == "circumstance") and consequences:
            _move_before(suspect, min(consequences))
        elif suspect.absent and waits and suspect.signature.id not in WAITING:
            _move_before(suspect, min(other.position for other in waits))


def _explains(suspect: Suspect) -> bool:
    """Whether it can be the reason of anything else."""
    return not suspect.mild and not suspect.signature.aside


def _move_before(suspect: Suspect, place: tuple[float, int]) -> None:
    suspect.position = min(suspect.position, (place[0], place[1] - 1))


def _drop_python_faces(suspects: list[Suspect]) -> None:
    """An exception near a line that explains it, or after one, adds nothing; of the others the last cluster counts."""
    known = [(other, hit.line) for other in suspects if other.signature.kind not in ("victim", "generic") and _explains(other) for hit in other.hits]
    telling = [line for other, line in known if other.signature.id not in WAITING and not other.signature.id.startswith(ENDS)]
    waits = [line for other, line in known if other.signature.id in WAITING]
    for suspect in [other for other in suspects if other.signature.id == FALLBACK]:
        before = min(telling + ([] if suspect.absent else waits), default=None)
        kept = [hit for hit in suspect.hits if (before is None or hit.line < before) and not any(abs(line - hit.line) < NEAR for line in telling)]
        if kept:
            _keep_last_cluster(suspect, kept)
        else:
            suspects.remove(suspect)


def _keep_last_cluster(suspect: Suspect, kept: list[Hit]) -> None:
    starts = [hit.line for before, hit in zip([None, *kept], kept, strict=False) if before is None or hit.line - before.line > NEAR]
    suspect.hits = [hit for hit in kept if hit.line >= starts[-1]]
    first = suspect.hits[0]
    suspect.position = (suspect.position[0], first.line if not suspect.absent else min(suspect.position[1], first.line))
    message = first.fields.get("message", "")
    suspect.title = f"Uncaught Python exception: {first.fields['name']}" + (f": {message[:80]}" if message else "")


def _explained_by(suspect: Suspect, suspects: list[Suspect]) -> str:
    """The id of what this suspect follows from, "" when it stands for itself."""
    kind, names = suspect.signature.kind, suspect.signature.because_of
    others = [other for other in suspects if other is not suspect and other.signature.kind != "victim" and (suspect.mild or _explains(other))]
    named = [other for other in others if other.signature.id in names or ("any" in names and "any" not in other.signature.because_of)]
    if not named and kind in ("cause", "circumstance"):
        named = [other for other in others if other.signature.kind == "hardware" and other.position < suspect.position]
    elif not named and kind == "symptom":
        named = [other for other in others if other.position < suspect.position and _could_explain(other, suspect)]
    return min(named, key=lambda other: _order(other, False)).signature.id if named else ""


def _could_explain(other: Suspect, symptom: Suspect) -> bool:
    """An earlier suspect explains a symptom, unless it is itself explained by it or is an exception of a waiting rank."""
    theirs = other.signature.because_of
    if symptom.signature.id in theirs or "any" in theirs:
        return False
    return other.signature.kind != "generic" or other.absent or symptom.signature.id not in WAITING
