"""Files of the numerics hook as they come: several ranks, attempts, cut lines, binary, huge, hostile; and the rules."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillserver import permissions
from skillserver.diagnose import numerics, numerics_reading
from skillserver.diagnose.numerics import NumericsDiagnosis
from skillserver.errors import BadRequest, NotHere
from skillserver.tools.numerics import diagnose_numerics

FP16, FP32 = 65504.0, 3.4028e38


def hello(rank: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "hello", "version": 1, "rank": rank, "world_size": 1, "every": 1, "scaler": False, "unseen": []} | more


def module(name: str, dtype: str = "float16", rank: int = 0) -> dict[str, Any]:
    return {"type": "module", "rank": rank, "module": name, "class": "Linear", "dtype": dtype, "largest": FP16 if dtype == "float16" else FP32}


def scan(number: int, rank: int = 0, gradient: tuple[float, str, str] = (0.1, "a", "float32"), **outputs: float | str) -> dict[str, Any]:
    return {"type": "scan", "rank": rank, "pass": number, "step": number, "scale": None, "outputs": outputs, "gradient": list(gradient)}


def bad(number: int, rank: int = 0, **more: Any) -> dict[str, Any]:
    row = {"type": "bad", "rank": rank, "pass": number, "step": number, "order": 3, "where": "forward", "module": "b", "what": "output 0",
           "class": "Linear", "dtype": "bfloat16", "kind": "nan",
           "last_clean_pass": number - 1, "inputs_absmax": [2.0], "after": "a output 0"}  # fmt: skip
    return row | more


def judged(*rows: dict[str, Any]) -> NumericsDiagnosis:
    return diagnose_numerics(text="\n".join(map(json.dumps, rows)))


def codes(found: NumericsDiagnosis) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in found.findings]


def test_without_arguments_it_says_where_the_hook_is_and_what_to_add() -> None:
    found = diagnose_numerics()
    assert (found.verdict, found.findings) == ("unknown", [])
    assert Path(found.hook_path).is_file()
    assert len(found.add) == 3
    compile("\n".join(found.add), "added", "exec")


def test_mixed_ranks_in_one_file_are_told_apart_and_the_earliest_is_the_origin() -> None:
    rows = [hello(rank, world_size=4) for rank in range(3)]
    rows += [bad(9, 2, where="parameter", module="b.weight", what="value"), scan(7, 0, a=1.0), bad(8, 1), bad(9, 0, where="parameter")]
    found = judged(*rows)
    assert found.first is not None
    assert (found.ranks, found.first.ranks, found.first.pass_number) == ([0, 1, 2], [1], 8)
    assert found.skipped == ["1 of 4 ranks: their files were not given"]
    assert "later, so victims: ranks 0, 2" in found.findings[0].evidence


def test_in_one_pass_the_forward_of_one_rank_comes_before_the_reduced_gradients_of_the_others() -> None:
    rows = [bad(5, rank, where="gradient", what="before the step", module="a.weight") for rank in (0, 2, 3)]
    found = judged(*(hello(rank, world_size=4) for rank in range(4)), *rows, bad(5, 1))
    assert found.first is not None
    assert (found.first.ranks, found.first.where, found.findings[0].code) == ([1], "forward", "nan_in_forward")


def test_a_pipeline_stage_that_received_nan_is_no_origin() -> None:
    received = bad(5, 0, module="", what="input 0", inputs_absmax=None, after=None)
    found = judged(hello(0, world_size=2), hello(1, world_size=2), received, bad(5, 1))
    assert found.first is not None
    assert (found.first.ranks, found.first.module) == ([1], "b")


def test_only_the_last_attempt_of_a_rank_is_judged() -> None:
    found = judged(hello(), bad(3), hello(), scan(0, a=1.0))
    assert (found.verdict, found.first) == ("ok", None)
    assert found.skipped == ["earlier attempts of rank 0: only the last one was judged"]


def test_trouble_in_forward_that_finite_passes_follow_is_a_warning() -> None:
    found = judged(hello(), bad(3), scan(4, a=1.0))
    assert codes(found) == [("nan_in_forward", "warning")]
    assert "finite passes follow" in found.findings[0].evidence[-1]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (bad(0, where="parameter", what="value", last_clean_pass=None), "bad_weights"),
        (bad(4, where="parameter", what="value"), "bad_update"),
        (bad(8, where="parameter", what="value", last_clean_pass=4), "bad_weights_unwatched"),
        (bad(4, dtype="float16", kind="inf"), "fp16_overflow"),
        (bad(4, dtype="float16", inputs_absmax=[4e4]), "fp16_overflow"),
        (bad(4, dtype="float16"), "nan_in_forward"),
        (bad(4, kind="inf"), "inf_in_forward"),
        (bad(4, inputs_absmax=["inf"]), "non_finite_input"),
        (bad(4, what="input 0", inputs_absmax=None), "made_between_modules"),
        (bad(4, what="input 0", module=""), "bad_input"),
        (bad(4, where="backward", what="gradient of output 0"), "bad_backward"),
        (bad(4, where="backward", what="gradient of output 0", dtype="float16", kind="-inf"), "fp16_gradient_overflow"),
        (bad(4, where="gradient", what="accumulated"), "bad_gradient"),
        (bad(4, where="gradient", what="before the step"), "bad_reduced_gradient"),
    ],
)
def test_where_the_first_bad_value_stands_decides_what_made_it(row: dict[str, Any], code: str) -> None:
    found = judged(hello(), row)
    assert codes(found) == [(code, "critical")]
    assert found.findings[0].sections
    assert found.findings[0].step == row["step"]


def test_gradients_that_overflow_to_the_end_under_a_scaler_are_a_collapse() -> None:
    rows = [bad(number, where="backward", what="gradient of output 0", dtype="float16", kind="inf", scale=2.0 ** (8 - number)) for number in range(9)]
    assert codes(judged(hello(scaler=True), *rows)) == [("loss_scale_collapse", "critical")]
    assert codes(judged(hello(scaler=True), *rows[:3], scan(3, a=1.0))) == [("loss_scale_search", "info")]


def test_growth_towards_the_end_of_fp16_is_a_warning_and_in_bf16_it_is_for_the_record() -> None:
    rows = [scan(number, a=100.0 * 2**number, b=3.0) for number in range(6)]
    found = judged(hello(), module("a"), module("b"), *rows)
    assert codes(found) == [("absmax_growth", "warning")]
    assert (found.growth[0].module, found.growth[0].ratio, found.growth[0].share_of_dtype_max) == ("a", 32.0, 0.0489)
    assert codes(judged(hello(), module("a", "bfloat16"), *rows)) == []
    beyond = [scan(number, a=1e5) for number in range(6)]
    assert codes(judged(hello(), module("a", "bfloat16"), *beyond)) == [("beyond_fp16", "info")]


def test_an_output_near_the_end_of_its_dtype_is_a_warning_but_fp8_is_meant_to_fill_its_range() -> None:
    near = {"type": "range", "rank": 0, "pass": 2, "step": 2, "module": "a", "dtype": "float16", "absmax": 4e4, "largest": FP16}
    assert codes(judged(hello(), near, scan(3, a=4e4))) == [("near_overflow", "warning")]
    assert codes(judged(hello(), near | {"dtype": "float8_e4m3fn", "absmax": 440.0, "largest": 448.0}, scan(3, a=1.0))) == [("near_overflow", "info")]


@pytest.mark.parametrize(
    ("head", "gradient", "dtype", "said"),
    [
        ({}, (2.0, "a", "float16"), "float16", "a scale up to 4096 leaves two doublings before 65,504"),
        ({"scaler": True}, (2.0**-9, "a", "float16"), "float16", "small gradients may vanish"),
        ({"scaler": True}, (4000.0, "a", "float16"), "float16", "is right"),
        ({"scaler": True}, (1.0, "a", "bfloat16"), "bfloat16", "the loss scaler is not needed"),
        ({}, (1.0, "a", "bfloat16"), "bfloat16", ""),
    ],
)
def test_advice_on_the_loss_scale(head: dict[str, Any], gradient: tuple[float, str, str], dtype: str, said: str) -> None:
    advice = judged(hello(**head), module("a", dtype), scan(0, gradient=gradient, a=1.0)).loss_scale_advice
    assert said in advice
    assert bool(said) == bool(advice)


def test_cut_lines_are_counted_and_the_rest_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "numerics.rank0.jsonl"
    lines = [json.dumps(row) for row in (hello(), scan(2, a=1.0), bad(3))]
    file.write_text("\n".join([*lines, lines[1][:40]]), encoding="utf-8")
    found = diagnose_numerics(paths=[str(file)])
    assert codes(found) == [("nan_in_forward", "critical")]
    assert found.skipped == ["1 lines that are cut or not the hook's"]


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\x80\x04K\x01.", b"\0" * 5000, b"\x1f\x8b" + bytes(range(256)) * 9, b"loss 2.1\n" * 9, b"[" * 90_000]
)
def test_a_file_without_a_line_of_the_hook_is_refused_and_the_way_to_one_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "numerics.rank0.jsonl"
    file.write_bytes(content)
    with pytest.raises(BadRequest, match=r"no_records: no line of the numerics hook.*says how to add the hook"):
        diagnose_numerics(paths=[str(file)])


def test_a_sparse_file_of_ten_gigabytes_is_given_up_early(tmp_path: Path) -> None:
    file = tmp_path / "numerics.rank0.jsonl"
    with file.open("wb") as opened:
        opened.write(b"\n".join(json.dumps(row).encode() for row in (hello(), scan(0, a=1.0))) + b"\n")
        opened.truncate(10 * 10**9)
    found = diagnose_numerics(paths=[str(file)])
    assert found.verdict == "ok"
    assert found.skipped[-1].startswith("numerics.rank0.jsonl: reading stopped after ")


def test_what_is_kept_of_a_long_run_is_bounded() -> None:
    line, wrong = json.dumps(scan(0, a=1.0)).encode(), [json.dumps(bad(number)).encode() for number in range(3000) for _ in range(3)]
    watched = numerics_reading.read([line] * 50_000 + wrong)
    assert (len(watched.ranks[0].scans), watched.ranks[0].clean_scans) == (numerics_reading.SCANS, 50_000)
    assert sum(map(len, watched.ranks[0].troubled)) <= numerics_reading.TROUBLED * numerics_reading.RECORDS


def test_hostile_values_of_known_lines_are_judged_or_skipped_and_never_crash() -> None:
    strange = [None, True, -1, 10**400, 1e308, "nan", "x" * 10_000, [], {}, [[[]]], {"a": {}}]
    rows = [{**row, key: value} for row in (hello(), module("a"), scan(1, a=1.0), bad(2)) for key in row if key != "type" for value in strange]
    found = judged(hello(), *rows, scan(5, a=1.0))
    assert found.ranks[0] == 0
    assert all(len(line) < 1000 for finding in found.findings for line in finding.evidence)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)
KEYS = sorted({key for row in (hello(), module("a"), scan(0), bad(0)) for key in row} - {"type"})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(numerics_reading.TAKERS)), st.dictionaries(st.sampled_from(KEYS), JSON)), min_size=1, max_size=6))
def test_any_json_under_the_hooks_names_gives_an_answer(rows: list[tuple[str, dict[str, Any]]]) -> None:
    lines = [json.dumps({"rank": 0, **row, "type": kind}).encode() for kind, row in rows]
    try:
        found = numerics.diagnose([("text", lines)])
    except BadRequest as refused:
        assert refused.code == "no_records"
    else:
        assert found.growth == [] or all(math.isfinite(row.last_absmax) for row in found.growth)


def test_paths_outside_the_permitted_folders_and_wrong_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="no_such_file"):
        diagnose_numerics(paths=[str(tmp_path / "nothing")])
    with pytest.raises(BadRequest, match="empty_folder"):
        diagnose_numerics(paths=[str(tmp_path)])
    with pytest.raises(BadRequest, match="not both"):
        diagnose_numerics(paths=["a"], text="b")
    monkeypatch.setattr(permissions, "_granted", permissions.TEXT_ONLY)
    with pytest.raises(NotHere, match="path_not_permitted"):
        diagnose_numerics(paths=[str(tmp_path)])
