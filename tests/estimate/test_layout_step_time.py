"""Seconds of a step: volumes and bubbles by formula, kernels by size, and the published speeds they are held against."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from skillserver.estimate import communication as links
from skillserver.estimate.communication import Cluster, allowance
from skillserver.estimate.memory_plan import Plan, shape_of
from skillserver.estimate.step_time import Step, Work, predict
from skillserver.estimate.step_time_kernels import ceiling_tflops, share_of_ceiling
from skillserver.hardware.catalogue import accelerator
from skillserver.measure.published import published

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT.parent / "shared" / "cases" / "throughput.json"


def eight_a_node(n: int, between: float = 50.0) -> Cluster:
    part = accelerator("H100-80GB-SXM")
    found = published(part.id, "bf16")
    return Cluster(part, n, 8, 450.0, between, (("bf16", found.tflops),) if found else ())


def step(n: int, batch: int, between: float = 50.0, **sizes: object) -> Step:
    cluster = eight_a_node(n, between)
    kept: dict[str, object] = {"program": "megatron", "fused": True, "sharding": "zero1"} | sizes
    tp, pp, cp = (int(str(kept.get(name, 1))) for name in ("tp", "pp", "cp"))
    dp = n // (tp * pp * cp)
    plan = Plan(shape_of("llama-3-70b"), 8192, 1, dp=dp, shard_size=dp * cp, sequence_parallel=tp > 1, **kept)  # type: ignore[arg-type]
    return predict(Work(plan, cluster, batch))


def test_a_group_that_leaves_the_node_shares_its_ports() -> None:
    cluster = eight_a_node(64)
    inside, out = allowance("inside_share") * 450, allowance("between_share") * 50
    assert links.bus_gb_s(cluster, 8, 1) == pytest.approx(inside)
    assert links.bus_gb_s(cluster, 8, 8) == pytest.approx(out)  # one rank a node, one port
    assert links.bus_gb_s(cluster, 32, 2) == pytest.approx(4 * out)  # four ranks a node
    assert links.bus_gb_s(cluster, 64, 1) == pytest.approx(min(inside, 8 * out))


def test_an_all_reduce_moves_twice_what_a_gather_does() -> None:
    cluster = eight_a_node(8)
    assert links.all_reduce_s(cluster, 8, 1, 1e9) == pytest.approx(2 * links.gather_s(cluster, 8, 1, 1e9))
    assert links.gather_s(cluster, 8, 1, 8e9) == pytest.approx(7e9 / (338e9), rel=0.01)
    assert links.gather_s(cluster, 1, 1, 1e9) == 0


def test_an_instance_network_is_divided_by_its_gpus() -> None:
    assert links.between_gb_s("EFA-p5", 8) == 50
    assert links.between_gb_s("NDR", 8) == 50
    assert links.between_gb_s(12.5, 8) == 12.5


def test_large_products_come_near_the_ceiling_and_small_ones_do_not() -> None:
    assert share_of_ceiling(8192, 28672, 8192, 132) > 0.9
    assert share_of_ceiling(512, 1024, 8192, 132) < 0.3
    assert share_of_ceiling(8192, 8192, 512, 132) < share_of_ceiling(8192, 8192, 8192, 132)
    assert ceiling_tflops(eight_a_node(8), "bf16") == pytest.approx(794.5 * allowance("sustained"))


def test_the_bubble_is_stages_less_one_over_micro_batches() -> None:
    few, many = step(64, 32, tp=8, pp=8), step(64, 64, tp=8, pp=8)
    a_micro_batch = (few.compute_s + few.communication_s - few.data_s) / 32
    uneven = (many.bubble_s - few.bubble_s) / 32  # the head makes the last stage longer than the mean, every micro-batch
    assert few.bubble_s - 32 * uneven == pytest.approx(7 * a_micro_batch)
    assert step(64, 32, tp=8, pp=8, chunks=2).bubble_s < 0.75 * few.bubble_s
    assert step(64, 8, tp=8, pp=1).bubble_s == 0


def test_full_recomputation_is_one_more_forward() -> None:
    none, full = step(64, 32, tp=8), step(64, 32, tp=8, recompute="full")
    assert full.compute_s / none.compute_s == pytest.approx(4 / 3, rel=0.05)
    assert full.tensor_s / none.tensor_s == pytest.approx(1.5)


def test_fsdp_moves_more_than_data_parallelism_and_hsdp_keeps_gathers_in_the_node() -> None:
    slow = {"between": 1.0}
    plain = step(64, 64, **slow)
    whole = step(64, 64, sharding="fsdp", program="fsdp", **slow)
    assert whole.data_s > plain.data_s
    hsdp = predict(Work(Plan(shape_of("llama-3-70b"), 8192, 1, "fsdp", dp=64, sharding="hsdp", shard_size=8), eight_a_node(64, 1.0), 64))
    assert hsdp.data_s < whole.data_s


def test_a_slow_network_costs_tensor_parallelism_across_nodes_most() -> None:
    inside, across = step(64, 64, tp=8), step(64, 64, tp=16, between=12.5)
    assert across.tensor_s > 5 * inside.tensor_s


@pytest.mark.parametrize("between", [1.0, 50.0])
def test_a_faster_network_is_never_slower(between: float) -> None:
    assert step(64, 64, sharding="fsdp", program="fsdp", between=2 * between).total_s <= step(
        64, 64, sharding="fsdp", program="fsdp", between=between).total_s  # fmt: skip


def test_experts_pay_for_exchanges_that_leave_the_node() -> None:
    shape, cluster = shape_of("mixtral-8x7b"), eight_a_node(64)

    def experts(ep: int) -> float:
        return predict(Work(Plan(shape, 4096, 1, "megatron", dp=64, ep=ep, sharding="zero1", shard_size=64, fused=True), cluster, 64)).expert_s

    assert experts(1) == 0 < experts(4) < experts(8)


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layout_sweeps", ROOT / "benchmarks" / "layout_sweeps.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not CASES.is_file(), reason="the published throughput is not here")
def test_published_sweeps_are_ranked_and_published_speeds_met() -> None:
    found = _benchmark().summary()
    assert found["median_rank_correlation"] >= 0.7
    assert found["median_error"] <= 0.25


def test_rank_correlation_shares_ranks_among_ties() -> None:
    spearman = _benchmark().spearman
    assert spearman([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert spearman([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1)
    assert spearman([(1, 1), (1, 2), (2, 3), (2, 4)]) == pytest.approx(0.894, abs=1e-3)
