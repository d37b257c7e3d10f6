"""Passing over harmless lines a block at a time finds what reading line by line finds."""

import random
from collections.abc import Iterator

import pytest

from skillserver.diagnose import log_reading, reading
from skillserver.diagnose.log_reading import Log

CHATTER = (
    "INFO dataset shard {0:06d} opened, {1} samples",
    "node1:{0}:{1} [0] NCCL INFO Channel {0:02d}/0 : 7[7] -> 8[8] via P2P/IPC",
    "time (ms) | forward-compute: {0}.50 | optimizer: {1}.25",
    "[rank3]: saving checkpoint at iteration {0} to /data/global_step{0}",
    "    an indented remark of {0} words",
    "",
    "{0} {1}",
)
ODD = (
    "node1:12:34 [0] NCCL WARN NET/IB : Got completion from peer with error {0}",
    "RuntimeError: CUDA error: device-side assert triggered",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {1}, reducing to {0}",
    "exiting program at iteration {0}",
)
REPORTS = {
    "nanogpt": "iter {0}: loss {1}.5, time 148.74ms, mfu 0.01%",
    "megatron": " iteration {0:8d}/ 9999 | consumed samples: {1:9d} | lm loss: 6.4E+00 | grad norm: 0.5 | number of skipped iterations:   0 |",
    "megatron, broken": " iteration {0:8d}/ 9999 | consumed samples: {1:9d} | lm loss:\n6.4E+00 | number of skipped iterations:   0 |",
    "modded": "step:{0}/9999 train_loss:{1}.25 train_time:{0}00ms step_avg:90.10ms",
    "jsonl": '{{"step": {0}, "loss": {1}.5}}',
    "olmo": "[2024-04-17 09:42:26] INFO [olmo.train:816, rank=0] [step={0}/9999]\n    train/CrossEntropyLoss={1}.25",
}


def lines(report: str, chance: random.Random) -> Iterator[str]:
    """A log of 400 reports with chatter and, now and then, something odd between them."""
    for step in range(400):
        told = (step, chance.randrange(2, 9))
        yield report.format(*told)
        for _ in range(chance.randrange(9)):
            yield chance.choice(CHATTER).format(*told)
        if chance.random() < 0.1:
            yield chance.choice(ODD).format(*told)


def found(log: Log) -> tuple[object, ...]:
    """All of a log that later steps look at."""
    return (log.run, log.events, log.errors, [text for text in log.first_after if text.strip()], [text for text in log.last_after if text.strip()],
            log.lines, log.others)  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("seed", range(4))
def test_in_bulk_and_line_by_line_find_the_same(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(lines(REPORTS[name], random.Random(seed)))
    monkeypatch.setattr(reading, "CHUNK", 4096)
    in_bulk = log_reading.read_text(text)
    monkeypatch.setattr(reading, "_is_plain", lambda _chunk, _whole: False)
    assert found(in_bulk) == found(log_reading.read_text(text))
    assert len(in_bulk.run) > 100


def test_rows_that_looked_like_chatter_count_once_their_header_has_come() -> None:
    """The shapes of the rows were known to be harmless: the header changes that."""
    row = "train,{0},{1:.3f},ok"
    lines = [row.format(step, 4 - step / 100) for step in range(40)]
    text = "\n".join(["loading", *lines[:3], "phase,step,loss,state", *lines[3:]])
    for whole in (text, text.replace("loading", "\x1b[1mloading\x1b[0m")):  # a block read together, and one read line by line
        run = log_reading.read_text(whole).run
        assert (run.format, list(run.steps)) == ("csv", list(range(3, 40)))
