"""The storage benchmark as a real subprocess: what it measures, what it refuses, and that nothing stays however it ends."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"
MIB = 2**20
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
sys.path.insert(0, str(SCRIPTS))
import mounts  # noqa: E402
import storage_fio  # noqa: E402
import storage_place  # noqa: E402


def start(cwd: Path, **settings: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SCRIPTS / "storage_bench.py"), "--settings", json.dumps({"bytes": 64 * MIB, "budget_s": 4} | settings)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={"PATH": os.environ["PATH"]})


def last(cwd: Path, **settings: Any) -> dict[str, Any]:
    out, _ = start(cwd, **settings).communicate(timeout=120)
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def until(worker: "subprocess.Popen[str]", message: str) -> None:
    """Read the worker's lines up to the progress that says so."""
    assert worker.stdout
    while message not in worker.stdout.readline():
        assert worker.poll() is None


def emptied(folder: Path) -> bool:
    """Whether the folder is empty within half a minute; a shell removes what a killed worker left."""
    ends = time.monotonic() + 30
    while list(folder.iterdir()) and time.monotonic() < ends:
        time.sleep(0.02)
    return not list(folder.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder that is measured; the worker's own files go beside it."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@needs_fio
def test_fio_measures_a_file_that_no_folder_lists_and_its_documents_are_kept(tmp_path: Path, place: Path) -> None:
    told = last(tmp_path, folder=str(place), parts=["data_loading", "checkpoints"], raw_file="samples.json")["payload"]
    assert [row["name"] for row in told["rows"]] == ["sequential write", "sequential read", "random read 64k"]
    assert told["failed"] == {}
    for row, way in zip(told["rows"], ("write", "read", "read"), strict=True):
        assert row["fio"]["jobs"][0][way]["bw_bytes"] > 0
        assert row["fio"]["jobs"][0]["job options"]["size"] == str(64 * MIB)
    assert [one["what"] for one in json.loads((tmp_path / "samples.json").read_text())] == [*(row["name"] for row in told["rows"]), "all"]
    assert list(place.iterdir()) == []


def test_without_fio_plain_python_measures_and_the_developer_s_view_is_told(tmp_path: Path, place: Path) -> None:
    told = last(tmp_path, folder=str(place), parts=["code"], plain=True)["payload"]
    assert {row["name"]: row["in_flight"] for row in told["rows"]} == {"sequential write": 1, "random read 4k": 16, "random write 4k": 16}
    assert all(row["iops"] > 0 for row in told["rows"])
    assert told["conditions"]["fio"] == ""
    assert sorted(told["files"]["rates"]) == ["create", "delete", "list", "open_read", "rename", "stat"]
    assert min(told["files"]["rates"].values()) > 0
    assert told["package"]["first_s"] > 0
    assert told["git"] is None or told["git"]["status_ms"] > 0
    assert told["not_removed"] == []
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("part", "step"), [("code", "files"), ("checkpoints", "sequential write")])
def test_sigterm_keeps_what_was_seen_and_leaves_nothing(tmp_path: Path, place: Path, part: str, step: str) -> None:
    worker = start(tmp_path, folder=str(place), budget_s=60, parts=[part])
    until(worker, f'"message": "{step}"')
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=60)
    end = json.loads(out.splitlines()[-1])
    assert (end["type"], end["stopped"], end["payload"]["partial"]) == ("result", True, True)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(("part", "step"), [("code", "package"), ("checkpoints", "sequential write")])
def test_a_worker_that_is_killed_leaves_nothing(tmp_path: Path, place: Path, part: str, step: str) -> None:
    worker = start(tmp_path, folder=str(place), budget_s=20, parts=[part])
    until(worker, f'"message": "{step}"')
    worker.send_signal(signal.SIGKILL)
    worker.communicate(timeout=30)
    assert emptied(place)


def test_when_the_server_is_killed_its_worker_ends_and_nothing_stays(tmp_path: Path, place: Path) -> None:
    code = f"""
import os, subprocess, sys
env = {{"PATH": os.environ["PATH"], "SKILLSERVER_PARENT": str(os.getpid()), "SKILLSERVER_JOB": "run_storage_bench-test"}}
settings = {json.dumps({"folder": str(place), "bytes": 64 * MIB, "budget_s": 12, "parts": ["code"]})!r}
child = subprocess.Popen([sys.executable, {str(SCRIPTS / "storage_bench.py")!r}, "--settings", settings], env=env)
child.wait()
"""
    server = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    until(server, '"message": "package"')
    server.kill()
    assert server.stdout
    server.stdout.read()  # ends when the worker has: it holds the pipe
    server.communicate(timeout=30)
    assert emptied(place)


def test_the_next_run_removes_what_a_lost_node_left_and_nothing_of_a_living_one(tmp_path: Path, place: Path) -> None:
    for name, host in (("dead", "this"), ("alive", "this"), ("elsewhere", "n77")):
        (place / f"{storage_place.PREFIX}{name}").mkdir()
        owner = {"host": host, "pid": 1, "boot": storage_place.boot() if host == "this" else "another"}
        (place / f"{storage_place.PREFIX}{name}" / storage_place.OWNER).write_text(json.dumps(owner))
    with (place / f"{storage_place.PREFIX}alive" / storage_place.OWNER).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        removed, left = storage_place.sweep(str(place))
    assert removed == [f"{storage_place.PREFIX}dead"]
    assert [line.split(": ")[1] for line in left] == ["a run uses it now", "of a run on n77, less than a day old"]
    assert sorted(path.name.removeprefix(storage_place.PREFIX) for path in place.iterdir()) == ["alive", "elsewhere"]
    os.utime(place / f"{storage_place.PREFIX}elsewhere", (0, 0))
    assert storage_place.sweep(str(place))[0] == [f"{storage_place.PREFIX}alive", f"{storage_place.PREFIX}elsewhere"]


@pytest.mark.parametrize(("settings", "code"), [({"bytes": 2**60}, "no_room"), ({"folder": "/no/such/place"}, "no_such_folder"),
                                                ({"folder": "/proc"}, "no_storage"), ({"parts": ["nfs"]}, "unknown_part")])  # fmt: skip
def test_what_cannot_be_measured_is_refused_in_one_sentence(tmp_path: Path, place: Path, settings: dict[str, Any], code: str) -> None:
    told = last(tmp_path, **{"folder": str(place)} | settings)
    assert (told["type"], told["code"]) == ("failure", code)
    assert list(place.iterdir()) == []


def test_a_folder_without_write_permission_is_refused(tmp_path: Path, place: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    place.chmod(0o500)
    assert last(tmp_path, folder=str(place))["code"] == "not_writable"


def test_the_mount_of_a_folder_is_the_last_of_the_longest_mount_points(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text("/dev/sda / ext4 rw 0 0\nsrv:/home /home nfs4 rw,vers=4.2 0 0\nx /mnt/a\\040b tmpfs ro 0 0\n/dev/sdb /home xfs rw,noatime 0 0\n")
    assert mounts.of("/home/anna", str(table)) == {"type": "xfs", "mount": "/home", "source": "/dev/sdb", "options": ["rw", "noatime"]}
    assert mounts.of("/homes", str(table))["type"] == "ext4"
    assert mounts.of("/mnt/a b/c", str(table))["options"] == ["ro"]
    assert mounts.of("/", str(tmp_path / "none"))["type"] == ""


def test_output_of_fio_that_is_no_document_and_errors_in_one_are_told_in_words() -> None:
    assert storage_fio.read("", "fio: engine libaio not loadable", 1) == {"failed": "ended with status 1: fio: engine libaio not loadable"}
    full = json.dumps({"jobs": [{"error": 28}]})
    assert storage_fio.read(f"note: a word before\n{full}", "fio: io_u error", 1) == {"failed": "error 28: no space is left", "full": True}
