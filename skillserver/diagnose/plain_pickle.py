"""Pickles of plain data from strangers: lists, dicts, numbers and text come out, everything else is refused.

A pickle is a program. Flight Recorder dumps and memory snapshots hold plain containers only, so a reader that refuses
to look up any class or function reads them all and can run nothing. Knows pickles and files; not what they say. Imports
the standard library only: children that read thousands of dumps start with it.

>>> loads(pickle.dumps({"entries": [1, 2.5, "x"]}))
{'entries': [1, 2.5, 'x']}
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

LARGEST_BYTES = 2**30
WAYS_TO_FAIL = (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError, MemoryError)


class NotPlain(ValueError):
    """The file is cut, too large, or would need code to be read; the message says which."""


class PlainUnpickler(pickle.Unpickler):
    """Refuses every name, so that no opcode can reach a callable."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Called for each class or function that a pickle names."""
        raise NotPlain(f"it asks for {module}.{name}; only plain data are read, so nothing was run")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Called for references to objects outside the pickle."""
        raise NotPlain("it refers to objects outside itself")


def load(file: BinaryIO) -> Any:
    """The plain data of one pickle. Raises NotPlain."""
    try:
        return PlainUnpickler(file).load()
    except NotPlain:
        raise
    except WAYS_TO_FAIL as problem:  # a cut or damaged pickle fails in any of these ways
        raise NotPlain(f"it is cut or damaged ({': '.join(filter(None, (type(problem).__name__, str(problem)[:60])))})") from None


def loads(data: bytes) -> Any:
    """The same from memory."""
    return load(io.BytesIO(data))


def load_file(path: Path) -> Any:
    """The same from a file of at most 1 GiB."""
    if (size := path.stat().st_size) > LARGEST_BYTES:
        raise NotPlain(f"it has {size / 2**30:.1f} GiB; at most {LARGEST_BYTES / 2**30:.0f} GiB are read")
    with path.open("rb") as opened:
        return load(opened)
