"""Where files live. The only module that reads os.environ for the product's own settings.

Shipped files (`knowledge_base/`, `SKILL.md`) lie in `skillserver/_shipped/` of a wheel, else in the root of the
checkout. State (jobs, run folders) lies under `home()`, indexes under `cache()`. Nothing here creates a folder.

>>> shipped("knowledge_base").is_dir()
True
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from skillserver.errors import DataBroken

PACKAGE = Path(__file__).resolve().parent


def environment(name: str, default: str = "") -> str:
    """One setting from the environment; "" counts as unset."""
    return os.environ.get(name) or default


def shipped(name: str) -> Path:
    """A file or folder that the product carries. Raises DataBroken when it is nowhere."""
    for place in (PACKAGE / "_shipped" / name, PACKAGE.parent / name):
        if place.exists():
            return place
    raise DataBroken("not_shipped", f"{name} is neither in {PACKAGE / '_shipped'} nor in {PACKAGE.parent}", next="reinstall skillserver")


def data(name: str) -> Path:
    """A table of `skillserver/data/`."""
    return PACKAGE / "data" / name


def home() -> Path:
    """State that outlives a process: SKILLSERVER_HOME, else $XDG_STATE_HOME/skillserver, else ~/.local/state/skillserver."""
    if chosen := environment("SKILLSERVER_HOME"):
        return _expanded(chosen)
    return _expanded(environment("XDG_STATE_HOME", "~/.local/state")) / "skillserver"


def cache() -> Path:
    """What can be rebuilt: SKILLSERVER_CACHE, else under SKILLSERVER_HOME, else $XDG_CACHE_HOME/skillserver."""
    if chosen := environment("SKILLSERVER_CACHE"):
        return _expanded(chosen)
    if chosen := environment("SKILLSERVER_HOME"):
        return _expanded(chosen) / "cache"
    return _expanded(environment("XDG_CACHE_HOME", "~/.cache")) / "skillserver"


def runtime() -> Path:
    """This host's own folder for locks, never on a shared disk: $XDG_RUNTIME_DIR, else the temporary folder, by user."""
    if chosen := environment("XDG_RUNTIME_DIR"):
        return Path(chosen) / "skillserver"
    return _temporary()


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"skillserver-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def _expanded(text: str) -> Path:
    """With ~ replaced; below the temporary folder for a user without a home (a container's bare user id has none)."""
    place = os.path.expanduser(text)  # noqa: PTH111 - Path.expanduser raises where there is no home
    return _temporary() / place.lstrip("~/") if place.startswith("~") else Path(place)
