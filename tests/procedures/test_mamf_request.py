"""What run_mamf is asked for, as the worker's settings; nothing is started here."""

import pytest

from skillserver.errors import BadRequest
from skillserver.procedures.mamf_request import Asked, build

TINY = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 1000}


def test_a_model_is_its_products_forward_and_towards_input_and_weight() -> None:
    request = build(Asked(model=TINY, extra={"seq_len": 32, "micro_batch": 2}))
    head = [row for row in request.settings["products"] if row["name"] == "lm_head"]
    assert head == [
        {"name": "lm_head", "pass": "forward", "m": 64, "n": 1000, "k": 64, "layout": "NT", "times": 1},
        {"name": "lm_head", "pass": "to input", "m": 64, "n": 64, "k": 1000, "layout": "NN", "times": 1},
        {"name": "lm_head", "pass": "to weight", "m": 1000, "n": 64, "k": 64, "layout": "TN", "times": 1},
    ]
    assert (request.script, request.foreseen) == ("torch_matmul.py", {"seq_len": 32, "micro_batch": 2, "tp": 1})
    assert [finding.code for finding in request.advice][:1] == ["vocabulary_not_aligned"]


def test_the_flops_of_all_products_are_three_times_the_forward_pass() -> None:
    products = build(Asked(model="llama-3-8b", extra={"seq_len": 512})).settings["products"]
    flops = sum(2 * row["m"] * row["n"] * row["k"] * row["times"] for row in products)
    assert flops == 3 * 512 * (15009849344 - 2 * 65 * 4096)  # as describe_model counts a token, less the weights of norms


def test_equal_products_are_timed_once_and_counted_together() -> None:
    products = build(Asked(model="llama-3-8b")).settings["products"]
    assert [row["times"] for row in products if row["name"] == "q_proj, o_proj"] == [64, 64, 64]
    assert len(products) == len({(row["m"], row["n"], row["k"], row["layout"]) for row in products})


def test_fp8_products_are_all_nt_because_libraries_transpose_first() -> None:
    assert {row["layout"] for row in build(Asked(model="llama-3-8b", dtype="fp8")).settings["products"]} == {"NT"}


def test_tensor_parallelism_cuts_the_products_and_must_divide_them() -> None:
    cut = next(row for row in build(Asked(model="llama-3-8b", extra={"tp": 8})).settings["products"] if row["name"] == "down")
    assert (cut["n"], cut["k"]) == (4096, 14336 // 8)
    with pytest.raises(BadRequest, match="tp_does_not_divide: tp 7"):
        build(Asked(model="llama-3-8b", extra={"tp": 7}))


def test_a_grid_says_how_many_shapes_and_about_how_long() -> None:
    request = build(Asked(device="cpu", grid="256:512:128"))
    assert request.settings["grid"] == [[256, 512, 128]] * 3
    assert request.foreseen["shapes"] == 27
    assert 0 < request.foreseen["estimated_s"] < 15
    assert "assumed" in request.foreseen["basis"]


def test_a_grid_that_cannot_be_done_in_the_time_is_refused_with_the_time_it_needs() -> None:
    with pytest.raises(BadRequest, match=r"grid_too_long: the 4,096 shapes take about [\d,]+ s .* and budget_s is 15\. Next: pass budget_s=\d+"):
        build(Asked(device="cpu", grid="256:4096:256"))


@pytest.mark.parametrize(("device", "in_turn"), [("all", False), ("each", True), ("cuda:0,cuda:1", False)])
def test_several_devices_are_the_work_of_another_script(device: str, in_turn: bool) -> None:
    request = build(Asked(device=device))
    assert (request.script, request.settings["device"], request.settings["in_turn"]) == ("matmul_devices.py", device, in_turn)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (Asked(shapes=[[1, 2, 3]], grid="8"), "two_ways"),
        (Asked(model="llama-3-8b", device="all"), "model_on_many"),
        (Asked(model="llama-3-8b", extra={"pp": 2}), "bad_extra"),
        (Asked(model="llama-3-8b", extra={"tp": True}), "bad_extra"),
        (Asked(extra={"tp": 2}), "extra_without_model"),
        (Asked(model="no-such-model"), "unknown_model"),
        (Asked(shapes=[[1, 2]]), "bad_arguments"),
        (Asked(shapes=[[1, 2, 0]]), "bad_arguments"),
        (Asked(shapes=[[1, 2, 3]] * 201), "bad_arguments"),
        (Asked(budget_s=1), "bad_arguments"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(asked: Asked, code: str) -> None:
    with pytest.raises(BadRequest) as refused:
        build(asked)
    assert refused.value.code == code


@pytest.mark.parametrize("model", [{}, ""])
def test_a_model_that_describes_nothing_is_not_taken_for_none(model: object) -> None:
    with pytest.raises(BadRequest, match="empty_model"):
        build(Asked(model=model))  # type: ignore[arg-type]


@pytest.mark.parametrize(("budget_s", "nearest"), [(-1, 2), (1e9, 43200)])
def test_a_budget_out_of_range_names_the_nearest_possible(budget_s: float, nearest: int) -> None:
    with pytest.raises(BadRequest, match=f"pass budget_s={nearest},"):
        build(Asked(budget_s=budget_s))
