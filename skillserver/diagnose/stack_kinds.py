"""What a stack is doing, from its innermost frames: waiting in a collective, loading data, saving, compiling, running code.

Only what names a wait counts as one. A user's own function, a backward pass or a `.item()` look alike whether they
compute or wait for the GPU, so they are `code` and `device`. Launchers and data loader workers are no ranks.
Knows frames of PyTorch, DeepSpeed and the standard library; not ranks.

>>> kind([("all_reduce", "torch/distributed/distributed_c10d.py", 3252), ("step", "train.py", 6)])
'collective'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Frame = tuple[str, str, int]
Kind = Literal[
    "collective", "pair", "rendezvous", "device", "data", "files", "compile", "debugger", "lock", "finished", "sleep", "code", "launcher", "worker"
]
COMMUNICATING = ("collective", "pair", "rendezvous")
WAITING = (*COMMUNICATING, "device")
ASIDE = ("launcher", "worker")
SAID: dict[str, str] = {
    "collective": "waits in a collective", "pair": "waits in send or recv", "rendezvous": "waits in set-up of process groups or the store",
    "device": "waits for its GPU or computes a backward pass", "data": "waits for data", "files": "reads or writes files",
    "compile": "compiles", "debugger": "stands in a debugger", "lock": "waits for a lock, thread or process", "finished": "has left the program",
    "sleep": "sleeps", "code": "runs its own code", "launcher": "is a launcher", "worker": "is a data loader worker",
}  # fmt: skip
DEEP = 12  # innermost frames that tell what a stack does
PAIRED = re.compile(r"^_?(?:i?send|i?recv|batch_isend_irecv|send_object_list|recv_object_list|P2POp)")
SET_UP = re.compile(r"^(?:init_process_group|_new_process_group_helper|new_group|_new_group|new_subgroups\w*|_store_based_barrier|split_group|"
                    r"destroy_process_group|_shutdown_backend)")  # fmt: skip
COLLECTIVE_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/nn/functional.py",
    "deepspeed/comm/",
)
RULES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("debugger", re.compile(r"(?:/|^)(?:pdb|bdb|ipdb|debugpy|pydevd\w*)(?:\.py|/)")),
    ("rendezvous", re.compile(r"torch/distributed/(?:rendezvous\.py|elastic/rendezvous/)")),
    ("data", re.compile(r"torch/utils/data/|(?:/|^)datasets/|webdataset/|streaming/base/|megatron/data/|nvidia/dali/")),
    ("files", re.compile(r"torch/(?:serialization\.py|distributed/checkpoint/)|safetensors/|huggingface_hub/|fsspec/|(?:^|/)(?:shutil|tarfile)\.py")),
    ("compile", re.compile(r"torch/_(?:dynamo|inductor|functorch)/|triton/(?:compiler|runtime|backends)|torch/utils/cpp_extension\.py")),
    ("device", re.compile(r"torch/(?:cuda/|autograd/|_tensor\.py|accelerator/)")),
)  # fmt: skip
LOCKS = re.compile(r"(?:^|/)(?:threading|queue|selectors|subprocess|socket|ssl|concurrent/futures/\w+|multiprocessing/\w+|asyncio/\w+)\.py$")
NATIVE: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("collective", re.compile(r"c10d::|gloo::|\bnccl\w*\(|^nccl[A-Z]|Work::wait|WorkNCCL")),
    ("device", re.compile(r"cu(?:da)?(?:Stream|Event|Device|Ctx)Synchronize|cu(?:da)?Memcpy|_local_scalar_dense|hip\w*Synchronize")),
    ("sleep", re.compile(r"^(?:clock_nanosleep|nanosleep|pysleep)")),
)
LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|(?:^|/)(?:torch|deepspeed|importlib)/|<frozen")


def kind(frames: Sequence[Frame]) -> Kind:
    """What these frames (innermost first, native ones allowed) do."""
    python = [frame for frame in frames if frame[1].endswith(".py") or frame[1].startswith("<")]
    files = [frame[1] for frame in python]
    if any("torch/distributed/elastic/agent/" in file for file in files):
        return "launcher"
    if any("torch/utils/data/_utils/worker.py" in file for file in files):
        return "worker"
    if any(name in ("_shutdown", "_python_exit", "_exit_function") for name, _file, _line in python):
        return "finished"
    return _communication(python[:DEEP]) or _native(frames[: frames.index(python[0])] if python else frames) or _by_file(python[:DEEP])


def _communication(frames: Sequence[Frame]) -> Kind | None:
    for name, file, _line in frames:
        if any(part in file for part in COLLECTIVE_FILES) and name not in ("wrapper", "get_rank", "get_world_size"):
            return "rendezvous" if SET_UP.match(name) else "pair" if PAIRED.match(name) else "collective"
        if is_own(file):
            return None
    return None


def _native(frames: Sequence[Frame]) -> Kind | None:
    """What the C++ frames above the first Python frame say."""
    for name, _file, _line in frames:
        for found, pattern in NATIVE:
            if pattern.search(name):
                return found
    return None


def _by_file(frames: Sequence[Frame]) -> Kind:
    """The first library on the way out that says something; a lock counts only when nothing outside it does."""
    locked = False
    for name, file, _line in frames:
        for found, pattern in RULES:
            if pattern.search(file):
                return found
        locked = locked or bool(LOCKS.search(file))
        if is_own(file) and not locked:
            return "sleep" if name == "sleep" else "code"
    return "lock" if locked else "code"


def is_own(file: str) -> bool:
    """Whether a file is the user's and not of a library."""
    return not LIBRARY.search(file) and not LOCKS.search(file)


def operation(frames: Sequence[Frame]) -> str:
    """`all_reduce` of a stack that communicates, else "": the outermost call of the collective's own file."""
    found = ""
    for name, file, _line in frames[: DEEP * 2]:
        if any(part in file for part in COLLECTIVE_FILES):
            found = name if name != "wrapper" and "<locals>" not in name else found
        elif found and "c10d_logger" not in file:
            break
    return found
