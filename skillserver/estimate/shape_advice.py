"""Whether a model's sizes suit tensor cores and a tensor-parallel size: findings, worst first.

Knows alignment (8 elements of 2 bytes for a tensor-core load, 64 and 128 for memory transactions and tiles), the
vocabulary, head sizes and what tensor parallelism has to divide. Judges shapes only: what a kernel reaches is measured.

>>> [one.code for one in advice(Architecture(layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, vocab=50257), 1, [])]
['vocabulary_not_aligned']
"""

from __future__ import annotations

from collections.abc import Iterator

from skillserver.estimate import matmuls
from skillserver.estimate.shape import Architecture
from skillserver.findings import Finding, Severity, worst_first

ALIGNED = 8  # elements of 2 bytes that fill a 16-byte load; below it tensor cores are not used or data is padded first
GOOD = 64  # multiples of it fill memory transactions and the smaller tiles of A100 and later
TILE = 128
LARGEST_FUSED_HEAD = 256  # FlashAttention 2 takes no larger one


def advice(shape: Architecture, tp: int, sections: list[str]) -> list[Finding]:
    """What in the sizes costs speed or does not work on `tp` ranks; empty when nothing does."""
    found = [*_not_cut(shape, tp), *_copied(shape, tp), *_vocabulary(shape, tp), *_head_size(shape), *_odd_sides(shape, tp)]
    return worst_first(one.model_copy(update={"sections": sections}) for one in found)


def _finding(code: str, severity: Severity, subject: str, evidence: str, reason: str, action: str) -> Finding:
    return Finding(code=code, severity=severity, subject=subject, evidence=[evidence], reason=reason, action=action)


def _not_cut(shape: Architecture, tp: int) -> Iterator[Finding]:
    """Sizes that tensor parallelism has to divide. Key-value heads may also divide tp: then they are copied."""
    inner = shape.state_space.inner if shape.state_space else 0
    cut = {"heads": shape.heads, "ffn": shape.ffn if shape.layers > shape.expert_layers else 0, "expert_ffn": shape.expert_ffn,
           "shared_ffn": shape.shared_ffn, "inner": inner}  # fmt: skip
    kv = 0 if shape.latent else shape.kv_heads
    if kv and kv % tp and tp % kv:
        cut["kv_heads"] = kv
    for name, size in cut.items():
        if size % tp:
            reason, action = f"{size} cannot be cut into {tp} equal parts", f"fix_setup: use a tensor-parallel size that divides {size}"
            action += " or keep experts whole (expert parallelism)" if name == "expert_ffn" else ""
            yield _finding("tp_does_not_divide", "warning", name, f"{name} {size}, tp {tp}", reason, action)


def _copied(shape: Architecture, tp: int) -> Iterator[Finding]:
    """Caches that more ranks do not make smaller."""
    kv = shape.kv_heads
    if shape.latent and tp > 1:
        reason = "every rank keeps the whole compressed cache: it has no heads to cut"
        yield _finding("latent_cache_copied", "info", "kv cache", f"MLA, tp {tp}", reason, "observe: data-parallel attention cuts it, tp does not")
    elif kv and tp > kv and tp % kv == 0:
        reason = f"each key-value head is kept by {tp // kv} ranks: a rank's cache stops shrinking at tp {kv}"
        action = f"observe: beyond tp {kv} cut the cache by sequence (context parallelism) or by requests (data parallelism)"
        yield _finding("kv_heads_copied", "info", "kv_heads", f"kv_heads {kv}, tp {tp}", reason, action)


def _vocabulary(shape: Architecture, tp: int) -> Iterator[Finding]:
    if shape.vocab % GOOD == 0 and shape.vocab % (ALIGNED * tp) == 0:
        return
    step = GOOD * tp
    padded = -(-shape.vocab // step) * step
    extra = (padded - shape.vocab) * (shape.embedding_width or shape.hidden) * (1 if shape.tied else 2)
    evidence = f"vocab {shape.vocab} = {shape.vocab // GOOD} x 64 + {shape.vocab % GOOD}, tp {tp}"
    action = f"fix_setup: in a new model pad it to {padded} ({extra:,} more parameters); a trained one needs its weights padded too"
    severity: Severity = "warning" if shape.vocab % (ALIGNED * tp) else "info"
    yield _finding("vocabulary_not_aligned", severity, "vocab", evidence, "the head is among the largest products and has a ragged side", action)


def _head_size(shape: Architecture) -> Iterator[Finding]:
    size = shape.latent.nope + shape.latent.rope if shape.latent else shape.head_size
    if size % ALIGNED:
        action = "fix_setup: in a new model choose heads so that hidden / heads is 64 or 128"
        yield _finding("head_size_not_aligned", "warning", "head size", f"head size {size}", "fused attention pads what is no multiple of 8", action)
    elif size > LARGEST_FUSED_HEAD:
        action = "observe: check which attention backend really runs"
        yield _finding("head_size_large", "info", "head size", f"head size {size}", f"FlashAttention 2 stops at {LARGEST_FUSED_HEAD}", action)


def _odd_sides(shape: Architecture, tp: int) -> Iterator[Finding]:
    """Sides of products that are no multiple of 64. The head has its own rule; routers and what tp does not divide are left out."""
    sides: dict[int, list[str]] = {}
    for one in matmuls.shapes(shape, 1, tp):
        for side, size in (("n", one.n), ("k", one.k)):
            if one.name not in ("lm_head", "router") and size == int(size) and size >= GOOD and size % GOOD:
                sides.setdefault(int(size), []).append(f"{one.name} {side}")
    for size, names in sides.items():
        waste = -(-size // TILE) * TILE / size - 1
        lost = "; off multiples of 8 tensor cores lose alignment too" if size % ALIGNED else ""
        reason = f"tiles of {TILE} compute {waste:.1%} for nothing on this side{lost}"
        action = "fix_setup: in a new model choose multiples of 128 (64 at least) after division by tp; a trained one keeps its sizes"
        severity: Severity = "warning" if size % ALIGNED else "info"
        evidence = f"{size} = {size // GOOD} x 64 + {size % GOOD}"
        yield _finding("side_not_aligned", severity, ", ".join(dict.fromkeys(names)), evidence, reason, action)


def too_long(shape: Architecture, tokens: int) -> list[str]:
    """What every answer about more tokens than a learned position table has rows must say; rotary positions have no such end."""
    if not shape.positions or tokens <= shape.positions:
        return []
    return [f"{tokens:,} tokens are more than the {shape.positions:,} rows of the learned position table: the model cannot take them"]
