"""One tool on this node, run by srun on each node of a job:  python -m skillserver.one_node --settings-file F

Speaks a worker's lines on stdout (`workers/scripts/protocol.py`), so that whoever submitted the job reads all nodes alike;
its result is what the tool answers on one host, with the node's own devices, locks and refusals. On SIGTERM the tool tells
its best so far. The submitter has asked for permission; what the human allowed comes with the settings. The run's records lie in
the node's own folder, only results kept for `skillserver compare` go to the common history.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from skillserver import contract, permissions, progress, registry
from skillserver.errors import SkillError
from skillserver.permissions import Permissions, Profile

LOCAL = ("state", "job_id", "next", "note", "error", "samples_file", "samples", "plan")


def main() -> int:
    """Run it; 0 with a whole result, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings-file", type=Path, required=True, help="tool, arguments, home, and what is allowed")
    settings = json.loads(parser.parse_args().settings_file.read_text(encoding="utf-8"))
    say(type="hello", python=platform.python_version(), executable=sys.executable, host=socket.gethostname(), pid=os.getpid())
    allow(settings)
    try:
        answer = contract.document(asyncio.run(called(settings["tool"], settings["arguments"])))
    except SkillError as refused:
        say(type="failure", **refused.document(), kind=type(refused).__name__)
        return 1
    whole = answer["state"] == "done"
    if whole or answer.get("partial"):
        say(type="result", payload={name: value for name, value in answer.items() if name not in LOCAL}, stopped=not whole)
    if answer.get("error"):
        say(type="failure", **answer["error"], kind="WorkerFailed")
    return 0 if whole else 1


def allow(settings: dict[str, Any]) -> None:
    """The permissions that came with the job, and a home below the working directory."""
    profiles = {name: Profile(tuple(prefix), file) for name, (prefix, file) in settings["profiles"].items()}
    permissions.grant(Permissions(busy=settings["busy"], max_minutes=settings["max_minutes"], pythons=settings["pythons"], profiles=profiles))
    home = Path.cwd() / "home"
    home.mkdir(exist_ok=True)
    history = Path(settings["home"]) / "history"
    history.mkdir(exist_ok=True)
    if not (home / "history").exists():
        (home / "history").symlink_to(history)
    os.environ["SKILLSERVER_HOME"] = str(home)


async def called(tool: str, arguments: dict[str, Any]) -> Any:
    """What the tool answers; SIGTERM cuts it short."""
    with progress.listening(reported):
        task = asyncio.ensure_future(registry.load(tool).call(arguments))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task


async def reported(done: float, total: float | None, message: str) -> None:
    """One progress line."""
    say(type="progress", done=done, total=total, message=message)


def say(**line: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(line, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
