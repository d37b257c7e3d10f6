"""The Young/Daly interval and the share of a run that failures eat, against a simulation and against BLOOM."""

import random

import pytest

from skillserver.errors import BadRequest
from skillserver.estimate import checkpoint
from skillserver.tools.checkpoints import plan_checkpoints

HOUR = 3600.0


def simulated_useful_share(stall_s: float, mtbf_s: float, restart_s: float, interval_s: float) -> float:
    """Exponential failures, work since the last whole save lost at each."""
    draw, clock, useful = random.Random(7), 0.0, 0.0
    while clock < 20_000 * mtbf_s:
        alive = draw.expovariate(1 / mtbf_s)
        useful += int(alive // (interval_s + stall_s)) * interval_s
        clock += alive + restart_s
    return useful / clock


@pytest.mark.parametrize(("stall_s", "mtbf_s", "restart_s"), [(100, 4 * HOUR, 600), (5, 2 * HOUR, 300), (600, 24 * HOUR, 1800), (900, HOUR, 60)])
def test_the_formula_agrees_with_a_simulation(stall_s: float, mtbf_s: float, restart_s: float) -> None:
    found = checkpoint.outcome(stall_s=stall_s, mtbf_s=mtbf_s, restart_s=restart_s)
    assert found.useful_share == pytest.approx(simulated_useful_share(stall_s, mtbf_s, restart_s, found.interval_s), abs=0.01)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_no_other_interval_is_better(factor: float) -> None:
    best = checkpoint.outcome(stall_s=60, mtbf_s=6 * HOUR, restart_s=600)
    other = checkpoint.outcome(stall_s=60, mtbf_s=6 * HOUR, restart_s=600, interval_s=factor * best.interval_s)
    assert other.useful_share < best.useful_share


def test_shares_add_up_to_the_whole() -> None:
    found = checkpoint.outcome(stall_s=100, mtbf_s=4 * HOUR, restart_s=600)
    assert found.useful_share + found.saving_share + found.redone_share + found.restart_share == pytest.approx(1)


def test_blooms_checkpoint_has_its_published_size() -> None:
    # BLOOM-176B: 2.3 TB with optimizer states, 329 GB of bf16 weights (bigscience chronicles); 176.247 billion parameters
    assert checkpoint.size_bytes(176.247e9, "adam") == pytest.approx(2.3e12, rel=0.08)
    assert checkpoint.size_bytes(176.247e9, "weights_only") == pytest.approx(329 * 2**30, rel=0.01)


def test_llama_3_failed_every_three_hours() -> None:
    record = next(record for record in checkpoint.failures() if record.run.startswith("Llama 3"))
    assert record.hours / record.interruptions == pytest.approx(3.1, abs=0.05)


def test_a_plan_says_size_interval_and_what_asynchronous_saving_wins() -> None:
    plan = plan_checkpoints(params_total="70B", n_accelerators=1024, write_gb_s=20, mtbf="10h", step_s=10)
    synchronous, asynchronous, in_memory = plan.plans
    assert plan.size_gib == pytest.approx(70e9 * 14 / 2**30)
    assert plan.write_s == pytest.approx(49)
    assert synchronous.useful_share < asynchronous.useful_share <= in_memory.useful_share + 0.01
    assert asynchronous.interval_s >= plan.write_s
    assert synchronous.interval_steps == round(synchronous.interval_s / 10)
    assert plan.sections


def test_without_a_rate_the_published_range_is_used_and_said() -> None:
    plan = plan_checkpoints(params_total="405B", n_accelerators=16384, write_gb_s=200)
    assert plan.mtbf_hours.low < plan.mtbf_hours.expected < plan.mtbf_hours.high == pytest.approx(3.09, abs=0.01)
    assert any("published runs" in line for line in plan.assumptions)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"params_total": "70B", "write_gb_s": 0}, "write_gb_s: 0 should be greater than 0"),
        ({"params_total": "70B", "optimizer": "adamm", "write_gb_s": 1}, "unknown_optimizer.*adam_8bit"),
        ({"params_total": "70B", "write_gb_s": 1, "mtbf": 0.5, "n_accelerators": 1}, "no_progress"),
        ({"write_gb_s": 1}, "params_total|model"),
    ],
)
def test_bad_input_is_refused_by_field(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        plan_checkpoints(**({"n_accelerators": 8} | arguments))
