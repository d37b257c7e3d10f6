"""What a caller of run_mamf asks for -> the worker, its settings and what can be said before it runs. Refuses first.

Three things can be measured: the fastest shape (a search, a list, a grid), the matmuls of a model, and either on several
devices. Joins estimate (shapes of a model), measure.grids and hardware; starts nothing.

>>> build(Asked(model="llama-3-8b", extra={"seq_len": 2048})).settings["products"][0]["layout"]
'NT'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from skillserver import processes
from skillserver.errors import BadRequest
from skillserver.estimate import matmuls, models, shape_advice
from skillserver.findings import Finding
from skillserver.hardware import catalogue
from skillserver.measure import grids
from skillserver.procedures import gpus_here
from skillserver.topics import sections

Document = dict[str, Any]
ONE_DEVICE, MANY_DEVICES = "torch_matmul.py", "matmul_devices.py"
PASSES = (("forward", "NT"), ("to input", "NN"), ("to weight", "TN"))
ONE_LAYOUT = ("fp8", "int8")  # libraries transpose such operands first, so that every product is NT
EXTRAS = ("seq_len", "micro_batch", "tp")
MOST_SHAPES, MOST_S, LEAST_S = 200, 12 * 3600, 2
CPU_TFLOPS_A_CORE, SHARE_OF_PEAK, UNKNOWN_TFLOPS = 0.05, 0.5, 100.0
STARTUPS_IN_TURN = 4  # a warm start takes a tenth of the time that is allowed for one
TOLERATED = 3.0  # an estimate is that far off at worst, and a grid of that much over its time is refused


@dataclass(frozen=True)
class Asked:
    """The arguments of run_mamf that say what to measure."""

    device: str = "auto"
    dtype: str = "auto"
    layout: str = "NT"
    budget_s: float = 15.0
    shapes: list[list[int]] | None = None
    grid: str = ""
    model: str | dict[str, Any] | None = None
    extra: dict[str, Any] | None = None


@dataclass(frozen=True)
class Request:
    """What runs, and what the answer needs to know of it."""

    script: str
    settings: Document
    foreseen: Document = field(default_factory=dict)
    advice: list[Finding] = field(default_factory=list)

    @property
    def startups(self) -> int:
        """How many times torch may have to be loaded one after the other; how many devices "each" means is not known yet."""
        return STARTUPS_IN_TURN if self.settings.get("in_turn") else 1


def build(asked: Asked) -> Request:
    """The worker and its settings. Raises BadRequest for what cannot be measured or not in this time."""
    if asked.model in ({}, ""):
        raise BadRequest(
            "empty_model", f"model {asked.model!r} describes nothing", next="pass a known name or a Hugging Face config, or leave it out"
        )
    ways = [name for name in ("shapes", "grid", "model") if getattr(asked, name)]
    if len(ways) > 1:
        raise BadRequest("two_ways", f"{' and '.join(ways)} were given together", next="pass one of them")
    if not LEAST_S <= asked.budget_s <= MOST_S:
        raise BadRequest("bad_arguments", f"run_mamf: budget_s: {asked.budget_s:g} is not from {LEAST_S} to {MOST_S} s",
                         next=f"pass budget_s={LEAST_S if asked.budget_s < LEAST_S else MOST_S}, or leave it out for 15")  # fmt: skip
    if asked.extra and not asked.model:
        raise BadRequest("extra_without_model", "extra says how a model is trained, and no model was given", next="pass model, or drop extra")
    several = is_several(asked.device)
    settings = {"device": asked.device, "dtype": asked.dtype, "layout": asked.layout, "budget_s": asked.budget_s}
    if several:
        settings["in_turn"] = asked.device == gpus_here.IN_TURN
    request = Request(MANY_DEVICES if several else ONE_DEVICE, settings)
    if asked.model:
        return _of_model(asked, request)
    if asked.grid:
        return _of_grid(asked, request)
    if asked.shapes:
        settings["shapes"] = _listed(asked.shapes)
    return request


def is_several(device: str) -> bool:
    """Whether a device argument may mean more than one."""
    return device in gpus_here.EVERY or "," in device


def _listed(shapes: list[list[int]]) -> list[list[int]]:
    wrong = next((shape for shape in shapes if len(shape) != 3 or min(shape) < 1), None)
    if wrong is not None or len(shapes) > MOST_SHAPES:
        seen = f"{wrong} is no [m, n, k] of sizes from 1" if wrong is not None else f"{len(shapes)} shapes, and at most {MOST_SHAPES} are taken"
        raise BadRequest("bad_arguments", f"run_mamf: shapes: {seen}", next="pass [[m, n, k], ...], or grid for more")
    return shapes


def _of_grid(asked: Asked, request: Request) -> Request:
    grid = grids.parse(asked.grid)
    speed, basis, gpu = _speed(asked)
    takes = grids.seconds(grid, speed, gpu=gpu)
    foreseen = {"shapes": grid.shapes, "estimated_s": float(f"{takes:.2g}"), "basis": basis}
    if takes > TOLERATED * asked.budget_s:
        raise BadRequest("grid_too_long", f"the {grid.shapes:,} shapes take about {takes:,.0f} s ({basis}) and budget_s is {asked.budget_s:g}",
                         next=f"pass budget_s={takes:.0f}, take a larger step, or leave grid out: a search needs about 100 trials")  # fmt: skip
    return Request(request.script, request.settings | {"grid": [list(side) for side in grid]}, foreseen)


def _speed(asked: Asked) -> tuple[float, str, bool]:
    """(TFLOPS to reckon with, what that rests on, whether it is a GPU)."""
    here = [] if asked.device == "cpu" else gpus_here.visible_gpus()
    if not here:
        cores = processes.allowed_cpus()
        return CPU_TFLOPS_A_CORE * cores, f"assumed {CPU_TFLOPS_A_CORE:g} TFLOPS a core of {cores}", False
    try:
        part, kind = catalogue.accelerator(here[0].name), asked.dtype if asked.dtype != "auto" else "bf16"
        peak = catalogue.peak_tflops(part, kind)
    except BadRequest:
        peak = None
    if peak:
        return SHARE_OF_PEAK * peak, f"assumed half of the {peak:g} TFLOPS peak of {part.id}", True
    return UNKNOWN_TFLOPS, f"assumed {UNKNOWN_TFLOPS:g} TFLOPS, {here[0].name} is not in the catalogue", True


def _of_model(asked: Asked, request: Request) -> Request:
    if is_several(asked.device):
        raise BadRequest("model_on_many", f"model is measured on one device, and device is {asked.device!r}", next="pass device='auto' or 'cuda:0'")
    sizes = dict.fromkeys(EXTRAS, 1) | {"seq_len": 4096} | _extras(asked.extra or {})
    shape = models.shape_of(asked.model)  # type: ignore[arg-type]  # given, or this is not called
    found = matmuls.shapes(shape, sizes["seq_len"] * sizes["micro_batch"], sizes["tp"])
    cut = next((one for one in found if one.n != int(one.n) or one.k != int(one.k)), None)
    if cut is not None:
        raise BadRequest("tp_does_not_divide", f"tp {sizes['tp']} does not divide {cut.name} (k {cut.k}, n {cut.n} a rank)",
                         next="pass a tp that divides heads and ffn")  # fmt: skip
    settings = request.settings | {"products": products(found, one_layout=asked.dtype in ONE_LAYOUT)}
    return Request(request.script, settings, sizes, shape_advice.advice(shape, sizes["tp"], sections("matmul_shapes")))


def _extras(given: Document) -> dict[str, int]:
    for name, value in given.items():
        if name not in EXTRAS:
            raise BadRequest("bad_extra", f"extra has an unknown setting {name!r}", valid=list(EXTRAS), next="correct it")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**8:
            raise BadRequest("bad_extra", f"extra.{name}: {value!r} is not a whole number from 1 to 1e8", next=f"correct extra.{name}")
    return given


def products(found: list[matmuls.Matmul], *, one_layout: bool) -> list[Document]:
    """Every different product of a forward and backward pass, with its layout and how often it stands in one.

    y[m, n] = x[m, k] w[n, k].T; the gradient towards x is dy w, [m, k]; that towards w is dy.T x, [n, k].
    """
    merged: dict[tuple[int, int, int, str], Document] = {}
    for one in found:
        m, n, k = max(1, round(one.m)), int(one.n), int(one.k)
        for (name, layout), shape in zip(PASSES, ((m, n, k), (m, k, n), (n, k, m)), strict=True):
            key = (*shape, "NT" if one_layout else layout)
            row = merged.setdefault(key, {"name": "", "pass": name, "m": key[0], "n": key[1], "k": key[2], "layout": key[3], "times": 0})
            row["name"] = ", ".join(dict.fromkeys([*filter(None, row["name"].split(", ")), one.name]))
            row["times"] += one.times
    return list(merged.values())
