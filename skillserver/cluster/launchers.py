"""A launch script for many nodes: what is asked for, what is refused, and who writes it (SLURM or Kubernetes).

Every word of the user's (script, arguments, names) is quoted for the shell that will read it; names that go into `#SBATCH`
lines or manifests must be plain. Nothing is written to disk and nothing is submitted. Does not know the site's modules,
containers' contents or network interfaces.

>>> write(Launch("torchrun", "slurm", "train.py", ["--name", "it's"])).script.count("--name 'it'\\"'\\"'s'")
1
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.errors import BadRequest

Kind = Literal["torchrun", "srun", "accelerate", "lightning", "deepspeed"]
Target = Literal["slurm", "kubernetes-job", "jobset", "pytorchjob"]
PLAIN = re.compile(r"[A-Za-z0-9][\w.,@+:-]*")
NODES = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\d,-]+\][\w.-]*)?(?:,[A-Za-z0-9][\w.-]*(?:\[[\d,-]+\][\w.-]*)?)*")
ARRAY = re.compile(r"\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*(?:%[1-9]\d*)?")
LABEL = re.compile(r"[a-z](?:[a-z0-9-]{0,50}[a-z0-9])?")
MODULE = re.compile(r"-m\s+([A-Za-z_]\w*(?:\.\w+)*)")
SLURM_ONLY = ("account", "partition", "qos", "array")


@dataclass
class Launch:
    """All that a launcher needs. `cpus_per_gpu=0` takes whole nodes; times in seconds."""

    kind: Kind
    target: Target
    script: str
    args: list[str] = field(default_factory=list)
    nodes: int = 1
    gpus_per_node: int = 8
    time_s: float = 86400.0
    name: str = "train"
    account: str = ""
    partition: str = ""
    qos: str = ""
    container: str = ""
    setup: str = ""
    requeue: bool = True
    signal_s: int = 600
    array: str = ""
    exclude_nodes: str = ""
    cpus_per_gpu: int = 0
    heartbeat_s: int = 1800

    @property
    def tasks_per_node(self) -> int:
        """Processes that srun starts on a node: one launcher, or one a GPU."""
        return self.gpus_per_node if self.kind in ("srun", "lightning") else 1

    @property
    def module(self) -> str:
        """The module of `-m package.module`, else ""."""
        found = MODULE.fullmatch(self.script.strip())
        return found[1] if found else ""

    @property
    def is_python(self) -> bool:
        """Whether Python runs it; anything else is a program of its own."""
        return bool(self.module) or self.script.endswith(".py")

    def words(self, *, module_flag: str = "-m") -> str:
        """Script and arguments, quoted for bash."""
        program = [module_flag, self.module] if self.module else [self.script]
        return " ".join(quoted(word) for word in [*program, *self.args])


def quoted(word: str) -> str:
    """A word for bash. Control characters are spelled out: sbatch refuses a script with a carriage return before a line break."""
    if not re.search(r"[\x01-\x1f\x7f]", word):
        return shlex.quote(word)
    spelled = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + re.sub(r"[\x01-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", spelled) + "'"


class Launcher(BaseModel):
    """The script and what to know about it. `files` says what the script expects or leaves where."""

    script: str = Field(description="save it under the first name of files")
    files: dict[str, str]
    explanation: list[str]
    warnings: list[str]
    next: str
    sections: list[str]


@dataclass
class Draft:
    """What a writer hands back."""

    script: str
    files: dict[str, str]
    explanation: list[str]
    warnings: list[str]
    next: str


def write(launch: Launch) -> Launcher:
    """The script for this launch. Raises BadRequest for what cannot be launched so, or cannot be quoted."""
    from skillserver.cluster import launchers_batch, launchers_kubernetes

    check(launch)
    draft = launchers_batch.write(launch) if launch.target == "slurm" else launchers_kubernetes.write(launch)
    return Launcher(**vars(draft), sections=_sections(launch))


def check(launch: Launch) -> None:
    """Raises BadRequest naming the first field that is not usable."""
    for name in ("script", "args", "setup", "container"):
        value = getattr(launch, name)
        for text in value if isinstance(value, list) else [value]:
            _quotable(name, text)
    if not launch.script.strip() or (launch.script.startswith("-") and not launch.module) or "\n" in launch.script:
        raise BadRequest("bad_script", f"script {launch.script!r} is no file or module", next="pass script='train.py' or script='-m package.train'")
    for name, pattern in (("account", PLAIN), ("partition", PLAIN), ("qos", PLAIN), ("exclude_nodes", NODES), ("array", ARRAY), ("name", PLAIN)):
        if (value := getattr(launch, name)) and not pattern.fullmatch(value):
            raise BadRequest(
                f"bad_{name}", f"{name} {value!r} cannot stand in a batch script", next=f"pass {name} in SLURM's own spelling, without blanks"
            )
    if re.search(r"\s", launch.container) or launch.container.startswith("-"):
        raise BadRequest(
            "bad_container", f"container {launch.container!r} is no image", next="pass an image reference or the path of a .sif or .sqsh file"
        )
    if launch.signal_s >= launch.time_s:
        raise BadRequest(
            "signal_too_early", f"signal_s {launch.signal_s} is not below the time limit of {launch.time_s:.0f} s", next="a smaller signal_s"
        )
    if launch.target != "slurm":
        _check_kubernetes(launch)


def _quotable(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"bad_{name}", f"{name} holds a character that is no Unicode text", next="pass UTF-8 text") from None
    if "\0" in text:
        raise BadRequest(f"bad_{name}", f"{name} holds a NUL, which no command line can carry", next="leave it out")


def _check_kubernetes(launch: Launch) -> None:
    if unfit := [name for name in SLURM_ONLY if getattr(launch, name)]:
        raise BadRequest(
            "slurm_only", f"{', '.join(unfit)} are SLURM's and mean nothing for {launch.target}", next="leave them out, or target='slurm'"
        )
    if launch.kind == "srun":
        raise BadRequest("no_srun", f"srun does not exist on {launch.target}", valid=["torchrun", "accelerate", "lightning", "deepspeed"],
                         next="kind='torchrun'")  # fmt: skip
    if not launch.container:
        raise BadRequest("no_container", f"{launch.target} runs images and container is empty", next="container='registry/image:tag'")
    if not LABEL.fullmatch(launch.name):
        raise BadRequest("bad_name", f"name {launch.name!r} is no DNS label of at most 52 characters", next="lower-case letters, digits and dashes")
    if "[" in launch.exclude_nodes:
        raise BadRequest("bad_exclude_nodes", "Kubernetes has no node ranges", next="name each node: exclude_nodes='n1,n2'")


def _sections(launch: Launch) -> list[str]:
    if launch.target != "slurm":
        return topics.sections("kubernetes_training")
    kind = topics.sections("slurm_ranks") if launch.tasks_per_node > 1 else topics.sections("slurm_torchrun")
    return [*kind, *topics.sections("slurm_signal", "slurm_preemption"), *(topics.sections("slurm_arrays") if launch.array else [])]
