"""What the numerics hook wrote on some or all ranks -> the first culprit, how values grew, what the loss scale should do.

Ranks count passes alike, so the earliest pass, and in it the earliest phase, is the origin; the others are victims of the
reduction. Overflows of gradients alone under a loss scaler are its search, not a fault, unless they do not end. Knows
the records; nothing of the model but its modules' names.

>>> diagnose([("numerics.rank0.jsonl", lines)]).first.module
'layers.3.fc2'
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, Field

from skillserver import findings, topics
from skillserver.diagnose import numerics_causes, numerics_growth, numerics_reading
from skillserver.diagnose.numerics_growth import Growth
from skillserver.diagnose.numerics_reading import Bad, Rank, Watched
from skillserver.errors import BadRequest
from skillserver.findings import Finding, Verdict

NAMED = 8  # ranks worth naming
ENDLESS = 5  # passes in a row whose gradients overflow
USE = "diagnose_numerics() without arguments says how to add the hook"


class Culprit(BaseModel):
    """The first non-finite value: `where` is parameter, forward, backward or gradient."""

    ranks: list[int]
    pass_number: int
    step: int
    where: str
    module: str
    module_class: str
    what: str
    kind: str
    dtype: str


class NumericsDiagnosis(BaseModel):
    """`growth` lists the modules nearest to their dtype's largest number. Passes and steps count from 0."""

    verdict: Verdict
    summary: str
    first: Culprit | None = None
    ranks: list[int] = Field(default_factory=list)
    passes: int = 0
    growth: list[Growth] = Field(default_factory=list)
    largest_output: float | None = Field(default=None, description="largest absolute output seen finite, any module")
    loss_scale_advice: str = ""
    findings: list[Finding] = Field(default_factory=list)
    skipped: list[str] = Field(default_factory=list)
    hook_path: str = ""
    add: list[str] = Field(default_factory=list, description="lines for the training script")
    next: str


def how_to_watch(hook: str) -> NumericsDiagnosis:
    """Where the hook lies and the lines to add; nothing is judged."""
    return NumericsDiagnosis(
        verdict="unknown", summary="Nothing was given to judge. Copy the hook beside the training script, add the lines, run it until it breaks.",
        hook_path=hook, skipped=["everything: no records were given"],
        add=["import numerics_hook  # after the model is wrapped (DDP, FSDP) and the optimizer made:",
             "watcher = numerics_hook.watch(model, optimizer, every=10, file='numerics.jsonl')  # scaler=scaler with fp16; every=1 near a known step",
             "watcher.close()  # at the end; an exception closes it too"],
        next="diagnose_numerics(paths=['numerics.rank0.jsonl', ...]) with the files of all ranks",
    )  # fmt: skip


def diagnose(sources: Iterable[tuple[str, Iterable[bytes]]]) -> NumericsDiagnosis:
    """Judge the lines of all ranks together. Raises BadRequest when none of them is the hook's."""
    watched = Watched()
    for name, lines in sources:
        numerics_reading.read(lines, watched, name)
    ranks = [watched.ranks[number] for number in sorted(watched.ranks)]
    if not ranks:
        raise BadRequest("no_records", f"no line of the numerics hook among {watched.unreadable:,} lines", next=USE)
    first, found = _culprit(ranks)
    found = findings.worst_first([*found, *_loss_scale(ranks), *numerics_growth.findings_of(ranks), *_harmless(ranks)])
    return NumericsDiagnosis(
        verdict=findings.verdict(found, judged=any(rank.clean_scans or rank.troubled for rank in ranks)), summary=_summary(first, found, ranks),
        first=first, ranks=[rank.rank for rank in ranks], passes=max(rank.last_pass for rank in ranks) + 1, growth=numerics_growth.table(ranks),
        largest_output=numerics_growth.largest(ranks), loss_scale_advice=numerics_growth.loss_scale(ranks), findings=found,
        skipped=_skipped(watched, ranks), next=_next(first, ranks),
    )  # fmt: skip


def _benign(rank: Rank, trouble: list[Bad]) -> bool:
    """Gradients only, and the step was skipped: there is a loss scaler, or later passes are finite (such an update leaves no weight finite)."""
    skipped = rank.scaler or rank.last_clean_pass > trouble[0].pass_
    return skipped and all(bad.where in ("backward", "gradient") for bad in trouble)


def _culprit(ranks: list[Rank]) -> tuple[Culprit | None, list[Finding]]:
    """The earliest bad value of all ranks with its finding."""
    firsts = []
    for rank in ranks:
        serious = next((trouble for trouble in rank.troubled if not _benign(rank, trouble)), None)
        if serious:
            firsts.append((serious[0].pass_, numerics_causes.phase(serious[0]), rank.rank, serious[0]))
    firsts = _without_received(firsts)
    if not firsts:
        return None, []
    earliest = min(firsts, key=lambda each: each[:3])
    bad_rank, bad = earliest[2:]
    watched_by = {rank.rank: rank for rank in ranks}
    origins = [each for each in firsts if each[:2] == earliest[:2]]
    same = [each[2] for each in origins if each[3].module == bad.module]
    names = {name for rank in ranks for name in rank.modules}
    containers = frozenset(["", *(name.rpartition(".")[0] for name in names)])
    finding = numerics_causes.explain(bad, _named([each[2] for each in origins]), containers)
    finding.evidence += _depth(watched_by[bad_rank]) if bad.where == "forward" else []
    finding.evidence += _others(ranks, firsts, origins, same)
    if all(watched_by[each[2]].last_clean_pass > bad.pass_ for each in origins):
        finding.severity = "warning"
        finding.evidence.append("finite passes follow: that step was skipped, or it was one batch")
    culprit = Culprit(ranks=[each[2] for each in origins], pass_number=bad.pass_, step=bad.step, where=bad.where, module=bad.module,
                      module_class=bad.module_class, what=bad.what, kind=bad.kind, dtype=bad.dtype)  # fmt: skip
    return culprit, [finding]


def _without_received(firsts: list[tuple[int, int, int, Bad]]) -> list[tuple[int, int, int, Bad]]:
    """A bad input of the whole model is no origin where another rank made a bad value in the same pass: pipeline stages pass it on."""
    received = [each for each in firsts if not each[3].module and each[3].what.startswith("input")]
    made = {each[0] for each in firsts if each not in received and each[3].where == "forward"}
    return [each for each in firsts if each not in received or each[0] not in made]


def _depth(rank: Rank) -> list[str]:
    """The outputs before the first bad one: values that grow from layer to layer show where the range was left."""
    steps = ", ".join(f"{name or 'the whole model'} {value:.3g}" for name, value in rank.depth)
    return [f"largest outputs before it in that pass: {steps}"] if steps else []


def _others(ranks: list[Rank], firsts: list[tuple[int, int, int, Bad]], origins: list[tuple[int, int, int, Bad]], same: list[int]) -> list[str]:
    """What the other ranks say: who was alone, who came later."""
    if len(ranks) == 1:
        return [f"the other {ranks[0].world_size - 1} of {ranks[0].world_size} ranks were not given"] if ranks[0].world_size > 1 else []
    said = []
    if len(origins) == 1:
        said.append(f"of {len(ranks)} ranks only {_named([origins[0][2]])} was first: its batch or its GPU, not the model alone")
    elif len(same) < len(origins):
        said.append(f"first in {origins[0][3].module or 'the model'} on {_named(same)}, elsewhere on {len(origins) - len(same)} more")
    later = [each[2] for each in firsts if each not in origins]
    return said + ([f"later, so victims: {_named(later)}"] if later else [])


def _named(numbers: list[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:NAMED]))
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{f' and {len(numbers) - NAMED} more' if len(numbers) > NAMED else ''}"


def _loss_scale(ranks: list[Rank]) -> list[Finding]:
    """Overflows of gradients under a scaler: the search of the scale, or its collapse."""
    found: list[Finding] = []
    for rank in ranks:
        overflows = [trouble[0] for trouble in rank.troubled if _benign(rank, trouble)]
        if not overflows or found:
            continue
        last, row = overflows[-1], 1
        while row < len(overflows) and overflows[-row - 1].pass_ >= overflows[-row].pass_ - 1:
            row += 1
        endless = last.pass_ >= rank.last_pass and (row >= ENDLESS or (last.scale is not None and last.scale <= 1))
        found.append(_overflows(rank, overflows, row, endless))
    return found


def _overflows(rank: Rank, overflows: list[Bad], in_a_row: int, endless: bool) -> Finding:
    last = overflows[-1]
    scale = f", loss scale {last.scale:g}" if last.scale is not None else ""
    finding = Finding(
        code="loss_scale_search", severity="info", subject=f"loss scale, {_named([rank.rank])}", action="none", step=last.step,
        evidence=[f"gradients overflowed in {len(overflows)} watched passes, last in pass {last.pass_}{scale}, {in_a_row} in a row at the end"],
        reason="A dynamic loss scale starts too high and tries higher ones now and then; such steps are skipped.",
        sections=topics.sections("loss_scale"),
    )  # fmt: skip
    if endless:
        finding.code, finding.severity = "loss_scale_collapse", "critical"
        finding.reason = "The scale falls and the gradients still overflow: they are really infinite or NaN, and no scale cures that."
        finding.action = f"restart_app from before the first fall, in bf16 or with a lower learning rate; first: {overflows[0].module}"
    return finding


def _harmless(ranks: list[Rank]) -> list[Finding]:
    """Non-finite values in passes that were finite otherwise, one finding a kind."""
    seen = [(rank.rank, bad) for rank in ranks for bad in rank.harmless]
    inputs = [each for each in seen if each[1].what.startswith("input")]
    outputs = [each for each in seen if each not in inputs]
    kinds = [("minus_infinity", outputs, "An output holds -inf and the rest of the pass was finite: most often a mask.",
              "observe: if this is no mask, it is an overflow that something after it hid"),
             ("non_finite_input_unused", inputs, "An input is not finite, and nothing that came of it was bad: it is unused, masked or replaced.",
              "observe: fill what is not used with zeros, so that a real fault shows")]  # fmt: skip
    return [
        Finding(code=code, severity="info", subject=f"{numerics_causes.name_of(rows[0][1])}, {_named([rows[0][0]])}", reason=reason, action=action,
                evidence=numerics_causes.evidence(rows[0][1])[:1], count=len(rows), step=rows[0][1].step, sections=topics.sections("loss_nan"))
        for code, rows, reason, action in kinds if rows
    ]  # fmt: skip


def _summary(first: Culprit | None, found: list[Finding], ranks: list[Rank]) -> str:
    if first:
        where = f"{first.what} of {first.module or 'the whole model'}"
        return f"First {first.kind} at pass {first.pass_number} (step {first.step}), {first.where}, {where}, {_named(first.ranks)}. {found[0].reason}"
    watched = sum(rank.clean_scans for rank in ranks)
    worst = f" {found[0].reason}" if found and found[0].severity != "info" else ""
    return f"No non-finite value outside a loss scaler's search in {watched:,} watched passes of {_named([rank.rank for rank in ranks])}.{worst}"


def _skipped(watched: Watched, ranks: list[Rank]) -> list[str]:
    said = list(dict.fromkeys(remark for rank in ranks for remark in rank.unseen))[:NAMED]
    world = max(rank.world_size for rank in ranks)
    if len(ranks) < world:
        said.append(f"{world - len(ranks)} of {world} ranks: their files were not given")
    if watched.unreadable:
        said.append(f"{watched.unreadable:,} lines that are cut or not the hook's")
    if restarted := [rank.rank for rank in ranks if rank.starts > 1]:
        said.append(f"earlier attempts of {_named(restarted)}: only the last one was judged")
    return said + watched.gave_up


def _next(first: Culprit | None, ranks: list[Rank]) -> str:
    if first and any(rank.every > 1 for rank in ranks):
        return f"rerun from a checkpoint before step {first.step} with every=1 when the pass must be exact; read_knowledge on the sections"
    if first:
        return "read_knowledge on the sections; check_gpu_health on that node when only one rank was first"
    return "diagnose_training_log on the run's log for what happened to the loss"
