"""Parts side by side, and what an upgrade gains for a step whose shares are known."""

import pytest

from skillserver.errors import BadRequest
from skillserver.estimate import upgrade
from skillserver.tools.accelerators import compare_accelerators

A100, H100 = "A100-80GB-SXM", "H100-80GB-SXM"


def test_rows_hold_dense_peaks_and_the_published_matmul_rate() -> None:
    a100, h100 = compare_accelerators(accelerators=[A100, "h100"]).rows
    assert (a100.id, h100.id) == (A100, H100)
    assert (a100.peak_tflops["bf16"], h100.peak_tflops["bf16"]) == (312.0, 989.4)
    assert h100.achieved_bf16_tflops and h100.achieved_bf16_tflops < h100.peak_tflops["bf16"]
    assert h100.flop_per_byte == pytest.approx(989.4e12 / (h100.memory_gb_s * 1e9), rel=0.01)
    assert (a100.link_each_way_gb_s, h100.link_each_way_gb_s) == (300, 450)


def test_a_memory_bound_step_gains_by_bandwidth_and_not_by_tflops() -> None:
    found = compare_accelerators(accelerators=[A100, H100], step_shares={"memory": 1.0}).upgrades[0]
    assert found.speed_up == pytest.approx(found.rates["memory"], rel=1e-3)
    assert found.speed_up < found.rates["compute"]


def test_the_price_at_which_an_upgrade_breaks_even_decides() -> None:
    step = {"compute": 0.6, "network": 0.2, "memory": 0.2}
    dear, cheap = (
        compare_accelerators(accelerators=[A100, H100], prices_usd_h={A100: 1.0, H100: price}, step_shares=step).upgrades[0] for price in (4.0, 1.5)
    )
    assert (dear.worth_it, cheap.worth_it) == (False, True)
    assert dear.break_even_usd_h == pytest.approx(dear.speed_up, abs=0.01)


def test_what_is_in_no_share_stays_as_slow_as_it_is() -> None:
    assert upgrade.speed_up({"compute": 0.5}, {"compute": 1e9}) == pytest.approx(2.0)


def test_without_prices_or_shares_it_says_what_was_not_done() -> None:
    found = compare_accelerators(accelerators=[A100])
    assert found.upgrades == []
    assert [line.split(":")[0] for line in found.skipped] == ["price columns", "upgrades"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"accelerators": []}, "accelerators"),
        ({"accelerators": ["H1000"]}, "H100-80GB-SXM"),
        ({"accelerators": [A100, H100], "step_shares": {"compute": 0.8, "memory": 0.5}}, "add up to 1.3"),
        ({"accelerators": [A100, H100], "step_shares": {"cpu": 0.8}}, "compute, memory, network, other"),
        ({"accelerators": [A100, H100], "prices_usd_h": {A100: -1}}, "prices_usd_h.A100-80GB-SXM -1"),
    ],
)
def test_bad_input_is_refused_by_field(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        compare_accelerators(**arguments)
