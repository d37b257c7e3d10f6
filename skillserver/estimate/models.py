"""Whatever a caller knows of a model -> what an estimate needs: parameters, active parameters, attention size.

Knows names and Hugging Face configs (known_models.py), the contract's `architecture` dict and bare counts, and says
what it had to assume. Refuses contradictions instead of choosing a side. Does not download configs.

>>> size_of(model="llama-3-8b").total
8030261248
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from skillserver.errors import BadRequest
from skillserver.estimate import architecture as shapes
from skillserver.estimate import known_models
from skillserver.estimate.architecture import Architecture
from skillserver.estimate.hf_config import Reading
from skillserver.estimate.known_models import known
from skillserver.units import parse_count, show_count

FIELDS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "experts_per_token", "head_dim", "expert_ffn", "gated", "tied")
NEEDED = ("layers", "hidden", "heads", "ffn", "vocab")
MISMATCH = 1.5  # a dense count this far from what the shape can give is a slip of the pen, not a variant
SAME = 0.03  # a count this near to a reading of the shape confirms it
PLAIN = "gated MLP and untied embeddings unless architecture says otherwise"
WIDTH_PER_LAYER = 110  # hidden / layers of published dense models: 102 (Llama 70B) to 130 (Llama 405B)
SIZES = (1e3, 1e15)
__all__ = ["Size", "known", "reading_of", "shape_of", "size_of"]


@dataclass(frozen=True)
class Size:
    """What FLOPs and hours need. `lookup` parameters are read, not multiplied; `layers` are those with attention; no `shape` for bare counts."""

    total: float
    active: float
    lookup: float
    layers: int
    attention_width: float
    has_experts: bool
    shape: Architecture | None = None
    assumptions: list[str] = field(default_factory=list)


def size_of(*, model: str | Mapping[str, Any] | None = None, params_total: float | None = None, params_active: float | None = None,
            architecture: Mapping[str, Any] | None = None) -> Size:  # fmt: skip
    """The size of what was described. Raises BadRequest naming the field when it is unknown, absurd or contradictory."""
    if model is not None:
        if params_total is not None or params_active is not None or architecture is not None:
            raise BadRequest("two_models", "model was given together with params_total, params_active or architecture", next="pass one or the other")
        named = isinstance(model, str) and not model.lstrip().startswith("{")
        reading = reading_of(model)
        return _of_shape(reading.shape, f"shape of {model}" if named else "shape of the config given", _beside(reading))
    if params_total is None and architecture is None:
        raise BadRequest("no_model", "nothing says how large the model is", next="pass model, params_total, or architecture")
    if params_total is None:
        if params_active is not None:
            raise BadRequest("no_params_total", "params_active was given without params_total", next="pass params_total too")
        return _of_shape(_from_fields(dict(architecture or {}), NEEDED), PLAIN)
    return _of_counts(params_total, params_active, dict(architecture) if architecture else None)


def shape_of(model: str | Mapping[str, Any]) -> Architecture:
    """The architecture of whatever `reading_of` takes. Raises BadRequest."""
    return reading_of(model).shape


def reading_of(model: str | Mapping[str, Any]) -> Reading:
    """What every tool takes as `model`: a known name, a Hugging Face config, or a bare shape {layers, hidden, heads, ffn, vocab, ...}.

    A dict or its JSON text, or a file. A bare shape has layers and hidden and no model_type. Raises BadRequest.
    """
    if isinstance(model, str) and model.lstrip().startswith("{"):
        model = known_models.parsed(model, "model looks like JSON and")
    if isinstance(model, Mapping) and "layers" in model and "hidden" in model and "model_type" not in model:
        return Reading("bare shape", _from_fields(dict(model), NEEDED), "whole model", [PLAIN, "no biases, RMS norms"])
    return known_models.reading_of(model)


def _beside(reading: Reading) -> list[str]:
    """What a config left open, and that it was read in part."""
    return [*([] if reading.scope == "whole model" else [reading.scope]), *reading.notes]


def _of_shape(shape: Architecture, said: str, more: Iterable[str] = ()) -> Size:
    count = shapes.parameters(shape)
    notes = [said, *more]
    if shape.state_layers:
        notes.append(f"{shape.state_layers} state-space layers: their scan, about 1% of the FLOPs, is not counted")
    if shape.sliding_window:
        notes.append(f"sliding window of {shape.sliding_window} tokens not used: attention is counted in full")
    return Size(count.total, count.active, count.lookup, shape.attention_layers, shapes.score_width(shape), bool(shape.experts), shape, notes)


def _of_counts(total: float, active: float | None, fields: dict[str, Any] | None) -> Size:
    if not SIZES[0] <= total <= SIZES[1]:
        raise BadRequest("bad_params_total", f"params_total {total:g} is outside {SIZES[0]:g} to {SIZES[1]:g}", next="pass parameters, such as '8B'")
    if active is not None and active > total:
        raise BadRequest("params_contradict", f"params_active {show_count(active)} is more than params_total {show_count(total)}", next="correct one")
    experts = active is not None and active < 0.95 * total
    active = total if active is None else active
    if fields is None:
        return _bare(total, active, experts)
    shape = _from_fields(fields, ("layers", "hidden"))
    if shape.experts and not experts:
        if not all(fields.get(name) for name in ("ffn", "vocab", "heads", "experts_per_token")):
            raise BadRequest("no_params_active", "architecture has experts and nothing says how many parameters are active",
                             next="pass params_active, or ffn, vocab, heads and experts_per_token in architecture")  # fmt: skip
        count = shapes.parameters(shape)
        active, experts = total * count.active / count.total, True
    lookup, note = _lookup(total, shape, fields, experts)
    return Size(total, active, lookup, shape.layers, shape.attention_width, experts, None, [note])


def _bare(total: float, active: float, experts: bool) -> Size:
    """No shape at all: attention is estimated from a typical one, 12 x layers x hidden^2 = parameters."""
    hidden = (active * WIDTH_PER_LAYER / 12) ** (1 / 3)
    layers = max(1, round(hidden / WIDTH_PER_LAYER))
    kind = "" if experts else "dense, since params_active was not given below params_total; "
    note = (
        f"{kind}no architecture: attention counted for a typical shape of {layers} layers and hidden size {hidden:.0f}; embeddings counted as matmuls"
    )
    return Size(total, active, 0, layers, hidden, experts, None, [note])


def _lookup(total: float, shape: Architecture, fields: Mapping[str, Any], experts: bool) -> tuple[float, str]:
    """Parameters that are only looked up, found by which reading of the shape gives the total."""
    if experts or not all(fields.get(name) for name in NEEDED):
        return 0, "embeddings counted as matmuls (6ND), the shape does not tell them apart"
    readings = [shape.model_copy(update={"gated": gated, "tied": tied}) for gated in (True, False) for tied in (True, False)]
    best = min(readings, key=lambda one: abs(math.log(shapes.parameters(one).total / total)))
    count = shapes.parameters(best)
    ratio = count.total / total
    if not 1 / MISMATCH < ratio < MISMATCH:
        raise BadRequest(
            "params_contradict",
            f"params_total {show_count(total)} does not fit architecture, which gives about {show_count(count.total)}",
            next="correct one; for experts pass params_active",
        )
    if abs(ratio - 1) > SAME:
        return 0, f"params_total was used; architecture alone gives {show_count(count.total)}"
    return (
        count.lookup,
        f"architecture read as {'gated' if best.gated else 'plain'} MLP with {'tied' if best.tied else 'untied'} embeddings, which fits params_total",
    )


def _from_fields(fields: dict[str, Any], needed: tuple[str, ...]) -> Architecture:
    """The contract's architecture dict, checked. Sizes that were not needed and not given are filled with neutral ones."""
    sizes = {name: value for name, value in fields.items() if value is not None}
    for name in sizes:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, 1)
            raise BadRequest(
                "bad_architecture", f"architecture has an unknown field {name!r}" + (f", did you mean {near[0]!r}?" if near else ""), valid=FIELDS
            )
    if missing := [name for name in needed if not sizes.get(name)]:
        raise BadRequest("bad_architecture", f"architecture lacks {', '.join(missing)}", valid=FIELDS, next=f"add {missing[0]}")
    for name in sizes.keys() - {"gated", "tied"}:
        sizes[name] = _whole(name, sizes[name])
    heads = sizes.setdefault("heads", 1)
    sizes.setdefault("kv_heads", heads)
    _consistent(sizes)
    sizes = {"ffn": 4 * sizes["hidden"], "vocab": 1, **sizes}
    if sizes.get("experts"):
        sizes.setdefault("expert_ffn", sizes["ffn"])
    try:
        return Architecture(**sizes)
    except ValidationError as problem:
        error = problem.errors()[0]
        raise BadRequest("bad_architecture", f"architecture.{error['loc'][0]}: {error['input']!r}: {error['msg']}", next="correct it") from problem


def _whole(name: str, value: object) -> int:
    try:
        number = parse_count(value)
    except ValueError as problem:
        raise BadRequest("bad_architecture", f"architecture.{name}: {problem}", next="pass a whole number") from problem
    least = 0 if name in ("experts", "experts_per_token", "head_dim", "expert_ffn") else 1
    if number != int(number) or not least <= number <= 1e9:
        raise BadRequest("bad_architecture", f"architecture.{name}: {value!r} is not a whole number from {least} to 1e9", next="correct it")
    return int(number)


def _consistent(sizes: Mapping[str, Any]) -> None:
    hidden, heads, kv = sizes["hidden"], sizes["heads"], sizes["kv_heads"]
    if not sizes.get("head_dim") and hidden % heads:
        raise BadRequest(
            "bad_architecture", f"architecture: {heads} heads do not divide hidden {hidden}", next="correct heads or hidden, or add head_dim"
        )
    if heads % kv:
        raise BadRequest("bad_architecture", f"architecture: {kv} kv_heads do not divide {heads} heads", next="correct kv_heads")
    if sizes.get("experts_per_token", 0) > sizes.get("experts", 0):
        raise BadRequest(
            "bad_architecture",
            f"architecture: experts_per_token {sizes['experts_per_token']} is more than experts {sizes.get('experts', 0)}",
            next="correct one",
        )
    if sizes.get("experts") and not sizes.get("experts_per_token"):
        raise BadRequest("bad_architecture", "architecture has experts without experts_per_token", next="add experts_per_token")
