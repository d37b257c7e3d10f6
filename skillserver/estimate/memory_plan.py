"""What a training job looks like on one GPU: layout, precision, recomputation, and the habits of its program.

A request names a sharding and sizes; how many bytes follow depends also on the program that implements it. `Plan`
holds both, resolved and checked: layouts that cannot exist are refused with the nearest that can. The programs are
`fsdp` (FSDP2 as in torchtitan), `megatron` (Megatron-LM, NeMo, Megatron-DeepSpeed), `deepspeed` (ZeRO under a Hugging
Face trainer) and `torch` (one process, or DDP). Knows no bytes: see memory_states, memory_activations, memory_buffers.

>>> plan(shape_of("llama-3-8b"), seq_len=8192, sharding="fsdp", sizes={"n_accelerators": 8}).dp
8
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from skillserver.errors import BadRequest
from skillserver.estimate import known_models, memory_layout, models
from skillserver.estimate.architecture import parameters
from skillserver.estimate.shape import Architecture
from skillserver.hardware.catalogue import Accelerator

SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp", "hsdp")
RECOMPUTES = ("none", "selective", "full")
Program = Literal["fsdp", "megatron", "deepspeed", "torch"]

PRECISIONS = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16", "fp8": "fp8", "float8": "fp8",
              "mxfp8": "fp8", "fp32": "fp32", "float32": "fp32", "tf32": "fp32"}  # fmt: skip
OPTIMIZERS = ("adamw", "adam", "adamw_8bit", "adamw_bf16", "adafactor", "muon", "lion", "sgd", "sgd_momentum")
ALIASES = {"adam8bit": "adamw_8bit", "adamw8bit": "adamw_8bit", "adam_8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit",
           "8bit": "adamw_8bit", "8-bit": "adamw_8bit", "adamw_torch": "adamw", "adamw_fused": "adamw"}  # fmt: skip
PEFT = ("none", "lora", "qlora", "adapter")
OFFLOADS = ("none", "optimizer", "parameters")
EXTRAS: Mapping[str, tuple[str, ...] | type] = {
    "etp": int, "virtual_stages": int, "micro_batches": int, "shard_size": int, "offload": OFFLOADS, "fused_kernels": bool,
    "attention": ("flash", "eager"), "loss": ("eager", "compiled", "chunked"),
}  # the rarer settings, each with what it may be  # fmt: skip
COMPILED_SINCE = 2024  # a part of this year or later cannot have run the older torchtitan, whose loss was not compiled
NODE = 8


@dataclass(frozen=True)
class Plan:
    """A checked job, per GPU. `etp` is the tensor parallelism of experts, `chunks` the model chunks a pipeline stage holds."""

    shape: Architecture
    seq_len: int
    micro_batch: int
    program: Program
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sharding: str = "none"
    shard_size: int = 1
    recompute: str = "none"
    precision: str = "bf16"
    optimizer: str = "adamw"
    peft: str = "none"
    lora_rank: int = 16
    trainable: float | None = None
    sequence_parallel: bool = False
    part: Accelerator | None = None
    chunks: int = 1
    micro_batches: int | None = None
    offload: str = "none"
    fused: bool = False
    attention: str = "flash"
    loss: str = "eager"
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one GPU; context parallelism cuts the sequence."""
        return self.seq_len * self.micro_batch / self.cp

    @property
    def world(self) -> int:
        """GPUs of the job."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def bytes_16(self) -> int:
        """Bytes of an activation: 4 in fp32, 2 else (fp8 matmuls keep 16-bit activations)."""
        return 4 if self.precision == "fp32" else 2


def shape_of(model: str | Mapping[str, Any]) -> Architecture:
    """The architecture of a name, a Hugging Face config or {layers, hidden, heads, ...}. Raises BadRequest."""
    if isinstance(model, str) and model.lstrip().startswith("{"):
        model = known_models.parsed(model, "model looks like JSON and")
    if isinstance(model, Mapping) and model.get("model_type") == "qwen":
        model = _first_qwen(model)
    return models.shape_of(model)


def _first_qwen(config: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen 1 is a Qwen 2 without groups whose intermediate_size counts both halves of the gated MLP."""
    width = config.get("intermediate_size")
    if not isinstance(width, int) or width < 2:
        raise BadRequest("bad_config", f"model.intermediate_size: {width!r} is not a positive whole number", next="correct the config")
    own = {"model_type": "qwen2", "intermediate_size": width // 2, "num_key_value_heads": config.get("num_attention_heads")}
    return {key: value for key, value in config.items() if key not in ("kv_channels", "seq_length", "no_bias")} | own


def plan(shape: Architecture, *, seq_len: int, micro_batch: int = 1, sharding: str = "none", recompute: str = "none",
         precision: str = "bf16", optimizer: str = "adamw", peft: str = "none", lora_rank: int | None = None, trainable: float | None = None,
         sequence_parallel: bool | None = None, part: Accelerator | None = None, sizes: Mapping[str, int | None] | None = None,
         extra: Mapping[str, Any] | None = None) -> Plan:  # fmt: skip
    """The plan of a request; `sizes` are tp, pp, dp, cp, ep and n_accelerators. Raises BadRequest naming the field."""
    rare = _extra(extra or {})
    layout = memory_layout.resolve(shape, seq_len, sizes or {}, rare)
    notes: list[str] = []
    precision, optimizer = _word("precision", precision, PRECISIONS), _word("optimizer", optimizer, OPTIMIZERS, ALIASES)
    peft, sharding = _word("peft", peft, PEFT), _word("sharding", sharding, SHARDINGS)
    recompute = _word("activation_recompute", recompute, RECOMPUTES)
    _check_peft(shape, peft, lora_rank, trainable)
    program = _program(sharding, layout)
    parallel = _sequence_parallel(sequence_parallel, program, layout["tp"], shape, notes)
    loss = rare.get("loss") or _loss(program, precision, part, notes)
    return Plan(
        shape, seq_len, micro_batch, program, **layout, sharding=sharding, shard_size=_shards(sharding, layout, rare, notes),
        recompute=recompute, precision=precision, optimizer=optimizer, peft=peft, lora_rank=lora_rank or 16, trainable=trainable,
        sequence_parallel=parallel, part=part, micro_batches=rare.get("micro_batches"), offload=_offload(rare, sharding),
        fused=rare.get("fused_kernels", program == "megatron"), attention=rare.get("attention", "flash"), loss=loss, notes=notes,
    )  # fmt: skip


def _word(name: str, value: str, valid: Any, aliases: Mapping[str, str] | None = None) -> str:
    plain = value.lower().strip().removesuffix("-mixed").removesuffix("-true")
    plain = (aliases or {}).get(plain, plain)
    if plain not in valid:
        raise BadRequest(f"unknown_{name}", f"{name} {value!r} is not known", valid=list(dict.fromkeys(valid)), next=f"pass one of these as {name}")
    return str(valid[plain]) if isinstance(valid, Mapping) else plain


def _extra(given: Mapping[str, Any]) -> dict[str, Any]:
    """The rarer settings, checked. Raises BadRequest naming the one that is wrong."""
    for name, value in given.items():
        if name not in EXTRAS:
            raise BadRequest("bad_extra", f"extra has an unknown setting {name!r}", valid=list(EXTRAS), next="correct it")
        wanted = EXTRAS[name]
        if not _right(value, wanted):
            valid = wanted if isinstance(wanted, tuple) else ["true", "false"] if wanted is bool else ["a whole number from 1"]
            raise BadRequest("bad_extra", f"extra.{name}: {value!r} does not fit", valid=valid, next=f"correct extra.{name}")
    return dict(given)


def _right(value: Any, wanted: tuple[str, ...] | type) -> bool:
    if isinstance(wanted, tuple):
        return value in wanted
    if wanted is bool:
        return isinstance(value, bool)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_peft(shape: Architecture, peft: str, rank: int | None, trainable: float | None) -> None:
    if rank and peft in ("none", "adapter"):
        raise BadRequest(
            "lora_rank_without_lora", f"lora_rank {rank} was given with peft {peft!r}", next="pass peft='lora' or 'qlora', or drop lora_rank"
        )
    total = parameters(shape).total
    if trainable is not None and trainable > total:
        raise BadRequest("too_many_trainable", f"trainable_params {trainable:g} is more than the model's {total:,}", next="correct trainable_params")


def _offload(rare: Mapping[str, Any], sharding: str) -> str:
    wanted = str(rare.get("offload", "none"))
    if wanted == "parameters" and sharding not in ("zero3", "fsdp", "hsdp"):
        raise BadRequest(
            "bad_offload", f"weights are offloaded only where they are sharded, not with {sharding!r}", next="pass sharding='zero3' or 'fsdp'"
        )
    return wanted


def _program(sharding: str, layout: Mapping[str, int]) -> Program:
    """Who implements such a request; the least common denominator of each program's documented features."""
    if sharding in ("fsdp", "hsdp"):
        return "fsdp"
    if layout["tp"] * layout["pp"] * layout["ep"] * layout["cp"] > 1:
        return "megatron"
    return "torch" if sharding == "none" else "deepspeed"


def _sequence_parallel(asked: bool | None, program: Program, tp: int, shape: Architecture, notes: list[str]) -> bool:
    """torch's tensor-parallel plans include it and Megatron demands it for experts; elsewhere it is a flag that is off."""
    if asked and tp == 1:
        raise BadRequest("sequence_parallel_without_tp", "sequence_parallel divides by tp, and tp is 1", next="pass tp, or cp to cut the sequence")
    if tp == 1 or asked is not None:
        return bool(asked)
    found = program == "fsdp" or bool(shape.experts)
    notes.append(
        f"sequence_parallel taken as {'on' if found else 'off'}: {'its tensor parallelism includes it' if found else 'a flag that is off by default'}"
    )
    return found


def _loss(program: Program, precision: str, part: Accelerator | None, notes: list[str]) -> str:
    """fp8 needs torch.compile in FSDP programs, and those of 2025 compile the loss with it."""
    if program == "fsdp" and precision == "fp8" and part and part.year >= COMPILED_SINCE:
        notes.append("loss taken as compiled (fp8 under FSDP on a recent part); pass extra.loss='eager' if it is not")
        return "compiled"
    return "eager"


def _shards(sharding: str, layout: Mapping[str, int], rare: Mapping[str, Any], notes: list[str]) -> int:
    """Ranks that share one copy of the sharded states of dense parameters."""
    ranks = layout["dp"] * layout["cp"]
    if sharding == "none":
        return 1
    if sharding != "hsdp":
        return ranks
    size = rare.get("shard_size") or min(max(NODE // layout["tp"], 1), ranks)
    if ranks % size:
        valid = map(str, memory_layout.nearest(memory_layout.divisors(ranks), int(size)))
        raise BadRequest(
            "bad_shard_size", f"extra.shard_size {size} does not divide the {ranks} data-parallel ranks", valid=valid, next="pass one of these"
        )
    if "shard_size" not in rare:
        notes.append(f"hsdp shards taken as {size}, one node of {NODE} GPUs; extra.shard_size says otherwise")
    return int(size)
