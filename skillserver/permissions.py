"""What the human who started this process allowed. Never an argument of a tool: an agent cannot grant itself anything.

A process has one Permissions, set once at start-up by `grant`; scripts that import the tools get the defaults,
which allow local runs on an idle device and nothing else. HTTP starts from `TEXT_ONLY`.

>>> require_run("run_mamf")            # NotHere when served as text only
>>> readable("/data/train.log")        # the Path, or NotHere / BadRequest
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from skillserver.errors import BadRequest, NotHere


@dataclass(frozen=True)
class Profile:
    """How to enter a training environment: words before the interpreter (`apptainer exec --nv IMAGE`), a file that bash sources first.

    `{run}` in a word stands for the folder of the run, which a container must be able to see.
    """

    prefix: tuple[str, ...] = ()
    env_file: str = ""


@dataclass(frozen=True)
class Permissions:
    """Limits for one process; see DESIGN section 5. `read_roots=None` means any file the user can read.

    `hosts` may be called by a benchmark wherever they are; `private_hosts` adds loopback and private networks.
    """

    run: bool = True
    read_roots: tuple[Path, ...] | None = None
    busy: bool = False
    login_node: bool = False
    max_nodes: int = 1
    max_minutes: float = 30.0
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    pythons: dict[str, str] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    pythons_by_name_only: bool = False
    hosts: tuple[str, ...] = ()
    private_hosts: bool = True


ENDLESS = ("kmsg", "trace_pipe")  # regular files to stat, whose readers wait for ever and take from others what they read
TEXT_ONLY = Permissions(run=False, read_roots=(), pythons_by_name_only=True, private_hosts=False)
_granted = Permissions()


def grant(permissions: Permissions) -> None:
    """Set the limits of this process; called once, at start-up."""
    global _granted
    _granted = permissions


def current() -> Permissions:
    """The limits in force."""
    return _granted


def require_run(what: str) -> None:
    """Raises NotHere unless this process may start programs on the host."""
    if not _granted.run:
        raise NotHere("not_permitted", f"{what} runs on this host and this server was started without permission for it",
                      next="ask your user to start the server with --allow-run, or run it over stdio")  # fmt: skip


def readable(path: str | Path) -> Path:
    """The resolved path of a file that can be opened, under a permitted root. Raises NotHere or BadRequest."""
    roots, found = _granted.read_roots, _resolved(path)
    if roots is not None and not (found and any(found.is_relative_to(root.resolve()) for root in roots)):
        raise NotHere("path_not_permitted", f"{str(path)!r} is outside the folders this server may read",
                      next="pass the text itself, or ask your user to start the server with --allow-path", valid=map(str, roots))  # fmt: skip
    if not found or not os.path.isfile(found):  # noqa: PTH113 - Path.is_file raises for a name too long or a folder that may not be read
        raise BadRequest("no_such_file", f"{str(path)!r} is not a file on the server's host", next="check the path, or pass the text itself")
    if found.name in ENDLESS and found.parts[1:2] in (("proc",), ("sys",)):
        raise BadRequest("no_such_file", f"{str(path)!r} is a stream of the kernel, which has no end", next="pass the text itself (dmesg)")
    try:
        opened = os.open(found, os.O_RDONLY | os.O_NONBLOCK)  # a reader that would wait is refused
        try:
            os.read(opened, 1)
        finally:
            os.close(opened)
    except OSError as problem:
        raise BadRequest("unreadable_file", f"{str(path)!r} cannot be read: {problem.strerror}",
                         next="let the user of this server read it, or pass the text itself") from problem  # fmt: skip
    return found


def files_of(path: str | Path, pattern: str = "*", *, deep: int = 1, most: int = 10_000) -> list[Path]:
    """A permitted file, or the permitted files of a folder that match `pattern`, down to `deep` levels, hidden ones left out.

    Raises NotHere and BadRequest; a folder without such a file is an error too.
    """
    try:
        return [readable(path)]
    except BadRequest:  # permitted, but no file
        folder = _resolved(path)
        if not folder or not os.path.isdir(folder):  # noqa: PTH112 - like isfile above, it never raises
            raise
    found = [file for depth in range(deep) for file in folder.glob("*/" * depth + pattern) if os.path.isfile(file) and file.name[:1] != "."]  # noqa: PTH113
    if not found:
        raise BadRequest("empty_folder", f"{str(path)!r} holds no file {pattern}", next="check the folder, or name the files")
    return [readable(file) for file in sorted(found)[:most]]


def writable_folder(path: str | Path) -> Path:
    """The real path of a folder that a benchmark may write into and clean up again. Raises NotHere or BadRequest.

    Permitted is what the user can write, over HTTP only below a root of `--allow-path`; read-only file systems and those
    of the kernel are refused by the worker, which sees the mount.
    """
    roots, found = _granted.read_roots, _resolved(path)
    if roots is not None and not (found and any(found.is_relative_to(root.resolve()) for root in roots)):
        raise NotHere("path_not_permitted", f"{str(path)!r} is outside the folders this server may use",
                      next="name another folder, or ask your user to start the server with --allow-path", valid=map(str, roots))  # fmt: skip
    if not found or not str(path).strip() or not os.path.isdir(found):  # noqa: PTH112 - Path.is_dir raises for a name too long
        raise BadRequest("no_such_folder", f"{str(path)!r} is not a folder on this host", next="name a folder that you may write to")
    return found


def _resolved(path: str | Path) -> Path | None:
    """The real path; None for what can be none: a NUL in it, ~ of an unknown user, relative to a folder that was deleted."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def without_running(permissions: Permissions) -> Permissions:
    """The same, but nothing may be started (`serve --read-only`)."""
    return replace(permissions, run=False)
