"""A quick lower bound on a layout's memory, so that a search estimates in full only what may fit.

It counts weights, gradients, optimizer states and the kept activations, and nothing else; the full estimate
(memory.py) always gives more. Remembers what layouts share.

>>> Bound(shape_of("llama-3-8b"), 8192).gib(layout, 1024) < peak(plan).device.expected
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillserver.estimate.memory import in_flight
from skillserver.estimate.memory_activations import kept
from skillserver.estimate.memory_plan import Plan
from skillserver.estimate.memory_states import counts, expert_shards, per_parameter, stages
from skillserver.estimate.shape import Architecture
from skillserver.units import GIB

if TYPE_CHECKING:
    from skillserver.estimate.layouts import Layout


GATHERED_SHARE = 0.95


class Bound:
    """Holds the counts and coefficients that many layouts of one model share."""

    def __init__(self, shape: Architecture, seq_len: int, precision: str = "bf16", optimizer: str = "adamw", node: int = 8) -> None:
        self.node, self.shape, self.seq_len, self.precision, self.optimizer = node, shape, seq_len, precision, optimizer
        self._counts: dict[tuple[int, ...], tuple[float, float]] = {}
        self._kept: dict[tuple[str, int, str], float] = {}

    def gib(self, layout: Layout, global_batch: int) -> float:
        """GiB that the first stage takes at least."""
        plan = self._plan(layout)
        dense, experts = self._parameters(plan)
        each = per_parameter(plan)
        ranks = 1 if layout.sharding == "none" else layout.dp * layout.cp
        shard = min(ranks, max(self.node // layout.tp, 1)) if layout.sharding == "hsdp" else ranks
        states = sum(dense * (whole + shared / shard) + experts * (whole + shared / max(expert_shards(plan), 1)) for whole, shared in each)
        micro_batches = max(global_batch // (layout.dp * layout.micro_batch), 1)
        stage = stages(plan)[0]
        flying = min(in_flight(plan, stage), micro_batches * 1.0) if layout.virtual_stages == 1 else in_flight(plan, stage)
        if plan.program == "fsdp" and plan.pp > 1:
            states += GATHERED_SHARE * (dense + experts) * 6  # 16-bit weights and fp32 gradients of the whole stage
        return (states + plan.tokens * stage.layers * self._activation(plan) * flying) / GIB

    def _plan(self, layout: Layout) -> Plan:
        program = "fsdp" if layout.sharding in ("fsdp", "hsdp") else "megatron"
        return Plan(self.shape, self.seq_len, layout.micro_batch, program, tp=layout.tp, pp=layout.pp, dp=layout.dp, cp=layout.cp,  # type: ignore[arg-type]
                    ep=layout.ep, sharding=layout.sharding, shard_size=layout.dp * layout.cp, recompute=layout.activation_recompute,
                    precision=self.precision, optimizer=self.optimizer, sequence_parallel=layout.tp > 1, chunks=layout.virtual_stages,
                    fused=program == "megatron")  # fmt: skip

    def _parameters(self, plan: Plan) -> tuple[float, float]:
        key = plan.tp, plan.pp, plan.ep
        if key not in self._counts:
            here = counts(plan, stages(plan)[0])
            self._counts[key] = here.dense + here.tables, here.experts
        return self._counts[key]

    def _activation(self, plan: Plan) -> float:
        key = plan.program, plan.tp, plan.recompute
        if key not in self._kept:
            self._kept[key] = kept(plan).on_one(plan)
        return self._kept[key]
