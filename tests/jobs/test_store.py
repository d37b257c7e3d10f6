import json
import os
import shutil
import subprocess
import sys

import pytest

from skillserver import processes
from skillserver.jobs.store import JobRecord, Store, boot_id


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def written(store, **fields):
    """A record of this process with some fields changed, as another process would have left it."""
    record = JobRecord.new("run_mamf", {"dtype": "bf16"}).model_copy(update=fields)
    assert store.save(record) == ""
    return record


def gone():
    """Number and start time of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = processes.start_time(child.pid)
    child.communicate(b"\n")
    return {"pid": child.pid, "pid_start_time": started}


def test_a_record_comes_back_as_it_was_written(store):
    record = written(store, result={"best": {"tflops": 1.5}}, state="done")
    assert store.load(record.job_id) == record
    assert sorted(file.name for file in store.folder.iterdir()) == [f"{record.job_id}.json"]


def test_a_running_job_of_a_living_process_runs(store):
    assert store.load(written(store).job_id).state == "running"


def test_a_job_whose_process_is_gone_is_lost_and_stays_lost(store):
    record = written(store, **gone())
    assert (store.load(record.job_id).state, store.load(record.job_id).next[:8]) == ("lost", "call run")
    assert json.loads((store.folder / f"{record.job_id}.json").read_text())["state"] == "lost"


def test_a_process_number_that_was_given_to_another_process_is_lost(store):
    assert store.load(written(store, pid=os.getpid(), pid_start_time=1.0).job_id).state == "lost"


@pytest.mark.parametrize("elsewhere", [{"host": "node17"}, {"boot_id": "another boot"}])
def test_a_job_of_another_host_is_elsewhere_and_never_lost(store, elsewhere):
    record = written(store, **gone(), **elsewhere)
    assert store.load(record.job_id).state == "elsewhere"
    assert json.loads((store.folder / f"{record.job_id}.json").read_text())["state"] == "running"


def test_an_ended_job_of_another_host_is_shown_as_it_ended(store):
    assert store.load(written(store, host="node17", state="done").job_id).state == "done"


def test_a_broken_file_is_skipped_and_reported(store):
    record = written(store)
    (store.folder / "run_mamf-00000000.json").write_text("{")
    (store.folder / "run_mamf-00000001.json").write_text('{"job_id": "run_mamf-00000001"}')
    records, broken = store.all()
    assert [one.job_id for one in records] == [record.job_id]
    assert sorted(broken) == [f"{store.folder}/run_mamf-0000000{number}.json is not a job record" for number in (0, 1)]
    assert store.load("run_mamf-00000000") is None


def test_an_id_that_is_a_path_finds_nothing(store):
    written(store)
    assert store.load("../jobs/x") is None


def test_the_newest_come_first(store):
    times = ["2026-01-01T00:00:00.000Z", "2026-03-01T00:00:00.000Z", "2026-02-01T00:00:00.000Z"]
    for created in times:
        written(store, created=created, state="done")
    assert [record.created for record in store.all()[0]] == sorted(times, reverse=True)


def test_the_oldest_ended_go_with_their_folders_and_running_ones_stay(store):
    running = written(store, created="2020-01-01T00:00:00.000Z")
    far = written(store, created="2020-01-01T00:00:00.000Z", host="node17")
    old, new = (written(store, created=f"2026-01-0{day}T00:00:00.000Z", state="done") for day in (1, 2))
    store.run_folder(old.job_id)
    store.prune(keep=1)
    assert {record.job_id for record in store.all()[0]} == {running.job_id, new.job_id}
    assert store.load(far.job_id) is None
    assert not (store.home / "runs" / old.job_id).exists()


def test_a_home_that_cannot_be_written_keeps_the_record_in_memory(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "home")
    record = JobRecord.new("run_mamf", {})
    assert store.save(record).startswith("the record is kept in memory only: ")
    assert store.load(record.job_id) == record
    assert store.all() == ([record], [])
    folder, note = store.run_folder(record.job_id)
    assert (folder.is_dir(), "run files are in the temporary folder" in note) == (True, True)
    shutil.rmtree(folder)


def test_the_boot_is_the_same_for_every_process_here():
    program = "from skillserver.jobs.store import boot_id; print(boot_id())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == boot_id()


def test_a_home_whose_name_is_no_utf_8_keeps_records(tmp_path):
    store = Store(tmp_path / os.fsdecode(b"home-\xff\xfe"))
    record = written(store, run_folder=store.run_folder("run_mamf-00000001")[0].as_posix(), result={"device": "GPU \ud800 训练"})
    assert store.load(record.job_id) == record
    assert store.all() == ([record], [])


def test_a_record_nested_too_deeply_is_broken_and_not_a_crash(store):
    store.folder.mkdir(parents=True)
    (store.folder / "run_mamf-0000000f.json").write_text("[" * 200_000)
    assert store.load("run_mamf-0000000f") is None
    assert len(store.all()[1]) == 1
