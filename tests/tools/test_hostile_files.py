"""Files from strangers and paths that are no files: nothing runs, nothing waits, nothing fills the memory or the answer."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from skillserver import permissions, registry
from skillserver.errors import BadRequest
from skillserver.tools.device_memory import diagnose_memory
from skillserver.tools.hang import diagnose_hang
from skillserver.tools.judge import judge_measurement
from skillserver.tools.training_log import diagnose_training_log

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free."


class RunsCode:
    """A pickle of this touches a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def test_a_snapshot_that_would_run_code_runs_nothing(tmp_path: Path) -> None:
    snapshot = tmp_path / "snap.pickle"
    snapshot.write_bytes(pickle.dumps({"segments": [RunsCode(tmp_path / "mark")], "device_traces": []}))
    with pytest.raises(BadRequest, match="only plain data are read"):
        diagnose_memory(path=str(snapshot))
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("tool", [diagnose_memory, judge_measurement, diagnose_training_log])
def test_pipes_devices_and_broken_links_are_no_files(tool: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, target in (("to_pipe", "pipe"), ("to_zero", "/dev/zero"), ("to_nothing", "nowhere"), ("to_itself", "to_itself")):
        (tmp_path / name).symlink_to(target)
    for path in ("pipe", "to_pipe", "to_zero", "to_nothing", "to_itself"):
        with pytest.raises(BadRequest, match="no_such_file"):
            tool(path=str(tmp_path / path))


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="no kernel log here")
def test_a_stream_of_the_kernel_is_refused_before_it_makes_anyone_wait() -> None:
    with pytest.raises(BadRequest, match="has no end"):
        permissions.readable("/proc/kmsg")


def test_a_huge_log_is_read_from_its_end_only(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with log.open("wb") as opened:
        opened.truncate(10 * 2**30)  # sparse
        opened.seek(0, os.SEEK_END)
        opened.write(f"\n{OOM}\n".encode())
    assert diagnose_memory(path=str(log)).asked_gib == 2.0
    with pytest.raises(BadRequest, match="file_too_large"):
        judge_measurement(path=str(log))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_what_powershell_wrote_is_read(encoding: str, tmp_path: Path) -> None:
    bom = {"utf-16": b"", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}[encoding]
    log = tmp_path / "out.txt"
    log.write_bytes(bom + OOM.encode(encoding))
    assert diagnose_memory(path=str(log)).asked_gib == 2.0
    log.write_bytes(bom + "8xA100 nccl busbw 180".encode(encoding))
    assert judge_measurement(path=str(log)).verdict == "warning"


@pytest.mark.parametrize("letter", ["a", "1", "1.", "a:", "["])
def test_a_line_without_spaces_is_given_up_soon(letter: str) -> None:
    with pytest.raises(BadRequest, match="no_measurement"):
        judge_measurement(text=letter * 1_000_000)


def test_a_thousand_unreadable_files_are_one_line_each_for_the_first_ones(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"rank_{number}.txt").write_text("x")
    found = diagnose_hang(paths=[str(tmp_path)])
    assert (found.verdict, len(found.skipped), found.skipped[-1]) == ("unknown", 65, "936 more like these")


@pytest.mark.parametrize("path", ["~nobody-of-that-name", "a\0b", "x" * 5000, "/nonexistent"])
@pytest.mark.parametrize("tool", ["diagnose_hang", "diagnose_numerics"])
def test_a_path_that_can_be_none_is_refused_by_tools_that_take_folders(tool: str, path: str) -> None:
    with pytest.raises(BadRequest, match="no_such_file"):
        registry.find(tool).tool.sync(paths=[path])


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(BadRequest, match="no_such_file"):
        diagnose_hang(paths=[str(tmp_path / "loop")])


def test_a_document_nested_beyond_reason_is_no_training_log(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text("[" * 300_000)
    with pytest.raises(BadRequest, match="no_training_log"):
        diagnose_training_log(path=str(tmp_path / "trainer_state.json"))
