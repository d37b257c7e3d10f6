"""The search over layouts: what exists, what fits, why others lose, refusals, flags, and the tool's answer."""

from typing import Any

import pytest

from skillserver import contract, topics
from skillserver.errors import BadRequest
from skillserver.estimate import layout_flags, layouts, layouts_alternatives
from skillserver.estimate.communication import Cluster
from skillserver.estimate.layouts import Job, Layout
from skillserver.estimate.layouts_bounds import Bound
from skillserver.estimate.memory import peak
from skillserver.estimate.memory_buffers import capacity_gib
from skillserver.estimate.memory_plan import shape_of
from skillserver.hardware.catalogue import accelerator
from skillserver.tools.layout import LayoutPlan, plan_parallelism

H100 = "H100-80GB-SXM"


def job(model: str, n: int, batch: int, seq_len: int = 8192, **more: Any) -> Job:
    return Job(shape_of(model), seq_len, batch, Cluster(accelerator(H100), n, 8, 450.0, 50.0, (("bf16", 794.5),)), **more)


def plan(model: str = "llama-3-70b", n: int = 64, batch: int = 512, **more: Any) -> LayoutPlan:
    return plan_parallelism(model=model, seq_len=more.pop("seq_len", 8192), global_batch=batch, n_accelerators=n, accelerator=H100, **more)


@pytest.mark.parametrize(("model", "n", "batch", "precision"), [("llama-3-8b", 8, 64, "bf16"), ("llama-3-70b", 64, 512, "bf16"),
                                                                 ("mixtral-8x7b", 64, 256, "bf16"), ("llama-3-70b", 128, 256, "fp8")])  # fmt: skip
def test_every_candidate_exists_and_the_bound_never_exceeds_the_estimate(model: str, n: int, batch: int, precision: str) -> None:
    one = job(model, n, batch, precision=precision)
    bound, found = Bound(one.shape, one.seq_len, precision), list(layouts.candidates(one))
    assert len(found) > 50
    for layout in found[:: max(len(found) // 60, 1)]:
        made = layouts.plan_of(one, layout)  # checks divisibility; raises when impossible
        assert made.world == n
        assert batch % (layout.dp * layout.micro_batch) == 0
        assert bound.gib(layout, batch) <= peak(made).device.expected, layout


def test_plans_are_fastest_first_fit_and_differ() -> None:
    one = job("llama-3-70b", 64, 512)
    found = layouts.search(one)
    times = [timed.step.total_s for timed in found.fitting]
    assert times == sorted(times) and len(times) == 5
    assert all(timed.memory and timed.memory.device.expected <= layouts.ROOM * capacity_gib(one.cluster.part) for timed in found.fitting)
    assert len({layouts.division_of(timed.layout) for timed in found.fitting}) == 5


def test_nothing_that_fits_is_faster_than_the_first_plan() -> None:
    one = job("llama-3-8b", 8, 16)
    found, room = layouts.search(one, wanted=1), layouts.ROOM * capacity_gib(accelerator(H100))
    best = found.fitting[0].step.total_s
    faster = [timed for timed in found.considered if timed.step.total_s < best]
    assert all(peak(layouts.plan_of(one, timed.layout)).device.expected > room for timed in faster)


def test_70b_on_16384_gpus_makes_few_memory_estimates() -> None:
    found = layouts.search(job("llama-3-70b", 16384, 2048))
    assert len(found.fitting) == 5
    assert found.tested <= 60
    assert len(found.considered) < 20000


def test_alternatives_name_the_part_that_costs_them_their_place() -> None:
    one = job("llama-3-70b", 64, 512)
    said = {lost.name: lost for lost in layouts_alternatives.alternatives(one, layouts.search(one))}
    assert said["data parallel with ZeRO-1"].verdict == "does not fit"
    assert "GiB of 79" in said["data parallel with ZeRO-1"].why
    slower = [lost for lost in said.values() if lost.verdict == "slower"]
    assert slower and all("slower" in lost.why and "s a step" in lost.why for lost in slower)


def test_a_batch_smaller_than_the_gpus_rules_pure_data_parallelism_out() -> None:
    said = {lost.layout: lost for lost in plan(n=16384, batch=2048).alternatives}
    assert said["FSDP or ZeRO-3 over all GPUs"].verdict == "impossible"
    assert "2048 sequences on 16384 GPUs" in said["FSDP or ZeRO-3 over all GPUs"].why


@pytest.mark.parametrize(("given", "code", "word"), [
    ({"fixed": {"tp": 7}}, "bad_tp", "8"),
    ({"fixed": {"pp": 128}}, "too_many_stages", "pp=80"),
    ({"fixed": {"cp": 3}}, "bad_cp", "4"),
    ({"fixed": {"ep": 2}}, "no_experts", "drop ep"),
    ({"fixed": {"pp": 5}}, "bad_layout", "n_accelerators"),
    ({"fixed": {"tq": 2, "sharding": "zero9"}}, "bad_fixed", "fixed.sharding: 'zero9'"),
    ({"framework": "fsdp", "model": "llama-3-8b", "batch": 509}, "no_layout", "global_batch=512"),
    ({"fixed": {"micro_batch": 3}}, "no_layout", "micro_batch=2"),
    ({"framework": "fsdp", "fixed": {"tp": 2}}, "no_layout", "tp=1"),
    ({"framework": "nemo"}, "unknown_framework", "torchtitan"),
    ({"precision": "int8"}, "unknown_precision", "bf16"),
    ({"network": "carrier pigeon"}, "unknown_link", "InfiniBand-NDR"),
    ({"n": 8, "batch": 64}, "does_not_fit", "GPUs"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_the_nearest_that_can(given: dict[str, Any], code: str, word: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        plan(**({"model": "llama-3-70b", "n": 64, "batch": 512} | given))
    assert refusal.value.code == code
    assert word in str(refusal.value)


def test_an_answer_is_short_says_what_it_rests_on_and_cites_sections() -> None:
    found = plan(n=16384, batch=2048)
    assert len(contract.compact_json(contract.document(found))) / 4 <= 2000
    assert len(found.plans) == 5 and found.flags
    assert found.step_s.low < found.step_s.expected < found.step_s.high
    assert sum(found.step_parts_s.values()) == pytest.approx(found.step_s.expected, rel=0.02)
    assert found.sections == topics.sections("layout_choice", "layout_pipeline", "layout_limits")
    assert any("794.5" in line for line in found.assumptions)


def test_what_is_fixed_stays_fixed() -> None:
    rows = plan(fixed={"tp": 8, "pp": 4, "activation_recompute": "full"}).plans
    assert {(row.tp, row.pp, row.activation_recompute) for row in rows} == {(8, 4, "full")}


def test_a_measured_matmul_rate_replaces_the_published_one() -> None:
    slow, usual = plan(matmul_tflops=400.0), plan()
    assert slow.step_s.expected > 1.3 * usual.step_s.expected
    assert any("400" in line for line in slow.assumptions)


def layout(framework: str, **sizes: Any) -> Layout:
    plain = {"tp": 1, "pp": 1, "dp": 1, "cp": 1, "ep": 1, "micro_batch": 1, "virtual_stages": 1, "sharding": "zero1", "activation_recompute": "none"}
    return Layout(**(plain | sizes), framework=framework)


def test_megatron_flags_say_the_whole_layout() -> None:
    said = layout_flags.flags(layout("megatron", tp=8, pp=4, virtual_stages=5, dp=2, activation_recompute="full"), job("llama-3-70b", 64, 512))
    for flag in ("--tensor-model-parallel-size 8", "--pipeline-model-parallel-size 4", "--num-virtual-stages-per-pipeline-rank 5",
                 "--sequence-parallel", "--use-distributed-optimizer", "--recompute-granularity full", "--global-batch-size 512"):  # fmt: skip
        assert flag in said


def test_megatron_flags_cut_uneven_stages_as_the_memory_estimate_does() -> None:
    said = layout_flags.flags(layout("megatron", pp=16, dp=64, ep=8), job("deepseek-v3", 1024, 8192, 4096))
    assert "--decoder-last-pipeline-num-layers 1" in said  # 61 = 15 x 4 + 1
    assert "--expert-model-parallel-size 8" in said


def test_torchtitan_flags_split_hsdp_into_shards_and_copies() -> None:
    said = layout_flags.flags(layout("torchtitan", dp=64, sharding="hsdp"), job("llama-3-8b", 64, 128))
    assert "--parallelism.data_parallel_shard_degree 8" in said
    assert "--parallelism.data_parallel_replicate_degree 8" in said
    assert "--training.num_tokens_per_train_step 1048576" in said


def test_deepspeed_and_fsdp_get_their_files() -> None:
    deepspeed = layout_flags.flags(layout("deepspeed", dp=64, sharding="zero3", micro_batch=2), job("llama-3-8b", 64, 512))
    assert '"gradient_accumulation_steps": 4' in deepspeed and any('"stage": 3' in line for line in deepspeed)
    fsdp = layout_flags.flags(layout("fsdp", dp=64, sharding="fsdp", activation_recompute="full"), job("llama-3-8b", 64, 512))
    assert "fsdp_version: 2" in fsdp and "fsdp_activation_checkpointing: true" in fsdp


@pytest.mark.parametrize("framework", layouts.FRAMEWORKS)
def test_each_framework_plans_what_it_can_run(framework: str) -> None:
    rows = plan(model="llama-3-8b", batch=128, framework=framework).plans
    assert rows and {row.framework for row in rows} == {framework}
    if framework in ("deepspeed", "fsdp"):
        assert {(row.tp, row.pp, row.cp) for row in rows} == {(1, 1, 1)}
