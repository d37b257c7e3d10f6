"""What accelerators and links are on paper, and what a healthy node's collectives reach.

Knows data/accelerators.toml (dense and sparse peaks apart, one direction and the stated total apart), data/links.toml
and data/busbw.toml. Does not know what this host holds (hardware.nvml) nor what a part reaches in practice: a peak is
a ceiling that no program meets. Figures no source gives are None.

>>> accelerator("NVIDIA H100 80GB HBM3").id, peak_tflops(accelerator("h100"), "bf16")
('H100-80GB-SXM', 989.4)
"""

from __future__ import annotations

import difflib
import re
from typing import Literal

from pydantic import Field

from skillserver import tables
from skillserver.errors import BadRequest

Dtype = Literal["fp64", "tf32", "fp32", "bf16", "fp16", "fp8", "fp4", "int8"]
Peaks = dict[Dtype, float]

DTYPES: dict[str, Dtype] = {
    "fp64": "fp64", "float64": "fp64", "double": "fp64", "tf32": "tf32", "fp32": "fp32", "float32": "fp32", "float": "fp32",
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16", "fp8": "fp8", "mxfp8": "fp8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "e4m3": "fp8", "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4", "int8": "int8",
}  # fmt: skip
NOISE = {"nvidia", "amd", "intel", "google", "tesla", "geforce", "instinct", "cloud", "gpu", "accelerator", "tensor", "core"}


class Accelerator(tables.Record):
    """One part as its vendor sells it. Peaks in TFLOPS (int8: TOPS); `memory_gb` is the marketing figure, not GiB."""

    id: str
    aliases: list[str]
    nvml_names: list[str]
    vendor: str
    architecture: str
    year: int
    vector: Peaks = Field(default_factory=dict, description="dense, without matrix units")
    tensor: Peaks = Field(default_factory=dict, description="dense, matrix units")
    sparse: Peaks = Field(default_factory=dict, description="matrix units with 2:4 sparsity")
    memory_gb: float
    memory_bandwidth_gb_s: float
    sm_count: int | None = Field(None, description="SMs or compute units")
    boost_clock_mhz: int | None = None
    link: str | None = None
    links: int | None = None
    link_each_way_gb_s: float | None = None
    link_stated_total_gb_s: float | None = None
    pcie_generation: int | None = None
    tdp_w: int | None = None
    sources: list[str] = Field(min_length=2)
    doubt: str = ""


class Link(tables.Record):
    """One link or instance network; GB/s = 10^9 bytes a second."""

    id: str
    aliases: list[str]
    kind: Literal["pcie", "gpu", "network", "instance"]
    each_way_gb_s: float
    stated_total_gb_s: float
    links: int
    note: str
    source: str


class ExpectedBusbw(tables.Record):
    """What healthy nodes reached; `low`..`high` spans the settings of `conditions`, `typical` is the default one."""

    accelerators: list[str]
    n_gpus: list[int]
    collectives: list[str]
    low_gb_s: float
    high_gb_s: float
    typical_gb_s: float
    size: str
    conditions: str
    note: str
    sources: list[str]


def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of the table."""
    return tables.load("accelerators.toml", Accelerator)


def links() -> tuple[Link, ...]:
    """Every link of the table."""
    return tables.load("links.toml", Link)


def accelerator(name: str) -> Accelerator:
    """The one accelerator meant by an id, an alias or the driver's name. Raises BadRequest when none or several fit."""
    found = matches(name)
    if len(found) == 1:
        return found[0]
    ids = [part.id for part in found]
    if found:
        raise BadRequest("ambiguous_accelerator", f"accelerator {name!r} fits {len(ids)} parts", valid=ids, next=f"pass one id, such as {ids[0]!r}")
    every = _nearest_first(name, {part.id: [*part.aliases, *part.nvml_names] for part in accelerators()})
    raise BadRequest("unknown_accelerator", f"accelerator {name!r} is not in the catalogue", valid=every, next="pass one of these ids")


def matches(name: str) -> list[Accelerator]:
    """Everything that `name` may mean: exact id, else equal names, else ids that hold every word of it."""
    exact = [part for part in accelerators() if part.id == name]
    wanted = _words(name)
    equal = exact or [part for part in accelerators() if wanted in _names(part)]
    return equal or [part for part in accelerators() if wanted and wanted <= _words(part.id)]


def _names(part: Accelerator) -> frozenset[frozenset[str]]:
    return frozenset(_words(name) for name in (part.id, *part.aliases, *part.nvml_names))


def _words(name: str) -> frozenset[str]:
    """{"a100", "sxm", "80gb"} of "NVIDIA A100-SXM4-80GB": vendor words and socket numbers say nothing new."""
    text = re.sub(r"\bsxm\d\b", "sxm", name.lower())
    text = re.sub(r"(\d+) ?(gb|gib)\b", r"\1gb", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - NOISE


def _nearest_first(name: str, names: dict[str, list[str]]) -> list[str]:
    """Every id, those first whose id or alias looks like `name`."""

    def likeness(choice: str) -> float:
        return max(difflib.SequenceMatcher(None, _plain(name), _plain(other)).ratio() for other in (choice, *names[choice]))

    near = [choice for choice in sorted(names, key=likeness, reverse=True)[:5] if likeness(choice) >= 0.6]
    return near + [choice for choice in names if choice not in near]


def dtype(name: str) -> Dtype:
    """Canonical precision of "bfloat16", "amp_bf16", "bf16-mixed". Raises BadRequest."""
    key = re.sub(r"^amp_|^torch\.|[-_ ]?(mixed|true)$", "", name.lower().strip())
    if key not in DTYPES:
        raise BadRequest("unknown_precision", f"precision {name!r} is not known", valid=dict.fromkeys(DTYPES.values()), next="pass precision='bf16'")
    return DTYPES[key]


def peak_tflops(part: Accelerator, precision: str, *, sparse: bool = False) -> float | None:
    """Peak of the matrix units in TFLOPS (int8 TOPS), dense unless asked; fp32 and fp64 fall back to the vector units.

    None when no source gives it or the part has no such units. Raises BadRequest for an unknown precision.
    """
    kind = dtype(precision)
    if sparse:
        return part.sparse.get(kind)
    return part.tensor.get(kind) or (part.vector.get(kind) if kind in ("fp32", "fp64") else None)


def link(name: str) -> Link:
    """The link meant by "NVLink4", "pcie gen5", "NDR". Raises BadRequest with every id, near ones first."""
    wanted = _plain(name)
    found = [row for row in links() if wanted in map(_plain, (row.id, *row.aliases))]
    if found:
        return found[0]
    valid = _nearest_first(name, {row.id: row.aliases for row in links()})
    raise BadRequest("unknown_link", f"link {name!r} is not in the catalogue", valid=valid, next="pass one of these ids")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def expected_busbw(part_id: str, n_gpus: int, collective: str) -> ExpectedBusbw | None:
    """Range of busbw (GB/s) that healthy nodes of this part showed on `n_gpus` of one node; None = nothing known."""
    kind = collective.lower().removesuffix("_perf").replace("-", "_")
    for row in tables.load("busbw.toml", ExpectedBusbw):
        if part_id in row.accelerators and n_gpus in row.n_gpus and kind in row.collectives:
            return row
    return None
