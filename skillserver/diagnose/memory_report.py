"""A memory snapshot or an out-of-memory message -> one answer: what was asked, who held the rest, what helps.

Joins the reader of snapshots with the judge of out-of-memory messages. Fragmentation is the share of reserved bytes that
no tensor uses; it is blamed only when the request would have fitted into them, but into no piece. Knows findings; not
formats.

>>> of_text("CUDA out of memory. Tried to allocate 90.00 GiB. GPU 0 has a total capacity of 79.15 GiB ...").findings[0].code
'out_of_memory_too_big'
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from skillserver import findings, topics
from skillserver.diagnose import memory_snapshot, out_of_memory, plain_pickle, reading
from skillserver.diagnose.memory_snapshot import NO_STACK, Alive
from skillserver.errors import BadRequest
from skillserver.findings import Finding, Severity, Verdict
from skillserver.units import GIB, show_bytes

HOLDERS = 10
MALFORMED = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError)
MUCH_UNUSED, MUCH_UNKNOWN = 0.25, 0.3
RECORD = "torch.cuda.memory._record_memory_history(max_entries=100000) at the start, torch.cuda.memory._dump_snapshot('snap.pickle') at the failure"
MESSAGE = "Tried to allocate"
TAIL_BYTES = 16 * 2**20  # of a log; even, so that UTF-16 stays in step
UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class HolderSeen(BaseModel):
    """Bytes that one line of the program holds; `kind` is a guess from the frames' names."""

    place: str
    kind: str
    gib: float
    blocks: int
    share: float


class MemoryDiagnosis(BaseModel):
    """The state at `moment`, in GiB; None = the input does not say. `unused_share` is of reserved, at the snapshot's end."""

    verdict: Verdict
    summary: str
    moment: str
    device: int | None = None
    allocated_gib: float | None = None
    reserved_gib: float | None = None
    unused_share: float | None = Field(default=None, description="reserved but used by no tensor: fragmentation and cache")
    largest_free_piece_gib: float | None = None
    asked_gib: float | None = None
    device_free_gib: float | None = None
    by_kind_gib: dict[str, float] = Field(default_factory=dict)
    holders: list[HolderSeen] = Field(default_factory=list)
    findings: list[Finding] = Field(default_factory=list)
    skipped: list[str] = Field(default_factory=list)
    next: str


def _text(path: Path) -> str:
    """The end of a log, where an out-of-memory message stands; UTF-16 as PowerShell's `>` writes it."""
    with path.open("rb") as opened:
        head = opened.read(2)
        opened.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        raw = opened.read(TAIL_BYTES)
    return raw.decode("utf-16" if raw[:2] in UTF_16 else UTF_16.get(head, "utf-8"), errors="replace")


def of_file(path: Path) -> MemoryDiagnosis:
    """A snapshot, or a text file with an out-of-memory message. Raises BadRequest when it is neither."""
    with path.open("rb") as opened:
        head = opened.read(8192)
    if head[:1] != b"\x80":
        return _of_log(path, head)
    try:
        raw = plain_pickle.load_file(path)
        if not isinstance(raw, dict) or not (isinstance(raw.get("segments"), list) or isinstance(raw.get("device_traces"), list)):
            raise BadRequest("not_a_snapshot", f"{path.name} is a pickle, but no CUDA memory snapshot", next=f"make one: {RECORD}")
        order = memory_snapshot.devices(raw)
        if not order:
            raise BadRequest("empty_snapshot", f"{path.name} holds no CUDA memory and no history", next=f"make one while CUDA is in use: {RECORD}")
        return _report(memory_snapshot.alive(raw, order[0]), order[1:])
    except plain_pickle.NotPlain as problem:
        raise BadRequest("not_a_snapshot", f"{path.name} cannot be read: {problem}", next=f"make one: {RECORD}") from None
    except MALFORMED as problem:
        raise BadRequest("not_a_snapshot", f"{path.name} is not as PyTorch writes snapshots ({type(problem).__name__}: {str(problem)[:80]})",
                         next=f"make one: {RECORD}") from problem  # fmt: skip


def _of_log(path: Path, head: bytes) -> MemoryDiagnosis:
    """The end of a text; a file without a message that begins like a binary is called one."""
    try:
        return of_text(_text(path))
    except BadRequest:
        packed = next((what for magic, what in reading.MAGIC.items() if head.startswith(magic)), "")
        if not packed and (b"\0" not in head or reading.encoding(head) != reading.UTF_8):
            raise
        raise BadRequest("not_a_snapshot", f"{path.name} is neither a snapshot pickle nor a text" + (f" ({packed})" if packed else ""),
                         next=f"make one: {RECORD}") from None  # fmt: skip


def of_text(text: str) -> MemoryDiagnosis:
    """The numbers of an out-of-memory message. Raises BadRequest when there is none in it."""
    if (start := text.find(MESSAGE)) < 0:
        raise BadRequest("no_message", f"the text holds no GPU out-of-memory message ({MESSAGE!r} is missing)",
                         next=f"pass the whole message, or a snapshot: {RECORD}")  # fmt: skip
    numbers = out_of_memory.parse(" ".join(text[max(start - 200, 0) : start + 2000].split()))
    judged = out_of_memory.judge(numbers)
    found = Finding(
        code=f"out_of_memory_{judged.kind}", severity="critical", subject="GPU", evidence=judged.reading[:1], count=text.count(MESSAGE),
        reason=(judged.reading[1:] or [judged.title])[0], action=f"restart_app with: {judged.remedies[0]}", sections=topics.sections("cuda_oom"),
    )  # fmt: skip
    return MemoryDiagnosis(
        verdict="critical", summary=f"{judged.title}. Then: {'; '.join(judged.remedies)}.", moment="out of memory", asked_gib=_gib(numbers.tried),
        allocated_gib=_gib(numbers.allocated), device_free_gib=_gib(numbers.free), findings=[found],
        skipped=["who held the bytes: a message does not say, a snapshot does"], next=f"diagnose_memory on a snapshot: {RECORD}",
    )  # fmt: skip


def _gib(value: float | None) -> float | None:
    return None if value is None else round(value / GIB, 3)


def _report(state: Alive, others: list[int]) -> MemoryDiagnosis:
    found = findings.worst_first(_findings(state))
    total = max(state.allocated, 1)
    holders = [HolderSeen(place=holder.place, kind=holder.kind, gib=round(holder.bytes / GIB, 3), blocks=holder.blocks,
                          share=round(holder.bytes / total, 3)) for holder in state.holders[:HOLDERS]]  # fmt: skip
    return MemoryDiagnosis(
        verdict=findings.verdict(found, judged=True), summary=_summary(state), moment=state.moment, device=state.device,
        allocated_gib=_gib(state.allocated), reserved_gib=_gib(state.reserved),
        unused_share=round(state.unused / state.reserved, 3) if state.reserved else None, largest_free_piece_gib=_gib(state.largest_free),
        asked_gib=_gib(state.asked), device_free_gib=_gib(state.device_free),
        by_kind_gib={name: round(value / GIB, 3) for name, value in state.kinds.items()}, holders=holders, findings=found,
        skipped=_skipped(state, others), next=_next(state),
    )  # fmt: skip


def _summary(state: Alive) -> str:
    top = state.holders[0] if state.holders else None
    held = f"; most by {top.kind}, {top.place} ({show_bytes(top.bytes)})" if top else ""
    asked = f", {show_bytes(state.asked)} asked for{' at ' + state.asked_at if state.asked_at != NO_STACK else ''}" if state.asked is not None else ""
    where = f"At the {state.moment}" if state.moment != "out of memory" else "When memory ran out"
    return f"{where} {show_bytes(state.allocated)} were in tensors{asked}{held}."


def _findings(state: Alive) -> list[Finding]:
    found = []
    if state.asked is not None:
        found.append(_failed(state, state.asked))
    share = state.unused / state.reserved if state.reserved else 0.0
    if share >= MUCH_UNUSED and state.unused >= GIB and state.asked is None:
        found.append(_finding("much_unused", "info", f"{share:.0%} of {show_bytes(state.reserved)} reserved is in no tensor; the largest free piece "
                              f"has {show_bytes(state.largest_free)}", "Cache after the peak, or fragmentation when a request of that size fails.",
                              "none", "memory_fragmentation"))  # fmt: skip
    if state.before_recording > MUCH_UNKNOWN * max(state.allocated, 1):
        found.append(_finding("no_stacks", "info", f"{show_bytes(state.before_recording)} of {show_bytes(state.allocated)} have no Python stack",
                              "They were allocated before the recording began, or it was recorded without stacks.",
                              f"observe: {RECORD}", "memory_snapshot"))  # fmt: skip
    return found


def _failed(state: Alive, asked: int) -> Finding:
    """The failed request: fragmentation when the free bytes would do, but no piece does."""
    fits = asked <= state.unused + (state.device_free or 0)
    kind: Literal["fragmentation", "shortage"] = (
        "fragmentation" if fits and asked > state.largest_free and state.unused >= 0.5 * asked else "shortage"
    )
    evidence = f"asked for {show_bytes(asked)}; in tensors {show_bytes(state.allocated)}, reserved {show_bytes(state.reserved)}, reserved but unused "
    evidence += f"{show_bytes(state.unused)} (largest piece {show_bytes(state.largest_free)})"
    evidence += f", free on the device {show_bytes(state.device_free)}" if state.device_free is not None else ""
    reason = (
        "The free bytes would do, but no piece is large enough: fragmentation."
        if kind == "fragmentation"
        else "More is in use than the card has room for; the holders below say by what."
    )
    remedies = out_of_memory.REMEDIES[kind]
    remedy = remedies[1] if kind == "fragmentation" and state.expandable else remedies[0]
    return _finding(f"out_of_memory_{kind}", "critical", evidence, reason, f"restart_app with: {remedy}", "cuda_oom")


def _finding(code: str, severity: Severity, evidence: str, reason: str, action: str, topic: str) -> Finding:
    return Finding(
        code=code, severity=severity, subject="GPU memory", evidence=[evidence], reason=reason, action=action, sections=topics.sections(topic)
    )


def _skipped(state: Alive, others: list[int]) -> list[str]:
    said = [] if state.recorded else ["the peak: no history was recorded, this is the end of the snapshot"]
    if others:
        said.append(f"device {', '.join(map(str, others))}: only the fullest one, {state.device}, was judged")
    return [*said, "memory outside PyTorch's allocator: CUDA context, NCCL buffers, other processes"]


def _next(state: Alive) -> str:
    if not state.recorded:
        return f"record history: {RECORD}"
    if state.asked is not None:
        return "estimate_memory for this model and layout says what should fit"
    return "estimate_memory to compare with what this model should take"
