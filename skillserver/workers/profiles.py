"""Profiles: how a site enters its training environment, as the human configured it. A profile is named like an interpreter.

`serve --profile nemo='apptainer exec --nv --bind {run} /images/nemo.sif' --env-file nemo=/site/nccl.sh` makes python="nemo" run
every worker behind those words, in an environment that bash has read from that file. The interpreter is the one that `--python
nemo=PATH` names, a path inside the container, else the python3 that is found there. Does not know what the words do.

>>> words(Profile(("apptainer", "exec", "img.sif"), "/site/nccl.sh"))[-4:]
('/site/nccl.sh', 'apptainer', 'exec', 'img.sif')
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from skillserver import permissions
from skillserver.permissions import Profile

# the file's own words go to stderr: stdout belongs to the worker's lines. The status of its last command says nothing: many end with [ ... ] && ...
ENTER = """[ -r "$0" ] && bash -O extglob -n "$0" || { echo "skillserver: the environment file $0 cannot be read or is no bash" >&2; exit 96; }
set -a; . "$0" >&2; set +a; exec "$@\""""
INSIDE = ("python3", "python")


def chosen(python: str | None) -> tuple[str, Profile] | None:
    """The profile that this name means; without a name the human's first environment, when that is a profile."""
    allowed = permissions.current()
    name = python or next(iter({**allowed.pythons, **allowed.profiles}), "")
    return (name, allowed.profiles[name]) if name in allowed.profiles else None


def words(profile: Profile) -> tuple[str, ...]:
    """What stands before the interpreter."""
    entered = ("bash", "-c", ENTER, str(Path(profile.env_file).expanduser().absolute())) if profile.env_file else ()
    return (*entered, *profile.prefix)


def filled(prefix: Iterable[str], folder: Path) -> list[str]:
    """The words with the run folder put in."""
    return [word.replace("{run}", str(folder)) for word in prefix]


def interpreters(name: str) -> list[tuple[str, str]]:
    """(path, where it came from) to try inside; nothing of this host is looked at, a container has files of its own."""
    own = permissions.current().pythons.get(name)
    return [(own, f"profile {name}, serve --python {name}")] if own else [(path, f"profile {name}") for path in INSIDE]
