"""What is found in a log in which one thing went wrong, and that nothing is found in healthy ones. Seeded, no clock."""

import json
import math
import random
from typing import Any

import pytest

from skillserver.diagnose import log_reading, log_report
from skillserver.diagnose.log_report import LogDiagnosis

NAN = float("nan")
Rows = list[dict[str, Any]]


def healthy(number: int, *, start: int = 1000, level: float = 3.0, seed: int = 1) -> Rows:
    """Reports every 10 steps of a run that goes well."""
    noise = random.Random(seed)
    return [{"step": start + 10 * place, "loss": level - 0.0005 * place + noise.gauss(0, 0.02), "norm": abs(noise.gauss(1, 0.1)),
             "ms": 1000 + noise.gauss(0, 8), "scale": 65536.0, "skipped": 0, "batch": 96, "lr": 6e-5} for place in range(number)]  # fmt: skip


def changed(rows: Rows, places: range, **change: Any) -> Rows:
    """The same with values of some reports replaced, or computed from the report and its distance from the first of them."""
    for place in places:
        for key, value in change.items():
            rows[place][key] = value(rows[place], place - places[0]) if callable(value) else value
    return rows


def text(*parts: Rows | str) -> str:
    """Megatron's lines of the reports, other lines between them."""
    return "\n".join(part if isinstance(part, str) else "\n".join(map(line, part)) for part in parts)


def line(row: dict[str, Any]) -> str:
    loss = "" if row["loss"] is None else f" lm loss: {row['loss']:.6E} |"
    return (f" iteration {row['step']:8d}/  100000 | consumed samples: {row['step'] * 96:12d} | elapsed time per iteration (ms): {row['ms']:.1f} |"
            f" learning rate: {row['lr']:.3E} | global batch size: {row['batch']:5d} |{loss} loss scale: {row['scale']:.1f} |"
            f" grad norm: {row['norm']:.3f} | number of skipped iterations: {row['skipped']:3d} | number of nan iterations:   0 |")  # fmt: skip


def report(log: str) -> LogDiagnosis:
    return log_report.diagnose([("text", log_reading.read_text(log))])


def alarms(log: str) -> list[tuple[str, str, int | None, int | None]]:
    """(severity, code, step, last step) of what is to act on."""
    return [(each.severity, each.code, each.step, each.last_step) for each in report(log).findings if each.severity != "info"]


def codes(log: str) -> list[str]:
    return [each.code for each in report(log).findings]


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_found_in_healthy_runs(seed: int) -> None:
    assert report(text(healthy(300, seed=seed))).findings == []


def test_a_spike_and_the_gradient_norm_before_it() -> None:
    rows = changed(healthy(200), range(100, 104), norm=lambda _row, after: 4.0 ** (after + 1))
    rows = changed(rows, range(104, 107), loss=lambda _row, after: 6.0 - after, norm=lambda _row, after: 500.0 / 4.0**after)
    assert alarms(text(rows)) == [("warning", "grad_norm_spike", 2000, 2060), ("warning", "loss_spike", 2040, 2060)]


def test_one_bad_batch_is_a_spike_of_one_step() -> None:
    [found] = report(text(changed(healthy(200), range(100, 101), loss=4.0))).findings
    assert (found.code, found.step, found.last_step, "batch" in found.reason) == ("loss_spike", 2000, None, True)


def test_small_bumps_are_counted_and_not_alarmed_on() -> None:
    rows = healthy(300)
    for place in range(80, 300, 60):
        rows[place]["loss"] += 0.2
    assert [(each.severity, each.code, each.count) for each in report(text(rows)).findings] == [("info", "small_bumps", 4)]


def test_a_run_that_explodes_has_diverged() -> None:
    rows = changed(healthy(100), range(60, 100), loss=lambda row, _after: 7 + row["loss"] / 100)
    assert ("critical", "divergence", 1600, 1990) in alarms(text(rows))


def test_a_loss_that_climbs_without_a_spike_is_one_divergence() -> None:
    rows = changed(healthy(200), range(80, 200), loss=lambda row, after: row["loss"] + 0.02 * after)
    [(severity, code, step, last)] = alarms(text(rows))
    assert (severity, code, last) == ("critical", "divergence", 2990)
    assert step is not None and 1780 <= step <= 1900


def test_a_spike_that_stays_a_little_high_has_not_recovered() -> None:
    rows = changed(healthy(60), range(30, 31), loss=6.0)
    rows = changed(rows, range(31, 60), loss=lambda row, _after: row["loss"] + 0.4)
    assert [alarm[:3] for alarm in alarms(text(rows))] == [("critical", "loss_spike", 1300), ("warning", "plateau", 1300)]


def test_nan_names_the_first_step_and_the_last_finite_loss() -> None:
    [found] = report(text(changed(healthy(100), range(60, 100), loss=NAN))).findings
    assert (found.code, found.severity, found.step, found.last_step, found.count) == ("nan", "critical", 1600, 1990, 40)


def test_a_loss_scale_that_falls_late_is_a_collapse_and_one_that_oscillates_is_not() -> None:
    fallen = changed(healthy(100), range(60, 100), scale=lambda _row, after: 65536.0 / 2 ** min(after + 1, 10))
    calm = changed(healthy(100), range(100), scale=lambda _row, after: 65536.0 if after % 20 < 10 else 32768.0)
    assert (alarms(text(fallen)), alarms(text(calm))) == ([("warning", "loss_scale_collapse", 1600, 1690)], [])


def test_the_search_of_the_loss_scale_at_the_start_is_benign() -> None:
    rows = changed(healthy(30, start=10, level=9.0), range(2), skipped=10, loss=None)
    rows = changed(rows, range(30), scale=lambda _row, after: max(2.0**32 / 2 ** (10 * after + 10), 16384.0))
    found = {each.code: each.severity for each in report(text(rows)).findings}
    assert found == {"missing_loss": "warning", "benign_skips": "info"}


def test_overflow_lines_count_where_the_report_does_not() -> None:
    overflow = [f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {2 ** (16 - n)}, reducing to {2 ** (15 - n)}" for n in range(10)]
    rows = changed(healthy(60), range(60), scale=-1.0)
    assert alarms(text(rows[:40], "\n".join(overflow), rows[40:])) == [("warning", "loss_scale_collapse", 1390, None)]
    assert "counter_disagrees" in codes(text(rows[:40], "\n".join(overflow), rows[40:]))


def test_the_floor_of_the_loss_scale_is_critical() -> None:
    error = "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate"
    assert alarms(text(healthy(20), error)) == [("critical", "loss_scale_collapse", 1190, None)]


def test_a_slow_gpu_is_a_step_change_of_the_speed() -> None:
    assert alarms(text(changed(healthy(100), range(60, 100), ms=lambda row, _after: row["ms"] * 1.08))) == [
        ("warning", "throughput_drop", 1600, 1990)
    ]
    assert alarms(text(changed(healthy(100), range(50, 65), ms=lambda row, _after: row["ms"] * 1.3))) == [("warning", "throughput_drop", 1500, 1630)]


def test_a_creeping_slowdown_is_a_drift() -> None:
    [found] = report(text(changed(healthy(300), range(300), ms=lambda row, after: row["ms"] * (1 + after / 2000)))).findings
    assert (found.code, found.subject, found.step, found.last_step) == ("throughput_drop", "speed, slow drift", 1000, 3990)


def test_a_batch_ramp_is_no_slowdown() -> None:
    rows = changed(healthy(300), range(150, 300), batch=192, ms=lambda row, _after: 2 * row["ms"])
    assert report(text(rows)).findings == []


def test_checkpoints_are_slow_steps_at_regular_places() -> None:
    rows = healthy(300)
    for place in range(20, 300, 25):
        rows[place]["ms"] *= 3
    assert [(each.severity, each.code, each.count) for each in report(text(rows)).findings] == [("info", "periodic_slow_steps", 12)]


def test_a_restart_that_costs_steps_but_no_loss_is_for_the_record() -> None:
    done = report(text(healthy(100), " successfully loaded checkpoint from x at iteration 1600", healthy(60, start=1600, level=2.97)))
    assert [(each.severity, each.code, each.step) for each in done.findings] == [("info", "restart", 1600)]
    assert done.goodput is not None
    assert (done.goodput.useful_steps, done.goodput.lost_steps, done.goodput.restarts, done.steps) == (1191, 400, 1, 1191)


def test_a_loss_that_jumps_after_a_restart_is_its_effect() -> None:
    after = changed(healthy(60, start=1600, level=2.97), range(8), loss=lambda row, place: row["loss"] + 0.6 * (1 - place / 8))
    assert alarms(text(healthy(100), after))[0][:3] == ("warning", "restart_effect", 1600)
    hinted = changed(healthy(60, start=2000, level=2.95), range(8), loss=lambda row, place: row["loss"] + 0.6 * (1 - place / 8))
    low = changed(healthy(100), range(100), scale=2048.0)
    assert "restart_effect" in codes(text(low, hinted))


def test_a_changed_learning_rate_is_for_the_record() -> None:
    found = report(text(changed(healthy(100), range(50, 100), lr=3e-5))).findings
    assert [(each.severity, each.code, each.step) for each in found] == [("info", "lr_change", 1500)]


@pytest.mark.parametrize(("error", "severity", "code"), [
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "critical", "hardware_failure"),
    ("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus", "critical", "hardware_failure"),
    ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
     "Timeout(ms)=600000) ran for 600010 milliseconds before timing out.", "critical", "hang"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "critical", "crash"),
    ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "critical", "time_limit"),
])  # fmt: skip
def test_an_error_gets_the_step_of_the_last_report_before_it(error: str, severity: str, code: str) -> None:
    assert [alarm[:3] for alarm in alarms(text(healthy(20), error))] == [(severity, code, 1190)]


def test_silence_while_a_clock_goes_on_is_a_hang_and_a_finished_job_is_not() -> None:
    clock = "\n".join(f"[2022-05-01 {hour:02d}:56:11] PULSE: the job is running" for hour in range(3, 6))
    left = "[exiting program after 1190.0 minutes] datetime: 2022-05-01 02:00:51"
    watcher = "[2022-05-01 05:00:00] ***ALERT: x.slurm is not RUNNING or SCHEDULED!"
    assert alarms(text(healthy(20), clock)) == [("critical", "hang", 1190, None)]
    assert alarms(text(healthy(20), left, clock)) == [("warning", "clean_exit", 1190, None)]
    assert alarms(text(healthy(20), watcher)) == [("warning", "idle", 1190, None)]


def test_a_run_that_reached_its_last_step_ended_well() -> None:
    found = report(text(healthy(20, start=99_810), "[after training is done] datetime: 2022-05-01 02:00:51")).findings
    assert [(each.severity, each.code) for each in found] == [("info", "clean_exit")]


def trainer_state(rows: list[dict[str, Any]]) -> str:
    return json.dumps({"log_history": rows})


def test_evaluation_that_rises_while_training_falls_is_overfitting() -> None:
    rows: list[dict[str, Any]] = []
    for epoch in range(1, 11):
        rows += [{"step": 100 * epoch - 90 + 10 * place, "loss": 2 * 0.8**epoch} for place in range(10)]
        rows.append({"step": 100 * epoch, "eval_loss": 1.5 - 0.1 * epoch if epoch < 4 else 1.2 + 0.12 * (epoch - 4)})
    assert alarms(trainer_state(rows)) == [("warning", "overfit", 300, 1000)]


def test_a_loss_of_exactly_zero_from_the_start_means_no_labels_and_later_a_hidden_nan() -> None:
    masked = [{"step": 10 * place, "loss": 0.0, "grad_norm": NAN} for place in range(1, 9)]
    hidden = [{"step": 10 * place, "loss": 0.0 if place > 20 else 1.0, "grad_norm": NAN if place > 20 else 1.0} for place in range(1, 50)]
    assert alarms(trainer_state(masked)) == [("critical", "no_label_signal", 10, 80)]
    assert alarms(trainer_state(hidden)) == [("critical", "nan", 210, 490)]


def test_a_flat_loss_alarms_only_where_it_is_high() -> None:
    noise = random.Random(5)
    for level, expected in ((7.6, [("warning", "plateau")]), (1.1, [])):
        rows = [{"step": 50 * place, "loss": level + noise.gauss(0, 0.05)} for place in range(200)]
        assert [alarm[:2] for alarm in alarms(trainer_state(rows))] == expected


def test_batches_of_one_sample_are_noise_and_no_spikes() -> None:
    noise = random.Random(7)
    rows = [
        {"step": place, "loss": 3 * math.exp(-place / 120) * (1 + (noise.random() < 0.15) * noise.uniform(0.3, 2.5)) + 0.1} for place in range(400)
    ]
    assert [(each.severity, each.code) for each in report(trainer_state(rows)).findings] == [("info", "frequent_bumps"), ("info", "noisy")]


def test_long_silence_between_dated_reports_is_told() -> None:
    lines = [f"[rank0]:[titan] 2026-02-24 {10 + (place >= 50)}:{place // 60:02d}:{place % 60:02d},508 - root - INFO - step: {place:2d}  loss: 3.00000"
             for place in range(100)]  # fmt: skip
    assert alarms("\n".join(lines)) == [("warning", "hang", 49, 50)]


def test_what_the_log_does_not_say_is_listed_as_skipped() -> None:
    said = report("s:1 trl:9.5\ns:2 trl:9.4\n").skipped
    assert [each.split(":")[0] for each in said] == ["no gradient norm in this log", "no step time, tokens a second or date in this log",
                                                     "fewer than two evaluations", "only 2 reports"]  # fmt: skip


def test_the_verdict_of_a_log_without_findings_is_ok() -> None:
    done = report(text(healthy(50)))
    assert (done.verdict, done.first_step, done.last_step, done.total_steps, done.reports) == ("ok", 1000, 1490, 100000, 50)
