"""An error text or log -> causes, the next call, and for an unknown one the nearest sections as a guess.

Joins diagnosis and knowledge: signatures decide; only when none matches is the knowledge base asked, with the lines that
look like errors, and the answer is marked as a guess. Knows both subjects' public functions; not signatures, not ranking.

>>> explain_text("Failed to initialize NVML: Driver/library version mismatch").causes[0].id
'driver_library_mismatch'
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, Field

from skillserver.diagnose import explain, reading
from skillserver.diagnose.explain import Cause, Explanation
from skillserver.diagnose.reading import Piece
from skillserver.diagnose.signatures import FALLBACK
from skillserver.errors import DataBroken

GUESSES = 3
ASKED = 400  # characters of odd lines worth searching for
LEAST_ODD, LEAST_PLAIN = 0.1, 0.5  # coverage of a guess: error lines hold many odd words, plain text must be a question
GUESS = "No signature explains this; the sections under `guess` are only the nearest in the knowledge base."
NEXT = (
    (("collective_", "nccl_watchdog", "nccl_heartbeat", "gloo_recv", "monitored", "stack_", "dataloader_hang"),
     "diagnose_hang with the Flight Recorder dumps or py-spy stacks of all ranks"),
    (("xid_", "gpu_lost", "ecc_", "cuda_unknown", "gpu_busy", "driver_library", "fabric_"),
     "check_gpu_health with nvidia-smi -q and the kernel log of that node"),
    (("loss_",), "diagnose_training_log on the training log: it finds the step where it began"),
    (("cuda_out_of_memory", "cublas_", "nccl_out_of_memory"), "estimate_memory for this model and layout, or diagnose_memory on a snapshot"),
    (("vllm_",), "estimate_inference for this model"),
    (("disk_full", "checkpoint_"), "plan_checkpoints: how much a run writes"),
)  # fmt: skip


class ErrorExplanation(BaseModel):
    """Causes best first. `first_rank` is the rank that failed first when the text says so, `first_rank_from` who says it."""

    summary: str
    causes: list[Cause]
    first_rank: int | None = None
    first_rank_from: str = ""
    guess: list[str] = Field(default_factory=list, description="nearest section ids, only when no signature explains the text")
    lines_read: int
    left_out: list[str] = Field(default_factory=list, description="further signatures that were found")
    skipped: list[str] = Field(default_factory=list)
    next: str


def explain_text(text: str) -> ErrorExplanation:
    """Explain a text. Raises BadRequest when it is empty or binary."""
    return _explained(reading.of_text(text), "this text")


def explain_file(path: Path) -> ErrorExplanation:
    """Explain a file of any size, read once from start to end. Raises BadRequest when it is empty, packed or binary."""
    return _explained(reading.of_file(path), path.name)


def _explained(pieces: Iterable[Piece], name: str) -> ErrorExplanation:
    found = explain.explain(pieces)
    unknown = not found.causes or found.causes[0].id == FALLBACK
    guess, skipped = _guess(found) if unknown else ([], [])
    skipped.append(f"other ranks' logs, the kernel log and the scheduler's record, unless they are part of {name}")
    return ErrorExplanation(
        summary=f"{found.summary} {GUESS}" if guess else found.summary,
        causes=found.causes, first_rank=found.first_rank, first_rank_from=found.first_rank_from, guess=guess,
        lines_read=found.lines_read, left_out=found.left_out, skipped=skipped, next=_next(found.causes, guess),
    )  # fmt: skip


def _guess(found: Explanation) -> tuple[list[str], list[str]]:
    """(section ids nearest to the odd lines, what could not be asked); a text without an odd line must be a question."""
    odd = [cause.title for cause in found.causes] + found.alarming
    return _nearest(" ".join(odd or found.last)[:ASKED], LEAST_ODD if odd else LEAST_PLAIN)


def _nearest(text: str, coverage: float) -> tuple[list[str], list[str]]:
    """(ids of sections that speak of at least this share of the text, what could not be asked)."""
    from skillserver.knowledge import library, queries, search  # lazily: most errors never need the index

    try:
        shelf = library.current()
    except DataBroken as problem:
        return [], [f"the knowledge base: {problem.code}"]
    asked, _offered = queries.concepts(queries.clean(text).text, shelf)
    hits = search.rank(shelf, asked)[:GUESSES] if asked else []
    return [hit.section.id for hit in hits if hit.coverage >= coverage], []


def _next(causes: list[Cause], guess: list[str]) -> str:
    if not causes:
        return (f"read_knowledge {guess[0]}, or pass" if guess else "pass") + " the lines around the first error, of the rank that failed first"
    top = causes[0]
    if top.role == "victim":
        return "explain_error on the log of the process at the other end, up to this moment"
    tool = next((tool for starts, tool in NEXT if top.id.startswith(starts)), "")
    return tool or (f"read_knowledge {top.sections[0]}" if top.sections else "run the first of `checks`")
