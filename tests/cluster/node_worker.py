"""A worker of the tests on nodes: standard library only, does what `mode` in its settings says, on `where` (a node) or everywhere."""

import os
import signal
import time
from pathlib import Path

import protocol

NODE = os.environ.get("SLURMD_NODENAME", "")


def rate(seconds):
    """Short waits a second: a node that is stopped now and then has fewer, and neighbours on the same cores hardly matter."""
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(0.02)
        done += 1
    return done / seconds


def told(value):
    return {"best": {"tflops": value}, "device_name": "a CPU", "node": NODE}


def main():
    settings = protocol.start()
    mode = settings["mode"] if settings.get("where") in (None, NODE) else "value"
    protocol.progress(0, 2, "begun on " + NODE, partial=told(1.0))
    if settings.get("mark"):
        Path(settings["mark"] + NODE + "." + os.environ["START"]).touch()
    if mode == "value":
        protocol.result(told(rate(settings["seconds"]) if settings.get("seconds") else 2.0))
    elif mode == "surroundings":
        passed = {name: value for name, value in os.environ.items() if name.startswith("NCCL_FROM")}
        protocol.result(dict(told(2.0), surroundings=dict(passed, folder=str(Path.cwd()))))
    elif mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "failure":
        protocol.failure("no_such_dtype", "dtype 'x' is not one of this CPU's", next="pass dtype='fp32'", kind="bad_request")
    elif mode == "wait" and os.environ["START"] == "0":
        while not protocol.stopping():
            time.sleep(0.02)
        protocol.result(told(1.5))
    else:
        protocol.result(told(3.0))


main()
