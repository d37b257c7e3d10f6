"""Two runs side by side, the tool's face, the real cases beside the checkout, and the memory a long log takes."""

import importlib.util
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from skillserver import contract
from skillserver.diagnose import log_compare, log_reading, log_series, log_spikes
from skillserver.diagnose.log_formats.names import Record
from skillserver.errors import BadRequest
from skillserver.tools.training_log import diagnose_training_log

CASES = Path(__file__).resolve().parents[3] / "shared/cases"


def curve(data: int, own: int, spikes: dict[int, float], *, start: int = 1000, number: int = 400) -> str:
    """A llm.c log: wiggles of the data seed, smaller ones of the run's own, and spikes."""
    of_data, of_run = random.Random(data), random.Random(own)
    losses = {step: 3.5 - 0.0005 * (step - start) + of_data.gauss(0, 0.05) + of_run.gauss(0, 0.01) for step in range(start, start + number)}
    return "\n".join(f"s:{step} trl:{spikes.get(step, loss):.4f} lr:0.0006 norm:0.50" for step, loss in losses.items())


def compared(first: str, second: str) -> log_compare.CrossRun:
    return log_compare.compare("a", log_reading.read_text(first).run, "b", log_reading.read_text(second).run)


def test_spikes_at_the_same_steps_of_runs_with_the_same_data_are_the_datas() -> None:
    result = compared(curve(1, 2, {1150: 5.0, 1300: 5.2}), curve(1, 3, {1150: 5.1, 1300: 5.1}))
    assert (result.verdict, result.same_data_order, result.same_steps, result.only_first) == ("data", True, [1150, 1300], 0)


def test_spikes_near_the_same_place_of_runs_with_other_data_are_the_optimisers() -> None:
    result = compared(curve(1, 2, {1150: 5.0}), curve(9, 3, {1170: 5.1}))
    assert (result.verdict, result.same_data_order, result.same_steps) == ("optimiser", False, [])


def test_spikes_of_one_run_only_are_not_the_datas() -> None:
    assert compared(curve(1, 2, {1150: 5.0}), curve(1, 3, {1350: 5.1})).verdict == "optimiser"
    assert compared(curve(1, 2, {1150: 5.0}), curve(1, 3, {})).verdict == "no_spikes"


def test_spikes_do_not_make_the_correlation_by_themselves() -> None:
    result = compared(curve(1, 2, {1150: 8.0, 1300: 8.0}), curve(9, 3, {1150: 8.0, 1300: 8.0}))
    assert (result.same_data_order, result.verdict) == (False, "optimiser")


def test_one_spike_in_common_and_no_sign_of_the_data_is_unclear() -> None:
    short = {1010: 8.0}
    assert compared(curve(1, 2, short, number=25), curve(9, 3, short, number=25)).verdict == "unclear"


def test_the_tool_compares_paths_and_names_the_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("soap.log", "muon.log")]
    for number, file in enumerate(files):
        file.write_text(curve(1, number, {1150: 5.0, 1300: 5.0}), encoding="utf-8")
    result = diagnose_training_log(paths=list(map(str, files)))
    assert result.cross_run is not None
    assert (result.cross_run.runs, result.cross_run.verdict) == (["soap.log", "muon.log"], "data")
    assert {finding.subject.split(":")[0] for finding in result.findings} == {"soap.log", "muon.log"}


@pytest.mark.parametrize("arguments", [{}, {"path": "a", "text": "b"}, {"paths": ["one"]}])
def test_exactly_one_source_is_asked_for(arguments: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match="exactly one"):
        diagnose_training_log(**arguments)


def test_a_result_is_finite_json_and_short() -> None:
    lines = "".join(f"s:{step} trl:{'nan' if step > 900 else 3.0 + 2.0 * (step % 97 == 0)} lr:0.0006 norm:0.50\n" for step in range(1000))
    document = json.dumps(contract.document(diagnose_training_log(text=lines)), allow_nan=False)
    assert len(document) / 4 < 2000


def test_two_runs_with_many_spikes_still_give_a_short_answer(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(curve(1, ord(name), dict.fromkeys(range(1080, 1400, 40), 5.0)), encoding="utf-8")
    result = diagnose_training_log(paths=[str(tmp_path / "a"), str(tmp_path / "b")])
    assert (len(json.dumps(contract.document(result))) / 4 < 2000, len(result.findings), bool(result.left_out)) == (True, 12, True)


def test_a_window_agrees_with_the_plain_median_and_mad() -> None:
    values = [random.Random(3).gauss(0, 1) for _ in range(5)] + [random.Random(place).gauss(5, 2) for place in range(300)]
    window = log_spikes.Window(64)
    for place, value in enumerate(values):
        window.push(value)
        last = sorted(values[max(0, place - 63) : place + 1])
        assert (window.median(), window.largest(), len(window)) == (last[len(last) // 2], last[-1], len(last))


def test_memory_stays_bounded_and_no_spike_is_lost_when_rows_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_series, "LIMIT", 1000)
    run = log_series.Run("x")
    for step in range(20_000):
        run.add(Record(step=step, loss=9.0 if step == 12_345 else 2.0), step)
    loss = run.columns["loss"]
    assert (len(run) < 1000, run.fold, max(loss), run.steps[list(loss).index(9.0)]) == (True, 32, 9.0, 12_345)


def test_a_long_log_takes_little_memory(tmp_path: Path) -> None:
    file, noise = tmp_path / "long.log", random.Random(1)
    with file.open("w", encoding="utf-8") as stream:
        for step in range(60_000):
            stream.write(f"[rank0]: [INFO] worker {step % 64} loaded shard {noise.randrange(10**6)} of the corpus, {'x' * 300}\n")
            stream.write(f"step:{step}/99999 train_loss:{3 + noise.gauss(0, 0.05):.4f} train_time:{step * 255}ms step_avg:255.00ms\n")
    tracemalloc.start()
    result = diagnose_training_log(path=str(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.reports, result.findings, file.stat().st_size > 25e6) == (60_000, [], True)
    assert peak < 60 * 2**20


@pytest.mark.skipif(not CASES.is_dir(), reason="no ../shared beside this checkout")
def test_real_logs_give_every_event_and_hardly_an_alarm_more() -> None:
    spec = importlib.util.spec_from_file_location("score_cases", CASES / "score.py")
    assert spec is not None and spec.loader is not None
    score = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(score)
    score.call = lambda _cmd, _tool, arguments: contract.document(diagnose_training_log(**arguments))
    rows, summary = score.logs(type("Options", (), {"cases": CASES, "cmd": ""}))
    assert [row["file"] for row in rows if row["missed"] or row["error"]] == []
    assert summary["extra_per_1000_steps"] <= 1.5
