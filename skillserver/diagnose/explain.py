"""Hits -> causes, best first: what happened first, what only follows from it, and what to do.

Collects what a log says, lets the numbers of a message speak (bytes of an out-of-memory error, the watchdog's ranks, the
Xid), ranks it and words it within a budget: five causes, three lines of evidence. Times are compared on one clock only.
Knows nothing of knowledge pages; `alarming` lines of an unexplained log are for whoever can search them.

>>> explain(reading.of_text("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 2000")).causes[0].id
'nccl_duplicate_gpu'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.diagnose import out_of_memory, signatures, watchdog
from skillserver.diagnose.collecting import Collected, Hit, collect
from skillserver.diagnose.ranking import Role, Suspect, ranked
from skillserver.diagnose.reading import Piece

Likelihood = Literal["certain", "likely", "possible"]
SHOWN_CAUSES = 5
WARNED_ONLY = "only as a warning, retry or note: the program may well have gone on"
NAMED = 40  # further signatures named by id
CAPS = ((3, 3, 3, 3), (2, 2, 2, 1), (1, 1, 1, 0))  # evidence, remedies, checks, usual causes for the 1st, 2nd, further


class Cause(BaseModel):
    """One explanation; `reading` is what its numbers say, `usual` what lies behind it as a rule."""

    id: str
    title: str
    confidence: float = Field(description="0..1: how sure it is that this is the root cause")
    likelihood: Likelihood
    role: Role
    meaning: str
    reading: list[str] = Field(default_factory=list)
    evidence: list[str] = Field(default_factory=list, description="line number, rank and text, cut")
    usual: list[str] = Field(default_factory=list)
    checks: list[str] = Field(default_factory=list, description="commands that tell the usual causes apart")
    remedy: list[str] = Field(default_factory=list)
    sections: list[str] = Field(default_factory=list, description="ids for read_knowledge")
    mild: bool = Field(default=False, exclude=True, description="only warned of: the program went on")


class Explanation(BaseModel):
    """Causes best first; `left_out` were found but not shown; `alarming` and `last` lines are for a guess."""

    summary: str
    causes: list[Cause]
    first_rank: int | None = None
    first_rank_from: str = ""
    lines_read: int
    left_out: list[str] = Field(default_factory=list)
    alarming: list[str] = Field(default_factory=list)
    last: list[str] = Field(default_factory=list)


def explain(pieces: Iterable[Piece]) -> Explanation:
    """Read a log to its end and explain it."""
    seen = collect(pieces)
    suspects = ranked(_suspects(seen))
    shown = suspects[:SHOWN_CAUSES]
    rank, source = _first_rank(seen, suspects)
    return Explanation(
        summary=_summary(seen, suspects, rank, source),
        causes=[_cause(suspect, CAPS[min(number, len(CAPS) - 1)]) for number, suspect in enumerate(shown)],
        first_rank=rank,
        first_rank_from=source,
        lines_read=seen.lines,
        left_out=_left_out(suspects[SHOWN_CAUSES:]),
        alarming=seen.alarming,
        last=list(seen.last),
    )


def _left_out(suspects: list[Suspect]) -> list[str]:
    """Signatures that are named only; of very many the rest is counted."""
    named = [f"{suspect.signature.id} (line {suspect.hits[0].line})" for suspect in suspects[:NAMED]]
    return [*named, f"and {len(suspects) - NAMED} more"] if len(suspects) > NAMED else named


def _suspects(seen: Collected) -> list[Suspect]:
    """Every signature that counts, with its first hit's place in time and what its numbers say."""
    present = {name for name, hits in seen.hits.items() if hits}
    firsts = [hits[0] for hits in seen.hits.values() if hits]
    clocks = {hit.clock for hit in firsts}
    timed = len(clocks) == 1 and clocks != {""}
    found = []
    for name, hits in seen.hits.items():
        signature = signatures.by_id()[name]
        if not hits or (signature.only_with and not present & set(signature.only_with)):
            continue
        hits = sorted(hits, key=lambda hit: (hit.mild, hit.moment if timed else 0.0, hit.line))
        place = (hits[0].moment if timed else 0.0, hits[0].line)
        mild = hits[0].mild and signature.kind not in ("hardware", "circumstance")
        found.append(_read(Suspect(signature, hits, seen.counts[name], place, signature.confidence, mild=mild)))
    return found


def _read(suspect: Suspect) -> Suspect:
    """What the fields of a hit add: bytes of an out-of-memory message, the watchdog's ranks, the Xid, who was missing."""
    name, first = suspect.signature.id, suspect.hits[0]
    if name == "cuda_out_of_memory":
        judged = out_of_memory.judge(out_of_memory.parse(" ".join([first.full, *first.after])))
        suspect.title, suspect.reading, suspect.remedies = judged.title, judged.reading, judged.remedies
    elif name == "nccl_watchdog_timeout":
        _read_watchdog(suspect)
    elif "xid" in first.fields:
        _read_xids(suspect)
    elif name == "monitored_barrier" and "ranks" in first.fields:
        suspect.reading = [f"missing ranks: {first.fields['ranks'].strip()}"]
    elif name == "rendezvous_missing_clients":
        suspect.reading = [f"{first.fields['joined']} of {first.fields['expected']} processes joined"]
    peers = list(dict.fromkeys(hit.peer for hit in suspect.hits if hit.peer))
    if peers and suspect.signature.kind in ("victim", "cause"):
        suspect.reading.append(f"other end: {', '.join(peers[:5])}" + ("; open its log" if suspect.signature.kind == "victim" else ""))
    return suspect


def _read_watchdog(suspect: Suspect) -> None:
    result = watchdog.read(suspect.hits)
    suspect.reading, suspect.hits = result.reading, result.hits or suspect.hits
    suspect.confidence = max(suspect.confidence, result.confidence)
    if result.diverged:
        suspect.signature = signatures.by_id()["collective_divergence"]
    elif result.suspects:
        suspect.title = f"Ranks waited in a collective for rank {', '.join(map(str, result.suspects[:8]))}"


def _read_xids(suspect: Suspect) -> None:
    numbers = list(dict.fromkeys(int(hit.fields["xid"]) for hit in suspect.hits))
    gpus = list(dict.fromkeys(hit.fields["gpu"] for hit in suspect.hits))
    rows = [row for number in numbers[:4] if (row := signatures.xid_row(number))]
    suspect.reading = [f"Xid {row.xid}: {row.meaning}; {row.action}" for row in rows] + [f"on GPU {', '.join(gpus[:4])}"]


def _first_rank(seen: Collected, suspects: list[Suspect]) -> tuple[int | None, str]:
    """(rank that failed first, who says so): the launcher's summary, else the top culprit's own line."""
    if seen.summary.get("rank", "").isdigit():
        host = f" on {seen.summary['host']}" if "host" in seen.summary else ""
        return int(seen.summary["rank"]), f"torchrun's root cause{host}"
    top = suspects[0] if suspects and suspects[0].role == "culprit" else None
    if top and top.signature.kind in ("hardware", "cause", "generic") and top.signature.id != "collective_divergence":
        if top.hits[0].rank is not None:
            return top.hits[0].rank, f"the line of {top.signature.id}"
        if top.hits[0].local_rank is not None:
            return top.hits[0].local_rank, f"the line of {top.signature.id}: a local rank, of its node only"
    exits = [hit for name, hits in seen.hits.items() if name.startswith(("exit_", "launcher_")) for hit in hits if hit.local_rank is not None]
    return (exits[0].local_rank, "torchrun's exit line: a local rank, the first to end, which need not be the culprit") if exits else (None, "")


def _summary(seen: Collected, suspects: list[Suspect], rank: int | None, source: str) -> str:
    if not suspects:
        return f"No signature matches in {seen.lines:,} lines."
    top = suspects[0]
    where = f"line {top.hits[0].line}" + (f", rank {top.hits[0].rank}" if top.hits[0].rank is not None else "")
    victims = sum(suspect.role == "victim" for suspect in suspects[1:])
    follow = f"; {victims} other kind{'s' if victims > 1 else ''} of message follow{'' if victims > 1 else 's'} from it" if victims else ""
    first = f"; rank {rank} failed first ({source})" if rank is not None and source.startswith("torchrun's root") else ""
    if top.role == "victim":
        return f"Only consequences are in this log: {top.title or top.signature.title} ({where}). The cause stands in the log of another process."
    if top.mild:
        return f"Nothing in this log says what ended it; it only warns: {top.title or top.signature.title} ({where})."
    unsure = " (nothing here says why)" if top.signature.kind == "symptom" and not top.reading else ""
    return f"{top.title or top.signature.title} ({where}){unsure}{first}{follow}."


def _cause(suspect: Suspect, caps: tuple[int, int, int, int]) -> Cause:
    signature, (evidence, remedies, checks, usual) = suspect.signature, caps
    confidence = round(min(max(suspect.confidence, 0.01), 0.99), 2)
    follows = [f"follows from {suspect.explained_by}"] if suspect.explained_by else []
    follows += [WARNED_ONLY] if suspect.mild else []
    return Cause(
        id=signature.id, title=suspect.title or signature.title, confidence=confidence, likelihood=_likelihood(confidence),
        role=suspect.role, mild=suspect.mild, meaning=signature.meaning, reading=follows + suspect.reading,
        evidence=_evidence(suspect, evidence), usual=[] if suspect.remedies else signature.causes[:usual],  # the numbers were judged
        checks=signature.checks[:checks], remedy=(suspect.remedies or signature.remedies)[:remedies],
        sections=topics.sections(signature.topic),
    )  # fmt: skip


def _likelihood(confidence: float) -> Likelihood:
    return "certain" if confidence >= 0.9 else "likely" if confidence >= 0.6 else "possible"


def _evidence(suspect: Suspect, limit: int) -> list[str]:
    """The first line, then lines of other ranks, then others; the last entry counts the rest."""
    one: dict[object, Hit] = {}
    for hit in suspect.hits:
        one.setdefault((hit.rank, hit.local_rank, hit.host), hit)
    chosen = list(one.values())[:limit]
    chosen += [hit for hit in suspect.hits if hit not in chosen][: limit - len(chosen)]
    lines = [f"line {hit.line}: {hit.text}" for hit in sorted(chosen, key=lambda hit: suspect.hits.index(hit))]
    rest = suspect.count - len(chosen)
    return [*lines, f"and {rest} more such lines"] if rest > 0 else lines
