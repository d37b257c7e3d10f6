"""Profiles for real: words and a sourced file before the interpreter, the worker's life behind them, and their refusals."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillserver import inputs, permissions, processes
from skillserver.errors import BadRequest, NotHere
from skillserver.jobs.store import JobRecord
from skillserver.permissions import Permissions, Profile
from skillserver.procedures.guarded_run import run_guarded
from skillserver.workers import interpreters, profiles

FAKE = Path(__file__).with_name("fake_worker.py")
# a stand-in for a container: words of its own, the program at the end, in a process of its own
WRAPPER = '#!/bin/sh\nshift\nNCCL_FROM_WRAPPER=$1\nexport NCCL_FROM_WRAPPER\nshift\n"$@"\nexit $?\n'


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = permissions.current()
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    yield
    permissions.grant(before)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site's wrapper and its environment file, granted as profile `site`."""
    (tmp_path / "wrap").write_text(WRAPPER)
    (tmp_path / "wrap").chmod(0o755)
    (tmp_path / "site.sh").write_text(
        f'echo the site greets\nPATH={Path(sys.executable).parent}:$PATH\nNCCL_FROM_FILE=it\\\'s\n[ -n "$NOPE" ] && A=1\n'
    )
    words = f"site={tmp_path}/wrap exec {{run}}"
    permissions.grant(Permissions(login_node=True, profiles=inputs.profiles([words], [f"site={tmp_path}/site.sh"])))
    return tmp_path


def run(**settings: Any) -> JobRecord:
    return asyncio.run(run_guarded(tool="run_test", arguments={}, script=str(FAKE), settings=settings, shape=dict, device="cpu", python="site",
                                   needs_torch=False))  # fmt: skip


@pytest.mark.usefixtures("site")
def test_a_worker_runs_behind_the_words_in_the_environment_of_the_file() -> None:
    record = run(mode="success")
    assert record.state == "done"
    assert {"NCCL_FROM_WRAPPER", "NCCL_FROM_FILE"} <= set((record.result or {})["environment"])
    worker = (record.result or {})["worker"]
    assert (worker["interpreter"], worker["source"]) == ("python3", "profile site")


@pytest.mark.usefixtures("site")
def test_a_dry_run_shows_the_words_with_the_run_folder_in_them() -> None:
    record = asyncio.run(run_guarded(tool="run_test", arguments={}, script=str(FAKE), settings={}, shape=dict, device="cpu", python="site",
                                     needs_torch=False, dry_run=True))  # fmt: skip
    argv = (record.result or {})["argv"]
    assert argv[:3] == ["bash", "-c", profiles.ENTER]
    assert argv[5:8] == ["exec", "RUN_FOLDER", "python3"]


def test_the_first_environment_the_human_names_is_the_default(site: Path) -> None:
    assert asyncio.run(interpreters.find(needs_torch=False)).source == "profile site"
    permissions.grant(Permissions(pythons={"own": sys.executable}, profiles={"site": Profile(("env",))}))
    assert asyncio.run(interpreters.find(needs_torch=False)).source == "serve --python own"


def test_the_interpreter_of_a_profile_may_be_named() -> None:
    permissions.grant(Permissions(pythons={"site": sys.executable}, profiles={"site": Profile(("env", "A=B"))}))
    found = asyncio.run(interpreters.find("site", needs_torch=False))
    assert (found.path, found.prefix) == (sys.executable, ("env", "A=B"))


def test_a_profile_that_cannot_be_entered_is_told_with_its_words() -> None:
    permissions.grant(Permissions(profiles={"site": Profile(("no-such-container", "exec"))}))
    with pytest.raises(NotHere, match=r"python3 \(profile site\): cannot run .*no-such-container") as refused:
        asyncio.run(interpreters.find("site"))
    assert "--python site=PATH" in refused.value.next


def test_an_environment_file_that_is_no_bash_is_refused_by_name(site: Path) -> None:
    (site / "site.sh").write_text("if then\n")
    with pytest.raises(NotHere, match=r"the environment file .*site.sh cannot be read or is no bash"):
        asyncio.run(interpreters.find("site", needs_torch=False))


@pytest.mark.parametrize(
    ("words", "files", "message"),
    [(["site"], [], "--profile 'site' is not NAME=WORDS"), (["site= "], [], "--profile 'site= ' is not NAME=WORDS"),
     ([], ["site=/no/such/file"], "is not NAME=PATH of a file")],
)  # fmt: skip
def test_what_is_no_profile_is_refused_at_start_up(words: list[str], files: list[str], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        inputs.profiles(words, files)


def test_a_path_inside_a_profile_need_not_exist_here() -> None:
    assert inputs.pythons(["img=/opt/conda/bin/python"], {"img"}) == {"img": "/opt/conda/bin/python"}
    with pytest.raises(BadRequest, match="does not exist"):
        inputs.pythons(["img=/opt/conda/bin/python"])


def test_a_killed_server_takes_a_worker_behind_a_wrapper_with_it(site: Path) -> None:
    server = site / "server.py"
    server.write_text(f"""
import asyncio, sys
from skillserver import inputs, permissions
from skillserver.jobs import manager
from skillserver.procedures.guarded_run import run_guarded

async def main():
    permissions.grant(permissions.Permissions(login_node=True, profiles=inputs.profiles(["site={site}/wrap exec x"], ["site={site}/site.sh"])))
    async with manager.keeping():
        record = await run_guarded(tool="run_test", arguments={{}}, script={str(FAKE)!r}, settings={{"mode": "hang"}}, shape=dict, device="cpu",
                                   wait_s=0, python="site", needs_torch=False)
        while not record.progress:
            record = await manager.wait(record.job_id, 0.05)
        print(record.job_id, flush=True)
        await asyncio.sleep(100)

asyncio.run(main())
""")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, str(server)], env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        job = child.stdout.readline().strip()
        assert processes.marked(job)
        child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while (left := processes.marked(job)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
