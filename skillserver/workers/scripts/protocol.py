"""How a worker script talks to whoever started it: JSON lines on stdout, words for people on stderr.

Standard library only, Python 3.9 syntax, imported by its plain name from the same folder. Knows nothing of
skillserver; runs by hand as well, and then prints the same lines to the terminal.

    hello     {"type": "hello", "python", "executable", "torch", "pid", "host", "rank", "world_size"}     first, from `start`
    progress  {"type": "progress", "done", "total", "message", "partial"?}      `partial` is the best result so far
    result    {"type": "result", "payload", "stopped", "torch"}                 once, from rank 0; `stopped` = the best so far only
    failure   {"type": "failure", "code", "message", "next", "kind", "rank"}    from any rank; the process then ends with 1

Under torchrun every rank calls every function; only rank 0's hello, progress and result reach the wire. Whoever sends
SIGTERM gives the worker about 5 s: look at `stopping()` between steps, then leave the loop and send the `result` so far.
With collectives the ranks must agree on stopping (all-reduce the flag), or they hang each other.

>>> settings = protocol.start()           # before torch is imported, so that nobody's death goes unnoticed
>>> for number, shape in enumerate(settings["shapes"]):
...     if protocol.stopping(): break
...     protocol.progress(number, len(settings["shapes"]), "best 1.9 TFLOPS", partial={"best": best})
>>> protocol.result({"best": best})
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
import traceback

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ORPHANED = 3  # exit status of a worker whose starter was gone before it came up
PROGRESS_EVERY_S = 0.2  # a loop may report every step; the reader needs no more than this

_lock = threading.Lock()
_wire = 1
_stopping = False
_last_progress = 0.0


def rank():
    """This process's rank, 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def world_size():
    """Number of ranks, 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start(argv=None):
    """Open the wire, tie this process's life to its starter's, say hello; returns the settings ({} without any)."""
    settings = _settings(argv)
    _open_wire()
    arm()
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.excepthook = _on_exception
    if rank() == 0:
        _send({"type": "hello", "python": platform.python_version(), "executable": sys.executable, "torch": _torch_installed(),
               "pid": os.getpid(), "host": socket.gethostname(), "rank": rank(), "world_size": world_size()})  # fmt: skip
    return settings


def stopping():
    """True once SIGTERM came: finish the step at hand, send the result so far, end."""
    return _stopping


def progress(done, total, message, partial=None):
    """How far it has come; `total` may be None. `partial` (a dict) is kept and becomes the result if this run is ended early."""
    global _last_progress
    now = time.monotonic()
    if rank() != 0 or (partial is None and now - _last_progress < PROGRESS_EVERY_S):
        return
    _last_progress = now
    line = {"type": "progress", "done": done, "total": total, "message": message}
    _send(line if partial is None else dict(line, partial=partial))


def result(payload, stopped=None):
    """The one result (a dict); rank 0's is sent, the others' is dropped. `stopped`: it is what there was at SIGTERM (default: `stopping()`)."""
    if rank() == 0:
        torch = sys.modules.get("torch")
        _send({"type": "result", "payload": payload, "stopped": bool(_stopping if stopped is None else stopped),
               "torch": getattr(torch, "__version__", None)})  # fmt: skip


def failure(code, message, next="", kind="failed"):
    """Say why it cannot go on and end with status 1. `kind`: failed, bad_request (the settings are wrong), not_here (the host lacks it)."""
    _send({"type": "failure", "code": code, "message": str(message), "next": next, "kind": kind, "rank": rank()})
    sys.stderr.flush()
    sys.exit(1)


def arm():
    """Die with the process that started this one. Does nothing when started by hand.

    The death signal follows the parent's *thread*, and a parent that died before prctl sends none: so look afterwards.
    """
    if os.environ.pop("SKILLSERVER_WATCHED", "") == "stdin":
        threading.Thread(target=_watch_stdin, daemon=True).start()
    expected = int(os.environ.get("SKILLSERVER_PARENT", "0"))
    if not expected and "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    if sys.platform.startswith("linux"):
        die_with_parent()
    else:
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    if os.getppid() != expected if expected else os.getppid() == 1:
        sys.stderr.write("the process that started this worker is gone; ending\n")
        os._exit(ORPHANED)


def die_with_parent():
    """Linux: SIGKILL when the thread that started this process ends. Also the `preexec_fn` for a worker's own children (fio, a server)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch_stdin():
    """Behind a wrapper (a container, an environment file) the starter's death shows as the end of stdin."""
    while os.read(0, 4096):
        pass
    os._exit(ORPHANED)


def _watch_parent(parent):
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(ORPHANED)


def _settings(argv):
    """The settings as a dict, from the text or the file named on the command line."""
    main = sys.modules.get("__main__")
    parser = argparse.ArgumentParser(description=getattr(main, "__doc__", None), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="", metavar="JSON", help="the settings as one JSON object")
    parser.add_argument("--settings-file", default="", metavar="PATH", help="the same from a file")
    parsed = parser.parse_args(argv)
    text = parsed.settings
    if parsed.settings_file:
        with open(parsed.settings_file, encoding="utf-8") as file:  # noqa: PTH123
            text = file.read()
    settings = json.loads(text) if text else {}
    if not isinstance(settings, dict):
        parser.error("the settings must be a JSON object")
    return settings


def _open_wire():
    """Keep stdout for the lines above and point file descriptor 1 at stderr, where prints and NCCL's log do no harm."""
    global _wire
    sys.stdout.flush()
    _wire = os.dup(1)  # not inherited by this worker's own children
    os.dup2(2, 1)


def _send(line):
    """One line in as few writes as the pipe allows."""
    data = json.dumps(line, default=_plain).encode() + b"\n"
    if "RANK" in os.environ:
        data = b"\n" + data  # another rank may have printed half a line before its `start`
    with _lock:
        try:
            while data:
                data = data[os.write(_wire, data) :]
        except BrokenPipeError:
            os._exit(ORPHANED)


def _plain(value):
    """Scalars of torch and numpy become numbers, anything else its text."""
    return value.item() if hasattr(value, "item") else str(value)


def _on_sigterm(number, frame):
    global _stopping
    _stopping = True


def _on_exception(kind, value, trace):
    """An uncaught exception: the trace for people, one failure line for the reader."""
    traceback.print_exception(kind, value, trace)
    if not issubclass(kind, KeyboardInterrupt):
        words = "{}: {}".format(kind.__name__, value).strip().split("\n")[0]
        _send({"type": "failure", "code": "worker_exception", "message": words[:500], "next": "", "kind": "failed", "rank": rank()})


def _torch_installed():
    """Version of the installed torch, without importing it; None when there is none."""
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
