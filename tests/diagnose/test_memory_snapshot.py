"""CUDA memory snapshots in the documented format, written here: who held the bytes at the peak and at the failure."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from skillserver.diagnose import memory_snapshot
from skillserver.errors import BadRequest
from skillserver.tools.device_memory import diagnose_memory

GIB = 2**30
TORCH = "/env/lib/python3.11/site-packages/torch"
NN = f"{TORCH}/nn/modules"
STACKS = {
    "parameters": [("__init__", f"{NN}/linear.py", 100), ("build", "/home/u/model.py", 12)],
    "activations": [
        ("forward", f"{NN}/linear.py", 134),
        ("_call_impl", f"{NN}/module.py", 1700),
        ("block", "/home/u/model.py", 40),
    ],
    "optimizer state": [
        ("_init_group", f"{TORCH}/optim/adamw.py", 90),
        ("step", f"{TORCH}/optim/optimizer.py", 480),
        ("train", "/home/u/train.py", 33),
    ],
    "logits and loss": [("cross_entropy", f"{TORCH}/nn/functional.py", 3400), ("loss", "/home/u/train.py", 21)],
    "communication": [("all_gather", f"{TORCH}/distributed/distributed_c10d.py", 3900), ("gather", "/home/u/train.py", 50)],
}


def frames(kind: str) -> list[dict[str, Any]]:
    return [{"name": name, "filename": file, "line": line} for name, file, line in STACKS.get(kind, [])]


class Recorder:
    """An allocator that keeps every block in a segment of its own unless told a hole."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.alive: dict[int, tuple[int, str]] = {}
        self.next = 1 << 40

    def alloc(self, gib: float, kind: str = "", recorded: bool = True) -> int:
        address, size = self.next, int(gib * GIB)
        self.next += 1 << 38
        self.alive[address] = (size, kind)
        if recorded:
            self.trace.append({"action": "alloc", "addr": address, "size": size, "stream": 0, "frames": frames(kind)})
        return address

    def free(self, address: int) -> None:
        size, kind = self.alive.pop(address)
        for action in ("free_requested", "free_completed"):
            self.trace.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": frames(kind)})

    def out_of_memory(self, gib: float, free_gib: float) -> None:
        self.trace.append({"action": "oom", "size": int(gib * GIB), "device_free": int(free_gib * GIB), "stream": 0, "frames": frames("activations")})

    def snapshot(self, holes: list[float] | None = None) -> dict[str, Any]:
        segments = [self.segment(address, [(size, "active_allocated", kind)]) for address, (size, kind) in self.alive.items()]
        segments += [self.segment(7 << 50, [(int(hole * GIB), "inactive", "")]) for hole in holes or []]
        return {"segments": segments, "device_traces": [self.trace], "allocator_settings": {}}

    @staticmethod
    def segment(address: int, blocks: list[tuple[int, str, str]]) -> dict[str, Any]:
        rows = [{"size": size, "requested_size": size, "address": address, "state": state, "frames": frames(kind)} for size, state, kind in blocks]
        total = sum(size for size, _state, _kind in blocks)
        return {"device": 0, "address": address, "total_size": total, "stream": 0, "segment_type": "large", "blocks": rows}


def saved(tmp_path: Path, raw: object) -> str:
    path = tmp_path / "snap.pickle"
    path.write_bytes(pickle.dumps(raw))
    return str(path)


def step(recorder: Recorder) -> None:
    """Parameters from before the recording, a forward pass that peaks, then the optimizer."""
    recorder.alloc(4, "parameters", recorded=False)
    kept = [recorder.alloc(3, "activations") for _ in range(4)]
    logits = recorder.alloc(2, "logits and loss")
    for address in (*kept, logits):
        recorder.free(address)
    recorder.alloc(8, "optimizer state")


def test_the_peak_is_found_and_its_holders_are_named(tmp_path: Path) -> None:
    recorder = Recorder()
    step(recorder)
    found = diagnose_memory(path=saved(tmp_path, recorder.snapshot()))
    assert (found.moment, found.allocated_gib, found.verdict) == ("peak", 18.0, "ok")
    assert found.by_kind_gib == {"activations": 12.0, "parameters": 4.0, "logits and loss": 2.0}
    assert (found.holders[0].place, found.holders[0].blocks, found.holders[0].share) == ("block (model.py:40)", 4, 0.667)


def test_at_a_failure_the_state_of_that_moment_is_shown_and_not_the_peak(tmp_path: Path) -> None:
    recorder = Recorder()
    step(recorder)
    recorder.out_of_memory(6, 1)
    recorder.alloc(30, "communication")
    found = diagnose_memory(path=saved(tmp_path, recorder.snapshot(holes=[0.5])))
    assert (found.moment, found.allocated_gib, found.asked_gib, found.device_free_gib) == ("out of memory", 12.0, 6.0, 1.0)
    assert found.by_kind_gib == {"optimizer state": 8.0, "parameters": 4.0}
    assert (found.verdict, found.findings[0].code) == ("critical", "out_of_memory_shortage")


def test_fragmentation_is_blamed_when_the_pieces_would_do_together_and_none_does_alone(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.alloc(10, "parameters", recorded=False)
    recorder.out_of_memory(4, 0.5)
    found = diagnose_memory(path=saved(tmp_path, recorder.snapshot(holes=[1.5, 1.5, 1.5])))
    assert (found.findings[0].code, found.unused_share, found.largest_free_piece_gib) == ("out_of_memory_fragmentation", 0.31, 1.5)
    assert "expandable_segments" in found.findings[0].action


def test_allocations_of_the_backward_pass_have_no_stack_and_are_told_from_those_before_the_recording(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.alloc(5, "", recorded=False)
    recorder.alloc(3, "")
    found = diagnose_memory(path=saved(tmp_path, recorder.snapshot()))
    assert found.by_kind_gib == {"unknown": 5.0, "gradients and backward": 3.0}
    assert [finding.code for finding in found.findings] == ["no_stacks"]


def test_without_history_the_end_is_shown_and_said(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.alloc(2, "parameters", recorded=False)
    found = diagnose_memory(path=saved(tmp_path, recorder.snapshot()))
    assert (found.moment, found.allocated_gib) == ("end of the snapshot", 2.0)
    assert "no history was recorded" in found.skipped[0]


@pytest.mark.parametrize("kind", STACKS)
def test_the_kind_of_an_allocation_is_read_from_its_frames(kind: str) -> None:
    assert memory_snapshot.kind(frames(kind)) == kind


def test_only_the_fullest_device_is_judged_and_the_others_are_named(tmp_path: Path) -> None:
    raw = Recorder().snapshot()
    raw["segments"] = [Recorder.segment(1 << 40, [(GIB, "active_allocated", "parameters")]) | {"device": device} for device in (0, 1, 1)]
    found = diagnose_memory(path=saved(tmp_path, raw))
    assert found.device == 1 and "device 0" in found.skipped[1]


def test_a_message_alone_is_judged_by_its_numbers() -> None:
    text = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 70.00 GiB is "
            "free. Of the allocated memory 8.00 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated.")  # fmt: skip
    found = diagnose_memory(text=text)
    assert (found.verdict, found.findings[0].code, found.asked_gib) == ("critical", "out_of_memory_too_big", 90.0)


def test_a_snapshot_that_runs_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    with pytest.raises(BadRequest, match="nothing was run"):
        diagnose_memory(path=saved(tmp_path, {"segments": [Bomb()]}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ([1, 2], "not_a_snapshot"),
        ({"segments": [], "device_traces": [[]]}, "empty_snapshot"),
        ({"segments": [{"blocks": 3, "total_size": 1}]}, "not_a_snapshot"),
    ],
)
def test_other_pickles_are_refused(tmp_path: Path, raw: object, code: str) -> None:
    with pytest.raises(BadRequest, match=code):
        diagnose_memory(path=saved(tmp_path, raw))


def test_a_cut_snapshot_and_a_text_without_a_message_are_refused(tmp_path: Path) -> None:
    recorder = Recorder()
    step(recorder)
    path = Path(saved(tmp_path, recorder.snapshot()))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(BadRequest, match="cut or damaged"):
        diagnose_memory(path=str(path))
    with pytest.raises(BadRequest, match="no_message"):
        diagnose_memory(text="loss is nan")
    with pytest.raises(BadRequest, match="one_of_text_path"):
        diagnose_memory()


@pytest.mark.parametrize(
    ("content", "said"), [(b"PK\x03\x04rest", "a zip archive"), (b"\x1f\x8brest", "gzip"), (b"\x7fELF\0\0\0", "neither a snapshot")]
)
def test_a_file_that_is_neither_pickle_nor_text_is_named_as_such(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "snap"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=said):
        diagnose_memory(path=str(path))
