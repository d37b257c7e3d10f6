"""What the nodes of a job left in its run folder: one folder a node, out.jsonl, stderr.txt, and status when it was done.

The same lines as on a worker's stdout (`workers/scripts/protocol.py`); what is cut or foreign is passed over. A requeued job
starts a new folder; the newest try counts, an older one only for a node that says nothing in the newest. Reads only.

>>> answers(Path("/shared/runs/a"), ["n1", "n2"])["n2"].status
0
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillserver.cluster import slurm_batch
from skillserver.cluster.slurm_text import expand
from skillserver.workers.run import LAST_WORDS, ending

Document = dict[str, Any]
LARGEST_BYTES = 32 * 2**20
SRUN_EXIT = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (.+)")
SRUN_LOST = re.compile(r"srun: error: .*\bNode failure on (\S+)")
UNSEEN = re.compile(r"skillserver: (\S+) cannot see ")
SHOWN_WORDS = 600
NOT_STARTED = (126, 127)  # what bash answers for a program that it cannot start, or does not find


@dataclass
class NodeAnswer:
    """One node. `payload` is its result, `partial` the best so far; `status` is None while it runs or when it vanished."""

    node: str
    payload: Document | None = None
    partial: Document | None = None
    hello: Document = field(default_factory=dict)
    failure: Document | None = None
    message: str = ""
    stopped: bool = False
    status: int | None = None
    words: str = ""

    @property
    def best(self) -> Document | None:
        """The result, else the best so far."""
        return self.payload or self.partial

    @property
    def whole(self) -> bool:
        """A result that nobody cut short."""
        return self.payload is not None and not self.stopped

    @property
    def error(self) -> str:
        """Why it has no whole result, in words; "" when it has one, was told to stop, or still runs."""
        if self.payload is not None:
            return ""
        if self.failure:
            return f"{self.failure.get('code', 'failed')}: {self.failure.get('message', '')}"
        if self.status is None:
            return ""
        if self.status in NOT_STARTED and not self.hello:
            return f"its program could not be started on this node: {self.words or 'no word why'}"
        return f"{ending(self.status if self.status < 128 else 128 - self.status)} without a result. Last words: {self.words or 'none'}"


def answers(folder: Path, nodes: Iterable[str]) -> dict[str, NodeAnswer]:
    """Every node named, in that order; a node that wrote nothing has an empty answer."""
    tries = [folder / "nodes" / str(number) for number in starts(folder)]
    told = {}
    for node in nodes:
        found = [_read(node, place / node) for place in tries if (place / node).is_dir()]
        told[node] = next((one for one in found if one.best or one.failure), found[0] if found else NodeAnswer(node))
    return told


def starts(folder: Path) -> list[int]:
    """The tries of the job, newest first."""
    return sorted((int(name) for name in _listed(folder / "nodes") if name.isdigit()), reverse=True)


def wrote(folder: Path) -> list[str]:
    """Nodes that wrote something in any try, by name."""
    return sorted({name for number in starts(folder) for name in _listed(folder / "nodes" / str(number))})


def over(folder: Path, start: int) -> bool:
    """Whether the batch script of that try has come to its end."""
    return (folder / f"{slurm_batch.ENDED}.{start}").exists()


def batch_words(folder: Path) -> list[str]:
    """Lines of the batch script, srun and slurmstepd; [] when there are none."""
    return [line.strip() for line in _text(folder / slurm_batch.OUTPUT).splitlines() if line.strip()]


def lost(words: Iterable[str]) -> list[str]:
    """Nodes that srun lost."""
    return [node for line in words if (found := SRUN_LOST.search(line)) for node in expand(found[1])]


def unseen(words: Iterable[str]) -> list[str]:
    """Nodes that said they cannot see the run folder."""
    return sorted({found[1] for line in words if (found := UNSEEN.search(line))})


def _read(node: str, place: Path) -> NodeAnswer:
    told = NodeAnswer(node)
    for line in _text(place / "out.jsonl").splitlines():
        _take(told, line)
    status = _text(place / "status").strip()
    told.status = int(status) if status.isdigit() else None
    if not told.whole:
        last = [line.strip() for line in _text(place / "stderr.txt").splitlines() if line.strip()][-LAST_WORDS:]
        told.words = " | ".join(last)[-SHOWN_WORDS:]
    return told


def _take(told: NodeAnswer, line: str) -> None:
    try:
        event = json.loads(line)
    except ValueError:
        return
    kind = event.get("type") if isinstance(event, dict) else None
    if kind == "hello":
        told.hello = {name: value for name, value in event.items() if name != "type"}
    elif kind == "progress":
        told.partial, told.message = event.get("partial") or told.partial, str(event.get("message", ""))
    elif kind == "result" and isinstance(event.get("payload"), dict):
        told.payload, told.stopped = event["payload"], bool(event.get("stopped"))
        told.hello["torch"] = event.get("torch") or told.hello.get("torch")
    elif kind == "failure":
        told.failure = told.failure or event


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names only; on NFS it also refreshes what the client knows of the folder
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(LARGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""
