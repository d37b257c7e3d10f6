"""The measured parts of a node's acceptance test, one after the other, each in a process of its own.

    python node_parts.py --settings '{"parts": ["matmul", "correctness"], "devices": ["cpu"], "budget_s": 40}'

Settings: parts (matmul, memory, transfers, peers, correctness, all_reduce, storage), devices (["cpu"] or every
accelerator by name), budget_s (seconds in all, starts of torch not counted; 100), folder and bytes (storage sample),
python_has_torch (false leaves out what needs it), raw_file.

matmul runs on all devices at once, as training does, so that power and cooling are shared. A part that fails, or does
not end in its time, is told as such and the next one runs. Standard library only: a broken torch is a finding here, not
an end. Does not know what a good number is.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import protocol

FOLDER = Path(__file__).resolve().parent
BUDGET_S = 100.0
SHARES = {"matmul": 3.0, "bandwidth": 3.0, "all_reduce": 2.0, "storage": 1.5}  # of the budget, before it is cut to what runs
IN_ONE = ("memory", "transfers", "peers", "correctness")  # parts of torch_bandwidth.py
START_S = 90.0  # torch from a cold network disk
GRACE_S = 3.0
GLOO_RANKS = 2


def main(argv=None):
    """Run every part that was asked for; one result, with what failed and what was left out."""
    settings = protocol.start(argv)
    node = {"parts": {}, "skipped": {}, "partial": False}
    steps = planned(settings, node["skipped"])
    weight = sum(SHARES[name] for name, _ in steps) or 1.0
    budget_s = max(2.0, float(settings.get("budget_s") or BUDGET_S))
    for number, (name, commands) in enumerate(steps):
        if protocol.stopping():
            break
        protocol.progress(number, len(steps), name, partial=dict(node, partial=True))
        began = time.monotonic()
        seconds = budget_s * SHARES[name] / weight
        runs = together([command(seconds) for command in commands], seconds * 1.5 + START_S, (number, len(steps), name))
        node["parts"][name] = {"runs": runs, "seconds": round(time.monotonic() - began, 1)}
    node["partial"] = protocol.stopping()
    keep_raw(settings.get("raw_file"), node)
    protocol.result(node)


def planned(settings, skipped):
    """[(step, [a function of the seconds allowed that gives a command])]; fills `skipped` with reasons."""
    wanted, devices = list(settings.get("parts") or []), settings.get("devices") or ["cpu"]
    steps = []
    if "storage" in wanted:
        wanted.remove("storage")
        sample = {"folder": settings.get("folder"), "bytes": settings.get("bytes")}
        steps.append(("storage", [lambda seconds: script("storage_sample.py", dict(sample, budget_s=seconds))]))
    if wanted and not settings.get("python_has_torch", True):
        skipped.update((part, "this Python has no torch") for part in wanted)
        wanted = []
    if "matmul" in wanted:
        steps.append(("matmul", [one_matmul(device) for device in devices]))
    copies = [part for part in IN_ONE if part in wanted]
    if copies:
        steps.append(("bandwidth", [lambda seconds: script("torch_bandwidth.py", {"devices": devices, "parts": copies, "budget_s": seconds})]))
    if "all_reduce" in wanted:
        steps += collective(devices, skipped)
    return sorted(steps, key=lambda step: list(SHARES).index(step[0]))


def one_matmul(device):
    """The command of one device's matmul search."""
    return lambda seconds: script("torch_matmul.py", {"device": device, "dtype": "auto", "budget_s": seconds})


def collective(devices, skipped):
    """The all-reduce over all accelerators, or between two ranks of the CPU."""
    on_cpu = devices[0] == "cpu"
    if not on_cpu and len(devices) < 2:
        skipped["all_reduce"] = "one accelerator here; a collective needs two"
        return []
    ranks = GLOO_RANKS if on_cpu else len(devices)
    settings = {"collective": "all_reduce", "backend": "gloo" if on_cpu else "auto", "device": "cpu" if on_cpu else "auto"}
    return [("all_reduce", [lambda seconds: script("torch_collective.py", dict(settings, budget_s=seconds), ranks)])]


def script(name, settings, ranks=0):
    """The command line of a sibling script, under the launcher for several ranks."""
    launcher = [str(FOLDER / "launch.py"), "--nproc", str(ranks)] if ranks else []
    return [sys.executable, "-u", *launcher, str(FOLDER / name), "--settings", json.dumps(settings)]


def together(commands, limit_s, place):
    """Run commands side by side; for each its payload under `result`, or `failure` with code and message."""
    said = queue.Queue()
    children = [started(command, len(commands)) for command in commands]
    for number, child in enumerate(children):
        threading.Thread(target=follow, args=(number, child, said), daemon=True).start()
    runs, open_ = [{} for _ in children], set(range(len(children)))
    ends = time.monotonic() + limit_s
    while open_ and time.monotonic() < ends and not protocol.stopping():
        try:
            number, event = said.get(timeout=0.2)
        except queue.Empty:
            continue
        take(runs[number], event, place)
        if event is None:
            open_.discard(number)
    late = not protocol.stopping() and bool(open_)
    end([children[number] for number in open_])
    drain(said, runs, place)
    return [closed(run, child, late and number in open_, limit_s) for number, (run, child) in enumerate(zip(runs, children))]  # noqa: B905


def started(command, count):
    """A child that ends when this process does; cores are shared out between those that run at once."""
    environment = dict(os.environ, SKILLSERVER_PARENT=str(os.getpid()))
    if count > 1:
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // count))
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, preexec_fn=protocol.die_with_parent)


def follow(number, child, said):
    """Pass on every line of a child, and None at its end."""
    for line in child.stdout:
        try:
            said.put((number, json.loads(line)))
        except ValueError:
            continue
    child.wait()
    said.put((number, None))


def take(run, event, place):
    """Keep what matters of one line."""
    kind = event.get("type") if isinstance(event, dict) else None
    if kind == "result":
        run["result"] = event["payload"]
    elif kind == "failure":
        run.setdefault("failure", {key: event.get(key) for key in ("code", "message", "kind", "rank")})
    elif kind == "progress":
        run["so_far"] = event.get("partial") or run.get("so_far")
        protocol.progress(place[0], place[1], "{0}: {1}".format(place[2], event.get("message", "")))


def drain(said, runs, place):
    """What the children said after they were told to end."""
    while not said.empty():
        number, event = said.get()
        take(runs[number], event, place)


def end(children):
    """SIGTERM, a few seconds, SIGKILL. One that the kernel cannot kill is left: waiting would hang this process too."""
    for child in children:
        child.terminate()
    ends = time.monotonic() + GRACE_S
    while any(child.poll() is None for child in children) and time.monotonic() < ends:
        time.sleep(0.05)
    for child in children:
        if child.poll() is None:
            child.kill()


def closed(run, child, late, limit_s):
    """The record of one run."""
    told = {"result": run.get("result") or run.get("so_far")}
    if late:
        told["failure"] = {"code": "too_long", "kind": "failed", "message": "no result in {0:.0f} s".format(limit_s)}
    elif "failure" in run:
        told["failure"] = run["failure"]
    elif "result" not in run and not protocol.stopping():
        told["failure"] = {"code": "worker_failed", "kind": "failed", "message": "ended with status {0} without a result".format(child.returncode)}
    return told


def keep_raw(name, node):
    """Everything that was said as JSON, written aside and renamed."""
    if not name:
        return
    part = Path(name + ".part")
    part.write_text(json.dumps(node))
    part.replace(name)


if __name__ == "__main__":
    sys.exit(main())
