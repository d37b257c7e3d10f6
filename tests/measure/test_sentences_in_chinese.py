"""What a Chinese sentence says of counts and rates, and times that are no rates."""

import pytest

from skillserver.errors import BadRequest
from skillserver.measure.outputs import surroundings
from skillserver.measure.outputs.sentence import western
from skillserver.tools.judge import judge_measurement


@pytest.mark.parametrize(
    ("text", "n_nodes", "n_gpus"),
    [
        ("8卡H100 all-reduce 只有 180GB/s 正常吗", None, 8),
        ("H200 all-reduce 8卡 450GB/s 带宽", None, 8),
        ("两台机器 16 张 H100 all-reduce 45GB/s", 2, 16),
        ("双机16卡H100 all-reduce 45GB/s", 2, 16),
        ("单机8卡A100 all-reduce 180GB/s", 1, 8),
        ("8张4090显卡", None, 8),
    ],
)
def test_cards_and_machines_are_counted(text: str, n_nodes: int | None, n_gpus: int) -> None:
    around = surroundings.read(western(text))
    assert (around.n_nodes, around.n_gpus) == (n_nodes, n_gpus)


def test_a_number_that_touches_a_chinese_sign_is_read() -> None:
    found = judge_measurement(text="8卡H100 all-reduce只有180GB/s，正常吗？")
    assert (found.verdict, found.judged) == ("warning", {"what": "all_reduce", "busbw_gb_s": 180.0})


def test_other_text_stays_as_it_is() -> None:
    assert western("8xH100 all-reduce 180 GB/s") == "8xH100 all-reduce 180 GB/s"


@pytest.mark.parametrize("took", ["4 ms", "4000 us"])
def test_a_size_and_its_time_are_a_rate_and_the_time_alone_is_none(took: str) -> None:
    found = judge_measurement(text=f"8xH100 all-reduce of 1GB takes {took}")
    assert (found.verdict, found.judged["algbw_gb_s"], found.judged["busbw_gb_s"]) == ("ok", 250.0, 437.5)
    with pytest.raises(BadRequest, match="no_measurement"):
        judge_measurement(text=f"8xH100 all-reduce takes {took}")
