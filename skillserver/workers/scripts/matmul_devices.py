"""The same measurement on several devices, a process of `torch_matmul.py` each, at once or in turn; one result line.

    python matmul_devices.py --settings '{"devices": ["cuda:0", "cuda:1"], "in_turn": false, "budget_s": 60}'

Settings: devices (or device, "cuda:0,cuda:1" or "all"), in_turn, and those of torch_matmul.py for all of them. At once is
how training loads a node: power and cooling are shared. In turn each device has the node to itself and its part of
budget_s. The payload is {runs: [one payload a device], failed: [{device, code, message}], in_turn}. Standard library
only. Knows processes and lines; compares nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import protocol

SCRIPT = str(Path(__file__).with_name("torch_matmul.py"))
LOOK_EVERY_S = 0.1


class Child:
    """One device's process and what it said so far."""

    def __init__(self, device, settings, folder, name):
        self.device, self.said, self.share, self.words = device, {}, 0.0, ""
        self.raw = str(Path(folder) / (name + ".samples.json"))
        self.file = Path(folder) / (name + ".json")
        self.file.write_text(json.dumps(dict(settings, device=device, raw_file=self.raw)))
        self.process = self.reader = None

    def start(self):
        """Start it from this thread, which lives as long as this process: a death signal follows the thread."""
        environment = dict(os.environ, SKILLSERVER_PARENT=str(os.getpid()))
        command = [sys.executable, "-u", SCRIPT, "--settings-file", str(self.file)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, universal_newlines=True, preexec_fn=protocol.die_with_parent
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self.said[event.get("type")] = event
            if event.get("type") == "progress":
                self.share = (event.get("done") or 0.0) / event["total"] if event.get("total") else self.share
                self.words = event.get("message", "")
                self.said["partial"] = event.get("partial") or self.said.get("partial")

    def is_running(self):
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def payload(self):
        """Its result, or the best so far of one that was ended; None without any."""
        result = self.said.get("result")
        return result["payload"] if result else self.said.get("partial")

    def failure(self):
        """Why it has no result."""
        said = self.said.get("failure") or {}
        status = self.process.returncode if self.process else None
        return {"device": self.device, "code": said.get("code", "no_result"), "kind": said.get("kind", "failed"), "next": said.get("next", ""),
                "message": said.get("message") or "its process ended with status {0} without a result".format(status)}  # fmt: skip


def main(argv=None):
    """Run them all and send one result."""
    settings = protocol.start(argv)
    names, in_turn = chosen(settings), bool(settings.pop("in_turn", False))
    raw_file, settings["budget_s"] = settings.pop("raw_file", None), float(settings.get("budget_s") or 15)
    if in_turn:
        settings["budget_s"] /= len(names)
    with tempfile.TemporaryDirectory() as folder:
        children = [Child(name, settings, folder, str(place)) for place, name in enumerate(names)]
        for group in [[child] for child in children] if in_turn else [children]:
            follow(group, children)
        keep_raw(raw_file, children)
    send(children, in_turn)


def chosen(settings):
    """The devices by name; "all" and "each" are asked of torch, in a process of its own."""
    device = settings.pop("device", "") or "all"
    names = settings.pop("devices", None) or device.split(",")
    if names not in (["all"], ["each"]):
        return names
    counted = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], stdout=subprocess.PIPE)
    count = int(counted.stdout.strip() or 0)
    if not count:
        protocol.failure("no_such_device", "torch in this environment sees no GPU", next="pass device='cpu'", kind="not_here")
    return ["cuda:{0}".format(place) for place in range(count)]


def follow(group, children):
    """Start a group, tell how far all have come, and end it when this process is told to stop."""
    if protocol.stopping():
        return
    for child in group:
        child.start()
    told = False
    while any(child.is_running() for child in group):
        if protocol.stopping() and not told:
            told = True
            for child in group:
                child.process.terminate()
        tell(children)
        time.sleep(LOOK_EVERY_S)
    for child in group:
        child.reader.join()
        child.share = 1.0


def tell(children):
    """One line for all: the mean share of their budgets and who says what."""
    words = "; ".join("{0} {1}".format(child.device, child.words) for child in children if child.words)
    ended = [child.payload() for child in children if child.payload()]
    partial = {"runs": ended, "failed": [], "partial": True} if ended else None
    protocol.progress(sum(child.share for child in children) / len(children), 1.0, words or "starting", partial=partial)


def send(children, in_turn):
    """The one result; a failure when no device has one."""
    runs = [child.payload() for child in children if child.payload()]
    failed = [child.failure() for child in children if not child.payload()]
    if not runs:
        first = failed[0]
        protocol.failure(first["code"], "{0}: {1}".format(first["device"], first["message"]), next=first["next"], kind=first["kind"])
    protocol.result({"runs": runs, "failed": failed, "in_turn": in_turn, "partial": any(run.get("partial") for run in runs)})


def keep_raw(name, children):
    """Every device's samples in one file."""
    if not name:
        return
    rows = []
    for child in children:
        file = Path(child.raw)
        rows += [dict(row, device=child.device) for row in json.loads(file.read_text())] if file.is_file() else []
    part = Path(name + ".part")
    part.write_text(json.dumps(rows))
    part.replace(name)


if __name__ == "__main__":
    sys.exit(main())
