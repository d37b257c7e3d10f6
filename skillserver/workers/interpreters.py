"""Which Python runs a worker: the user's training environment, not ours.

In this order: the call's `python` (a name the human configured, or a path), then the first `serve --python NAME=PATH`,
then VIRTUAL_ENV and CONDA_PREFIX, then the interpreter that runs skillserver. The first that has torch wins; the one
that a call names is the only one tried. A name may also be a profile (`profiles.py`): words before the interpreter.
torch is never imported for this: the child reads its metadata and version.py.

>>> find("train")
Interpreter(path='/envs/train/bin/python', source="python='train'", python='3.12.4', torch='2.13.0', cuda='13.0', hip='')
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skillserver import paths, permissions, processes
from skillserver.errors import BadRequest, NotHere
from skillserver.workers import profiles

PROBE_DEADLINE_S = 30.0  # a cold conda environment on NFS takes seconds to start
OLDEST = (3, 9)  # what the worker scripts are written in
OLDEST_TORCH = (2, 4)  # what they call
# The path is cleaned before anything else is imported: the user's folder may hold a json.py. Runs in any Python since 2.7.
PROBE = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json
found = {"python": sys.version.split()[0], "torch": "", "cuda": "", "hip": ""}
if sys.version_info < (3, 9):
    print(json.dumps(found))
    sys.exit()
import importlib.metadata, importlib.util, re
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    with open(re.sub(r"__init__\\.py$", "version.py", spec.origin)) as file:
        text = file.read()
    def read(name):
        match = re.search(r"^" + name + r"\\b[^=]*=\\s*['\\"](.*)['\\"]", text, re.M)
        return match.group(1) if match else ""
    found.update(torch=read("__version__") or importlib.metadata.version("torch"), cuda=read("cuda"), hip=read("hip"))
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can run a worker. `torch` is "" when it has none; `cuda` and `hip` are the versions torch was built for."""

    path: str
    source: str
    python: str
    torch: str
    cuda: str
    hip: str
    prefix: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """For a result: which interpreter, and why this one."""
        return asdict(self)


async def find(python: str | None = None, *, needs_torch: bool = True) -> Interpreter:
    """The interpreter for this call. Raises BadRequest (unknown name or path) or NotHere (none has torch, or not permitted)."""
    looked: list[str] = []
    profile = profiles.chosen(python)
    prefix = profiles.words(profile[1]) if profile else ()
    for path, source in profiles.interpreters(profile[0]) if profile else candidates(python):
        found = await asyncio.to_thread(probe, path, source, prefix)
        if isinstance(found, Interpreter):
            found = _unfit(found) if needs_torch else found
        if isinstance(found, Interpreter):
            return found
        looked.append(f"{path} ({source}): {found}")
    advice = "pass python= with the environment you train in, or pip install 'skillserver[torch]'"
    if profile:
        advice = f"ask your user to let profile {profile[0]} put its python on PATH (--env-file), or to name it (--python {profile[0]}=PATH)"
    raise NotHere("no_torch" if needs_torch else "no_python", f"looked at {'; '.join(looked) or 'nothing'}", next=advice)


def _unfit(found: Interpreter) -> Interpreter | str:
    """The interpreter, or why its torch does not do; a version that is no number is taken as a build of one's own."""
    if not found.torch:
        return "no torch"
    version = re.match(r"(\d+)\.(\d+)", found.torch)
    if version and (int(version[1]), int(version[2])) < OLDEST_TORCH:
        return f"torch {found.torch} is too old, workers need {'.'.join(map(str, OLDEST_TORCH))}"
    return found


def candidates(python: str | None) -> list[tuple[str, str]]:
    """(path, where it came from), in order, each path once."""
    if python:
        return [(_named(python), f"python={python!r}")]
    unique: dict[str, str] = {}
    for path, source in _defaults():
        unique.setdefault(path, source)
    return list(unique.items())


def _defaults() -> Iterator[tuple[str, str]]:
    for name, place in list(permissions.current().pythons.items())[:1]:
        yield _binary(Path(place).expanduser()) or place, f"serve --python {name}"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if place := paths.environment(variable):
            yield _binary(Path(place)) or f"{place}/bin/python", variable
    yield sys.executable, "the interpreter that runs skillserver"


def _named(python: str) -> str:
    """The binary for a configured name, an environment's folder or a python."""
    allowed = permissions.current()
    if python in allowed.pythons:
        place = allowed.pythons[python]
        return _binary(Path(place).expanduser()) or place
    if allowed.pythons_by_name_only:
        raise NotHere("python_not_permitted", f"python {python!r} is not one of the configured names", valid=[*allowed.pythons, *allowed.profiles],
                      next="pass a configured name, or ask your user to start the server with --python NAME=PATH")  # fmt: skip
    if binary := _binary(Path(os.path.expanduser(python))):  # noqa: PTH111 - Path.expanduser raises for an unknown user
        return binary
    raise BadRequest("no_such_python", f"python {python!r} is neither a configured name, an environment's folder nor a python",
                     valid=[*allowed.pythons, *allowed.profiles],
                     next="pass the path of the environment you train in, such as /envs/train")  # fmt: skip


def _binary(place: Path) -> str | None:
    """Absolute but with its links kept: a virtual environment's python is a link, and following it leaves the environment."""
    for binary in (place, place / "bin" / "python", place / "bin" / "python3"):
        if os.path.isfile(binary):  # noqa: PTH113 - Path.is_file raises for a name too long or a folder that may not be read
            return os.path.abspath(binary)  # noqa: PTH100
    return None


def probe(path: str, source: str = "", prefix: tuple[str, ...] = ()) -> Interpreter | str:
    """What an interpreter has, or why it cannot be used. Takes about as long as starting a bare Python."""
    rc, out, err = processes.run_with_deadline([*profiles.filled(prefix, paths.home()), path, "-c", PROBE], PROBE_DEADLINE_S)
    if rc is None:
        return f"did not start within {PROBE_DEADLINE_S:g} s"
    try:
        found = Interpreter(path=path, source=source, prefix=prefix, **json.loads(out))
    except (ValueError, TypeError):
        return f"cannot run ({(err.strip().splitlines() or [f'status {rc}, no answer'])[-1]})"
    if tuple(map(int, found.python.split(".")[:2])) < OLDEST:
        return f"Python {found.python} is too old, workers need {'.'.join(map(str, OLDEST))}"
    return found
