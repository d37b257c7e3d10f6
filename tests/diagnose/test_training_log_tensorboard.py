"""TensorBoard event files: written here field by field, read without TensorFlow; cut, broken and strange ones too."""

import math
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from skillserver.diagnose import log_reading
from skillserver.diagnose.log_formats import tfevents
from skillserver.errors import BadRequest
from skillserver.tools.training_log import diagnose_training_log


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def part(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def frame(event: bytes) -> bytes:
    return struct.pack("<Q", len(event)) + b"\1\2\3\4" + event + b"\5\6\7\0"


def event(step: int, values: Iterable[bytes], time_s: float) -> bytes:
    return frame(b"\x09" + struct.pack("<d", time_s) + b"\x10" + varint(step) + part(5, b"".join(part(1, value) for value in values)))


def plain(tag: str, value: float) -> bytes:
    return part(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, value: float, raw: bool) -> bytes:
    content = part(4, struct.pack("<d", value)) if raw else part(5, struct.pack("<f", value))
    return part(1, tag.encode()) + part(9, part(1, part(1, b"scalars"))) + part(8, b"\x08" + (b"\2" if raw else b"\1") + part(2, b"") + content)


HEAD = frame(b"\x09" + struct.pack("<d", 1e9) + part(3, b"brain.Event:2"))


def written(folder: Path, *frames: bytes) -> Path:
    path = folder / "events.out.tfevents.1700000000.host"
    path.write_bytes(HEAD + b"".join(frames))
    return path


def losses(path: Path) -> list[tuple[int, float]]:
    run = log_reading.read_file(path).run
    return list(zip(run.steps, run.columns["loss"], strict=True))


def test_scalars_of_one_step_are_one_report(tmp_path: Path) -> None:
    frames = []
    for step in range(1, 4):
        frames.append(event(step, [plain("train/loss", 4 / step)], 1e9 + step))
        frames.append(event(step, [plain("train/grad_norm", 0.5), plain("train/learning_rate", 1e-4)], 1e9 + step))
    path = written(tmp_path, *frames)
    run = log_reading.read_file(path).run
    assert (run.format, list(run.steps), list(run.columns["time_s"])) == ("tensorboard", [1, 2, 3], [1e9 + 1, 1e9 + 2, 1e9 + 3])
    assert [round(value, 4) for value in run.columns["loss"]] == [4.0, 2.0, 1.3333]
    assert run.values("grad_norm")[1] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("raw", [False, True])
def test_scalars_written_as_tensors_are_read(tmp_path: Path, raw: bool) -> None:
    assert losses(written(tmp_path, event(7, [tensor("epoch_loss", 1.5, raw)], 1e9))) == [(7, 1.5)]


def test_the_same_quantity_over_samples_is_left_out(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        event(10, [plain("lm loss", 3.0)], 1e9),
        event(5120, [plain("lm loss vs samples", 3.0)], 1e9),
        event(20, [plain("lm loss", 2.5)], 1e9),
    )
    assert losses(path) == [(10, 3.0), (20, 2.5)]


def test_auxiliary_losses_do_not_stand_for_the_loss(tmp_path: Path) -> None:
    path = written(tmp_path, *(event(step, [plain("moe/aux_loss", 0.01), plain("loss", 2.0)], 1e9) for step in (1, 2)))
    assert losses(path) == [(1, 2.0), (2, 2.0)]


def test_a_file_that_is_cut_gives_what_it_has(tmp_path: Path) -> None:
    path = written(tmp_path, event(1, [plain("loss", 2.0)], 1e9), event(2, [plain("loss", 1.5)], 1e9))
    path.write_bytes(path.read_bytes()[:-9])
    assert losses(path) == [(1, 2.0)]


@pytest.mark.parametrize("junk", [b"\xff" * 40, struct.pack("<Q", 5) + b"...." + b"\xff" * 9, struct.pack("<Q", 1 << 40) + b"...."])
def test_reading_ends_where_a_file_is_broken(tmp_path: Path, junk: bytes) -> None:
    assert losses(written(tmp_path, event(1, [plain("loss", 2.0)], 1e9), junk)) == [(1, 2.0)]


def test_images_and_graphs_are_passed_over(tmp_path: Path) -> None:
    image = part(1, b"samples") + part(4, b"\0" * 3_000_000)
    histogram = part(1, b"weights") + part(5, b"\0" * 100)
    assert losses(written(tmp_path, event(1, [image], 1e9), event(1, [histogram, plain("loss", 2.0)], 1e9))) == [(1, 2.0)]


def test_a_nan_in_an_event_file_is_found_with_its_step(tmp_path: Path) -> None:
    path = written(
        tmp_path, *(event(step, [plain("train_loss", math.nan if step >= 60 else 3.0 + step % 3 / 100)], 1e9 + step) for step in range(1, 81))
    )
    found = diagnose_training_log(path=str(path))
    assert (found.format, found.findings[0].code, found.findings[0].step) == ("tensorboard", "nan", 60)


def test_a_file_without_a_loss_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="rollout/reward"):
        log_reading.read_file(written(tmp_path, event(1, [plain("rollout/reward", 2.0)], 1e9)))


def test_a_binary_file_of_another_kind_is_no_event_file(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\0" * 200)
    assert not tfevents.is_events(path.read_bytes())
    with pytest.raises(BadRequest, match="not text"):
        log_reading.read_file(path)
