"""A worker of the tests: standard library only, does what `mode` in its settings says."""

import os
import signal
import subprocess
import sys
import time

import protocol


def hang(settings):
    """Report a best so far, then wait for nothing; `child` leaves a process in a session of its own beside it."""
    if settings.get("child"):
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    if settings.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    protocol.progress(1, 3, "first of three", partial={"best": 1})
    while not protocol.stopping():
        time.sleep(0.01)
    protocol.result({"best": 2, "said": "on SIGTERM"})


def main():
    print("a print before start")
    sys.stdout.flush()
    settings = protocol.start()
    mode = settings.get("mode", "success")
    print("a stray print")
    os.system("echo a stray program")
    if mode == "success":
        protocol.progress(1, 1, "one of one")
        protocol.result({"settings": settings, "environment": sorted(os.environ), "large": "x" * settings.get("size", 0)})
    elif mode == "failure":
        protocol.failure("no_such_dtype", "dtype 'x' is not one of this GPU's", next="pass dtype='bf16'", kind=settings.get("kind", "failed"))
    elif mode == "exception":
        raise RuntimeError("CUDA error: out of memory\nand a second line")
    elif mode == "silent":
        print("last words", file=sys.stderr)
    elif mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "crash_after_result":
        protocol.result({"best": 1})
        os.abort()
    elif mode == "hang":
        hang(settings)


main()
