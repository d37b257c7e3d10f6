"""Whatever is killed, nothing of a run stays alive. The server is a real process, and so are the ranks."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skillserver import processes
from skillserver.jobs.manager import Manager
from skillserver.jobs.store import Store

HERE = Path(__file__).parent
FAKE, RANKS = HERE.parent / "workers" / "fake_worker.py", HERE.parent / "workers" / "rank_worker.py"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="this interpreter has no torch")


class Host:
    """A server process with one run under way."""

    def __init__(self, home, script, nproc, settings):
        argv = [sys.executable, str(HERE / "host_script.py"), str(script), str(nproc), json.dumps(settings)]
        env = {**os.environ, "SKILLSERVER_HOME": str(home), "XDG_RUNTIME_DIR": str(home / "runtime"),
               "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}  # fmt: skip
        self.home = home
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        self.begun = json.loads(self.process.stdout.readline())
        assert self.begun["state"] == "running", self.begun
        self.job_id = self.begun["job_id"]

    def workers(self, script):
        """Processes of this run that run a script, launchers apart."""
        found = {process: process.cmdline() for process in processes.marked(self.job_id)}
        return [process for process, line in found.items() if next((Path(part).name for part in line if part.endswith(".py")), "") == script]

    def ended(self):
        """The record as the server printed it at the end."""
        return json.loads(self.process.stdout.readline())

    def record(self):
        """The record as another process sees it."""
        return Store(self.home).load(self.job_id)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        processes.kill_marked(self.job_id)


@pytest.fixture
def host(tmp_path):
    """Starts servers and ends them."""
    hosts = []

    def start(script, nproc, settings):
        hosts.append(Host(tmp_path, script, nproc, settings))
        return hosts[-1]

    yield start
    for one in hosts:
        one.close()


def nothing_left(job_id, within_s=60):
    """Whether every process of the run is gone before the deadline."""
    deadline = time.monotonic() + within_s
    while processes.marked(job_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_killed_server_takes_its_worker_with_it_and_the_job_is_lost(host):
    one = host(FAKE, 0, {"mode": "hang", "stubborn": True})
    assert len(processes.marked(one.job_id)) == 1
    os.kill(one.process.pid, signal.SIGKILL)
    one.process.wait()
    assert nothing_left(one.job_id)
    assert one.record().state == "lost"


def test_a_killed_worker_is_a_failed_job_with_the_best_so_far(host):
    one = host(FAKE, 0, {"mode": "hang"})
    (worker,) = one.workers("fake_worker.py")
    worker.kill()
    ended = one.ended()
    assert (ended["state"], ended["result"]["best"], ended["result"]["partial"]) == ("failed", 1, True)
    assert "SIGKILL" in ended["error"]["message"]
    assert one.record().state == "failed"


def test_another_process_of_this_host_cancels_a_job(host):
    one = host(FAKE, 0, {"mode": "hang", "child": True})
    record = asyncio.run(Manager(Store(one.home)).cancel(one.job_id))
    ended = one.ended()
    assert (record.state, ended["state"]) == ("cancelled", "cancelled")
    assert (ended["result"]["best"], ended["error"]) == (2, None)
    assert nothing_left(one.job_id)


@pytest.mark.torch
@needs_torch
def test_ranks_work_together_and_only_the_first_speaks(host):
    one = host(RANKS, 2, {"mode": "hang"})
    assert (len(one.workers("rank_worker.py")), len(one.workers("launch.py"))) == (2, 1)
    record = asyncio.run(Manager(Store(one.home)).cancel(one.job_id))
    assert (record.state, record.result["sum"], record.result["world_size"], record.result["stopped"]) == ("cancelled", 3.0, 2, True)
    assert nothing_left(one.job_id)


@pytest.mark.torch
@needs_torch
def test_a_killed_server_takes_launcher_and_ranks_with_it(host):
    one = host(RANKS, 2, {"mode": "hang"})
    os.kill(one.process.pid, signal.SIGKILL)
    one.process.wait()
    assert nothing_left(one.job_id)
    assert one.record().state == "lost"


@pytest.mark.torch
@needs_torch
def test_a_killed_launcher_takes_its_ranks_with_it(host):
    one = host(RANKS, 2, {"mode": "hang"})
    (launcher,) = one.workers("launch.py")
    launcher.kill()
    assert one.ended()["state"] == "failed"
    assert nothing_left(one.job_id)


@pytest.mark.torch
@needs_torch
def test_a_killed_rank_ends_the_run(host):
    one = host(RANKS, 2, {"mode": "hang"})
    one.workers("rank_worker.py")[1].kill()
    ended = one.ended()
    assert (ended["state"], ended["result"]["sum"]) == ("failed", 3.0)
    assert nothing_left(one.job_id)
