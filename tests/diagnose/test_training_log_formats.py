"""Every format of a training log gives the same record: step, loss and whatever else its lines say."""

from pathlib import Path
from typing import Any

import pytest

from skillserver.diagnose import log_reading, log_series
from skillserver.errors import BadRequest

MEGATRON = (
    " iteration     7000/  159576 | consumed samples:       260912 | elapsed time per iteration (ms): 18706.1 | learning rate: 6.000E-05 |"
    " global batch size:    96 | lm loss: 6.444662E+00 | loss scale: 2048.0 | grad norm: 98258.265 | num zeros: 0.0 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)
BLOOM = (
    "[default7]: iteration    12695/  115311 | consumed samples:     10000 | consumed tokens:  20000 | elapsed time per iteration (s): 105.22 |"
    " learning rate: 5.0E-05 | global batch size:  2048 | lm loss: 2.25E+00 | grad norm: 0.242 | num zeros: 0.0 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 19.463 | TFLOPs: 149.02 |"
)
OLMO = """[2024-04-17 09:42:26] INFO     [olmo.train:816, rank=0] [step=1/739328]
    train/CrossEntropyLoss=11.25
    train/Perplexity=76,631
    throughput/device/tokens_per_second=3,500.5
    optim/total_grad_norm=4.5
[2024-04-17 09:42:36] INFO     [olmo.train:816, rank=0] [step=2/739328]
    train/CrossEntropyLoss=11.10
"""
COMPOSER = """[batch=3194/3200]:
\t Train time/batch: 3193
\t Train memory/peak_allocated_mem: 14.6140
\t Train loss/train/total: 3.0125
\t Train l2_norm/grad/global: 0.75
\t Train lr-DecoupledAdamW/group0: 0.0001
[batch=3195/3200]:
\t Train loss/train/total: 3.0000
"""
NANOTRON = (
    "[default0]:01/20/2025 10:00:00 [INFO|DP=0|PP=0|TP=0|node1]: iteration: 15 / 100 | consumed_tokens: 62.9M | elapsed_time_per_iteration_ms: 1.2K |"
    " tokens_per_sec: 3.5M | tokens_per_sec_per_gpu: 54.7K | global_batch_size: 1.02K | lm_loss: 8.12 | lr: 0.0003 | model_tflops_per_gpu: 350 |"
    " grad_norm: 1.25"
)
NEMO2 = (
    "Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 | global_step: 120 |"
    " reduced_train_loss: 1.233 | train_step_timing in s: 0.03146 | val_loss: 4.106"
)
NEMO1 = (
    "Epoch 0:   1%|          | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=, reduced_train_loss=3.090, global_step=794.0,"
    " consumed_samples=203264.0]\rEpoch 0:   1%|          | 796/77225 [9:08:39<878:01:48, 41.36s/it, loss=3.1, v_num=, reduced_train_loss=3.050,"
    " global_step=795.0, consumed_samples=203520.0]"
)
TITAN = (
    "\x1b[31m[titan] 2026-02-24 19:46:17,508 - root - INFO - \x1b[0mstep:  4  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)"
    "  tps: 10,050  tflops: 314.71  mfu: 13.99%\x1b[39m"
)
LLMC = "step    3/19560 | loss 10.954 (+nanz)| norm 15.3681 (+nanz)| lr 2.57e-06 | 2080.11 ms | 49.2% bf16 MFU | 252,053 tok/s"
METASEQ = (
    '2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "update": 0.01, "loss": "16.475", "ppl": "91120.8", "wps": "1500.5",'
    ' "num_updates": "25", "lr": "2e-05", "gnorm": "20.751", "loss_scale": "4", "train_wall": "99"}'
)
FAIRSEQ = "| epoch 001:    100 / 5000 loss=5.10, ppl=34.3, wps=9000, ups=1, num_updates=100, lr=0.0001, gnorm=1.25, loss_scale=64, train_wall=60"
SAMPLES: list[tuple[str, str, dict[str, Any]]] = [
    ("megatron", MEGATRON, {"step": 7000, "loss": 6.444662, "step_time_s": 18.7061, "loss_scale": 2048.0, "grad_norm": 98258.265, "lr": 6e-5}),
    ("megatron", "[2026-01-02 03:04:05.123456]" + MEGATRON, {"step": 7000, "loss": 6.444662}),
    ("megatron", MEGATRON.replace("lm loss", "lm-loss").replace("98258.265", "0.000"), {"loss": 6.444662, "grad_norm": None}),
    ("megatron", BLOOM, {"step": 12695, "loss": 2.25, "step_time_s": 105.22, "tokens_per_s": 19.463}),
    ("nanotron", NANOTRON, {"step": 15, "loss": 8.12, "step_time_s": 1.2, "tokens_per_s": 3.5e6, "grad_norm": 1.25}),
    ("nemo", NEMO2, {"step": 120, "loss": 1.233, "step_time_s": 0.03146, "lr": 3e-5}),
    ("progress_bar", NEMO1, {"step": 795, "loss": 3.05}),
    ("torchtitan", TITAN, {"step": 4, "loss": 7.62585, "grad_norm": 26.625, "tokens_per_s": 10050.0}),
    ("llm.c", LLMC, {"step": 3, "loss": 10.954, "grad_norm": 15.3681, "step_time_s": 2.08011, "tokens_per_s": 252053.0, "lr": 2.57e-6}),
    ("llm.c", "s:47 trl:8.6458 lr:0.000041 norm:1.58", {"step": 47, "loss": 8.6458, "lr": 4.1e-5, "grad_norm": 1.58}),
    ("modded-nanogpt", "step:1/6200 train_loss:10.9184 train_time:74701ms step_avg:nanms", {"step": 1, "loss": 10.9184, "clock_s": 74.701}),
    ("nanogpt", "iter 36298: loss 5.8465, time 148.74ms, mfu 0.01%", {"step": 36298, "loss": 5.8465, "step_time_s": 0.14874}),
    ("deepspeed", "steps: 7 loss: 12.7902 iter time (s): 150.471 samples/sec: 6.805", {"step": 7, "loss": 12.7902, "step_time_s": 150.471}),
    ("metaseq", METASEQ, {"step": 25, "loss": 16.475, "grad_norm": 20.751, "loss_scale": 4.0, "tokens_per_s": 1500.5}),
    ("fairseq", FAIRSEQ, {"step": 100, "loss": 5.1, "grad_norm": 1.25, "loss_scale": 64.0}),
    ("olmo", OLMO, {"step": 2, "loss": 11.1}),
    ("composer", COMPOSER, {"step": 3195, "loss": 3.0}),
    ("jsonl", '{"step": 30, "loss": 1.75, "lr": 0.001, "time": 1.0}', {"step": 30, "loss": 1.75, "lr": 0.001}),
    ("csv", "epoch,step,train_loss_step,train_loss_epoch\n0,49,7.68,\n0,99,7.5,", {"step": 99, "loss": 7.5}),
    ("csv", "step\ttrain/loss\tlr\n10\t2.5\t0.1", {"step": 10, "loss": 2.5, "lr": 0.1}),
    ("hf_stdout", "{'loss': 0.61, 'grad_norm': 1.5, 'learning_rate': 9.8e-05, 'epoch': 1.8}", {"loss": 0.61, "grad_norm": 1.5, "lr": 9.8e-5}),
    ("hf_stdout", " 25%|##5 | 250/1000 [00:10<00:30, 25it/s]\n{'loss': '0.61', 'grad_norm': '1.5', 'epoch': '1.8'}", {"step": 250, "loss": 0.61}),
    (
        "hf_trainer_state",
        '{"log_history": [{"loss": 2.0, "step": 5, "lr": 0.1}, {"eval_loss": 1.9, "step": 5}]}',
        {"step": 5, "loss": 2.0, "lr": 0.1},
    ),
    ("key_value", "Epoch 1, Step 20/400, Loss: 3.25, LR: 1e-4", {"step": 20, "loss": 3.25}),
]


def last_row(run: log_series.Run) -> dict[str, float | None]:
    told = {name: None if column[-1] == log_series.ABSENT else column[-1] for name, column in run.columns.items()}
    return {"step": run.steps[-1], **told}


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES, ids=[f"{number}-{name}" for number, (name, _text, _expected) in enumerate(SAMPLES)])
def test_a_line_of_each_format_is_read(name: str, text: str, expected: dict[str, Any]) -> None:
    run = log_reading.read_text(text).run
    row = last_row(run)
    assert (run.format, {key: row[key] for key in expected}) == (name, pytest.approx(expected))


@pytest.mark.parametrize("joint", ["\n", "\n[default7]:"])
@pytest.mark.parametrize("width", [80, 118, 160])
def test_a_report_that_the_terminal_wrapped_is_put_together(width: int, joint: str) -> None:
    wrapped = joint.join(BLOOM[start : start + width] for start in range(0, len(BLOOM), width))
    run = log_reading.read_text(f"{wrapped}\n{BLOOM.replace('12695', '12696')}").run
    assert (list(run.steps), list(run.columns["loss"]), list(run.columns["grad_norm"])) == ([12695, 12696], [2.25, 2.25], [0.242, 0.242])


def test_a_report_cut_off_by_a_crash_does_not_hide_the_crash() -> None:
    log = log_reading.read_text(f"{MEGATRON}\n{MEGATRON[:200]}\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert log.errors is not None
    assert log.errors.causes[0].id == "ecc_uncorrectable"


def test_validation_lines_are_evaluations_and_no_reports() -> None:
    text = f"{MEGATRON}\n validation loss at iteration 7000 | lm loss value: 7.174200E+00 | lm loss PPL: 1.305315E+03 |\n"
    run = log_reading.read_text(text).run
    assert (len(run), [(each.step, each.loss) for each in run.evaluations], run.repeats) == (1, [(7000, 7.1742)], 0)


def test_sparse_rows_of_one_step_become_one_report() -> None:
    run = log_reading.read_text("epoch,step,train_loss,val_loss,lr-AdamW\n0,9,2.5,,\n0,9,,2.75,\n0,9,,,0.001\n0,19,2.25,,\n").run
    assert (list(run.steps), last_row(run)["loss"], [each.loss for each in run.evaluations], run.columns["lr"][0]) == ([9, 19], 2.25, [2.75], 0.001)


def test_bare_nan_and_infinity_are_read_and_a_cut_document_gives_what_it_has() -> None:
    whole = '{"log_history": [{"loss": NaN, "grad_norm": Infinity, "step": 5}, {"loss": 1.5, "step": 10}, {"loss": 1.4, "st'
    run = log_reading.read_text(whole).run
    assert (list(run.steps), run.columns["loss"][0] != run.columns["loss"][0], run.columns["loss"][1]) == ([5, 10], True, 1.5)


def test_a_document_of_columns_is_read() -> None:
    run = log_reading.read_text('{\n"step": [1, 2],\n"train_loss": [3.0, 2.0]\n}').run
    assert (list(run.steps), list(run.columns["loss"])) == ([1, 2], [3.0, 2.0])


def test_source_code_above_a_log_is_not_read() -> None:
    code = 'for step in range(10):\n    loss = model(x)\n    print(f"step:{step}/{n} train_loss:{loss:.4f}")  # step 3 loss 1.0\n'
    lines = "".join(f"step:{step}/9 train_loss:{3 - 0.1 * step:.4f} train_time:{step * 100}ms step_avg:100.00ms\n" for step in range(1, 6))
    log = log_reading.read_text(code + lines)
    assert (log.run.format, list(log.run.steps), log.others) == ("modded-nanogpt", [1, 2, 3, 4, 5], [])


def test_reports_of_several_ranks_count_once_and_a_nan_of_one_of_them_stays() -> None:
    lines = [
        f"[rank{rank}]:step: {step}  loss: {'nan' if (rank, step) == (2, 4) else '2.5'}  grad_norm: 1.0" for step in range(1, 6) for rank in range(4)
    ]
    run = log_reading.read_text("\n".join(lines)).run
    assert (list(run.steps), [step for step, loss in zip(run.steps, run.columns["loss"], strict=True) if loss != loss]) == ([1, 2, 3, 4, 5], [4])


def test_a_rollback_begins_a_new_stretch_and_a_late_rank_does_not() -> None:
    reports = [*range(100, 200, 10), *range(150, 250, 10)]
    run = log_reading.read_text("\n".join(f"iter {step}: loss 2.0, time 100.00ms, mfu 1.0%" for step in reports)).run
    assert [(run.steps[start], run.steps[end - 1]) for start, end in log_series.segments(run)] == [(100, 190), (150, 240)]


def test_auxiliary_losses_and_perplexities_are_not_the_loss() -> None:
    run = log_reading.read_text(
        '{"step": 1, "moe_gate_loss": 9.0, "z_loss": 8.0, "load_balancing_loss": 7.0, "ppl": 6.0, "lm_loss": 2.0, "loss_scale": 4.0}'
    ).run
    assert (run.columns["loss"][0], run.columns["loss_scale"][0]) == (2.0, 4.0)


def test_what_is_no_training_log_is_refused_with_the_next_step() -> None:
    with pytest.raises(BadRequest) as refused:
        log_reading.read_text("hello\nworld\n")
    assert (refused.value.code, "explain_error" in refused.value.next) == ("no_training_log", True)


def test_a_file_and_its_text_give_the_same(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text(OLMO, encoding="utf-8")
    assert log_reading.read_file(file).run == log_reading.read_text(OLMO).run
