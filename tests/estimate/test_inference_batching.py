"""Static and continuous batching of one replica, simulated with a fixed seed."""

import pytest

from skillserver.estimate import batching
from skillserver.estimate.batching import Load
from skillserver.estimate.inference import Job, point
from skillserver.estimate.inference_model import served
from skillserver.estimate.inference_step import Engine
from skillserver.estimate.models import shape_of
from skillserver.hardware.catalogue import accelerator

ENGINE = Engine(served(shape_of("llama-3-8b")), accelerator("H100"))
JOB = Job(512, 128)


@pytest.mark.parametrize("policy", ["static", "continuous"])
@pytest.mark.parametrize("rate", [None, 0.1, 8.0])
def test_every_request_is_served_in_causal_order(policy: batching.Policy, rate: float | None) -> None:
    load = Load(JOB, 16, rate, 100)
    done = batching.simulate(ENGINE, load, policy)
    assert [one.tokens for one in done] == batching.answers(load)
    assert all(one.arrived < one.first <= one.ended for one in done)


def test_the_same_load_gives_the_same_answer() -> None:
    load = Load(JOB, 16, 8.0, 50)
    assert batching.simulate(ENGINE, load, "continuous") == batching.simulate(ENGINE, load, "continuous")


def test_continuous_batching_serves_more_and_answers_sooner() -> None:
    load = Load(JOB, 32, 4.0, 200)
    assert batching.saturated(ENGINE, load, "continuous") > 1.5 * batching.saturated(ENGINE, load, "static")
    static, continuous = (batching.latencies(batching.simulate(ENGINE, load, policy)) for policy in ("static", "continuous"))
    assert continuous.ttft_p95_s < static.ttft_p95_s


def test_an_idle_server_answers_as_fast_as_the_roofline() -> None:
    done = batching.simulate(ENGINE, Load(JOB, 16, 0.01, 20), "continuous")
    alone = point(ENGINE, JOB, 1)
    assert done[0].first - done[0].arrived == pytest.approx(alone.ttft_s)
    assert done[0].tpot_s == pytest.approx(alone.tpot_s, rel=0.01)


def test_a_full_server_comes_near_the_closed_form() -> None:
    load = Load(JOB, 32, None, 400)
    assert batching.saturated(ENGINE, load, "continuous") == pytest.approx(point(ENGINE, JOB, 32).output_tokens_s, rel=0.2)


def test_more_load_means_longer_waits() -> None:
    waits = [batching.latencies(batching.simulate(ENGINE, Load(JOB, 8, rate, 300), "continuous")).ttft_p95_s for rate in (0.5, 6.0, 30.0)]
    assert waits == sorted(waits)


def test_answers_have_the_mean_asked_for() -> None:
    drawn = batching.answers(Load(JOB, 8, None, 4000))
    assert sum(drawn) / len(drawn) == pytest.approx(128, rel=0.05)
    assert max(drawn) <= 4 * 128
