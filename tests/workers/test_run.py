import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from skillserver import processes
from skillserver.errors import BadRequest, NotHere, TooLong, WorkerFailed
from skillserver.workers import run
from skillserver.workers.run import WorkerSpec, run_worker

FAKE = str(Path(__file__).with_name("fake_worker.py"))


def spec(tmp_path, settings, **more):
    return WorkerSpec(f"test-{tmp_path.name}", tmp_path, FAKE, settings, sys.executable, **more)


def worked(spec):
    """The outcome and every event."""
    events = []

    async def keep(event):
        events.append(event)

    async def whole():
        return await run_worker(spec, keep)

    return asyncio.run(whole()), events


def refused(error, spec):
    events = []

    async def keep(event):
        events.append(event)

    with pytest.raises(error) as caught:
        asyncio.run(run_worker(spec, keep))
    assert processes.marked(spec.job_id) == []
    return caught.value, events


def test_a_worker_gives_hello_progress_and_result_and_its_prints_do_no_harm(tmp_path):
    outcome, events = worked(spec(tmp_path, {"mode": "success", "dtype": "bf16"}))
    assert [event["type"] for event in events] == ["started", "hello", "progress", "result"]
    assert outcome["payload"]["settings"] == {"mode": "success", "dtype": "bf16"}
    assert (outcome["hello"]["pid"], outcome["hello"]["executable"]) == (events[0]["pid"], sys.executable)
    assert (outcome["garbage_lines"], outcome["note"]) == (1, "")  # the print before start


def test_a_large_result_arrives_whole(tmp_path):
    outcome, _ = worked(spec(tmp_path, {"size": 5_000_000}))
    assert len(outcome["payload"]["large"]) == 5_000_000


def test_secrets_stay_here_and_training_variables_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    outcome, _ = worked(spec(tmp_path, {}))
    names = set(outcome["payload"]["environment"])
    assert {"NCCL_IB_HCA", "PATH", "SKILLSERVER_JOB", "OMP_NUM_THREADS"} <= names
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & names


def test_threads_are_shared_among_the_ranks_unless_the_user_chose(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "allowed_cpus", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run.environment(spec(tmp_path, {}, nproc=4))["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert run.environment(spec(tmp_path, {}, nproc=4))["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(("kind", "error"), [("failed", WorkerFailed), ("bad_request", BadRequest), ("not_here", NotHere)])
def test_a_failure_line_becomes_the_error_it_names(tmp_path, kind, error):
    caught, _ = refused(error, spec(tmp_path, {"mode": "failure", "kind": kind}))
    assert str(caught) == "no_such_dtype: dtype 'x' is not one of this GPU's. Next: pass dtype='bf16'."


def test_an_exception_in_the_worker_is_told_in_one_line_with_the_trace_kept(tmp_path):
    caught, _ = refused(WorkerFailed, spec(tmp_path, {"mode": "exception"}))
    assert str(caught) == f"worker_exception: RuntimeError: CUDA error: out of memory. Next: read {tmp_path}/stderr.txt."
    assert "raise RuntimeError" in (tmp_path / "stderr.txt").read_text()


def test_an_end_without_a_result_shows_the_last_words(tmp_path):
    caught, _ = refused(WorkerFailed, spec(tmp_path, {"mode": "silent"}))
    assert "fake_worker.py ended with status 0 without a result" in str(caught)
    assert "1 lines of its output were not understood" in str(caught)
    assert "last words" in str(caught)


def test_a_killed_worker_names_the_signal(tmp_path):
    caught, _ = refused(WorkerFailed, spec(tmp_path, {"mode": "killed"}))
    assert "was ended by SIGKILL (by hand, or by the kernel when memory ran out)" in str(caught)


def test_a_result_stands_when_the_process_then_crashes_and_a_note_says_so(tmp_path):
    outcome, _ = worked(spec(tmp_path, {"mode": "crash_after_result"}))
    assert (outcome["payload"], outcome["note"]) == ({"best": 1}, "the worker was ended by SIGABRT after its result")


def test_the_limit_ends_the_tree_and_keeps_what_sigterm_brought(tmp_path):
    caught, events = refused(TooLong, spec(tmp_path, {"mode": "hang", "child": True}, limit_s=2))
    assert str(caught).startswith("too_long: ")
    assert events[-1] == {"type": "partial", "partial": {"best": 2, "said": "on SIGTERM"}}


def test_a_worker_deaf_to_sigterm_leaves_its_last_partial(tmp_path):
    _, events = refused(TooLong, spec(tmp_path, {"mode": "hang", "child": True, "stubborn": True}, limit_s=2, grace_s=0.2))
    assert events[-1] == {"type": "partial", "partial": {"best": 1}}


def test_cancelling_ends_the_tree_and_keeps_the_best_so_far(tmp_path):
    job, partials = spec(tmp_path, {"mode": "hang", "child": True}), []

    async def whole():
        running = asyncio.Event()

        async def keep(event):
            partials.extend([event["partial"]] if "partial" in event else [])
            running.set() if event["type"] == "progress" else None

        task = asyncio.create_task(run_worker(job, keep))
        await running.wait()
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(whole())
    assert partials == [{"best": 1}, {"best": 2, "said": "on SIGTERM"}]
    assert processes.marked(job.job_id) == []


def test_an_interpreter_that_does_not_start_is_not_here(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("not a program")
    caught, _ = refused(NotHere, WorkerSpec("test-x", tmp_path, FAKE, {}, str(broken)))
    assert caught.code == "cannot_start"


def test_the_same_script_runs_by_hand(tmp_path):
    run.prepare(spec(tmp_path, {}))
    script = str(tmp_path / "scripts" / "fake_worker.py")
    env = {name: value for name, value in os.environ.items() if not name.startswith("SKILLSERVER_")}
    finished = processes.run_with_deadline([sys.executable, script, "--settings", '{"mode": "success"}'], 60, env=env)
    assert finished.rc == 0
    assert '{"type": "result", "payload": {"settings": {"mode": "success"}' in finished.stdout
    helped = processes.run_with_deadline([sys.executable, script, "--help"], 60, env=env)
    assert helped.rc == 0
    assert "A worker of the tests" in helped.stdout
    assert "--settings-file PATH" in helped.stdout


def test_a_worker_whose_starter_is_gone_ends_at_once(tmp_path):
    run.prepare(spec(tmp_path, {}))
    env = {**os.environ, "SKILLSERVER_PARENT": "1"}
    finished = processes.run_with_deadline([sys.executable, str(tmp_path / "scripts" / "fake_worker.py")], 60, env=env)
    assert (finished.rc, "is gone" in finished.stderr) == (3, True)


def test_a_worker_that_somebody_else_stopped_is_no_complete_result(tmp_path):
    events = []

    async def stop(event):
        events.append(event)
        if event["type"] == "progress":
            os.kill(events[0]["pid"], signal.SIGTERM)

    with pytest.raises(WorkerFailed, match="was told to stop from outside"):
        asyncio.run(run_worker(spec(tmp_path, {"mode": "hang"}), stop))
    assert events[-1] == {"type": "partial", "partial": {"best": 2, "said": "on SIGTERM"}}


def test_a_folder_that_cannot_be_filled_is_told_with_one_reason(tmp_path, monkeypatch):
    def full(*_arguments, **_more):
        raise shutil.Error(
            [(f"/src/{name}", f"/run/{name}", f"[Errno 28] No space left on device: '/src/{name}' -> '/run/{name}'") for name in "abc"]
        )

    monkeypatch.setattr(shutil, "copytree", full)
    error, _ = refused(WorkerFailed, spec(tmp_path, {}))
    assert (
        str(error) == f"no_run_folder: {tmp_path}: No space left on device. Next: set SKILLSERVER_HOME to a folder with room that you may write to."
    )
