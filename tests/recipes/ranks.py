"""What the ranks of the recipes' tests do, by name; started by the recipe that emulates nodes, or by torch's launcher.

Each writes what it saw to `FOLDER/NAME-RANK`. Ends without gloo's teardown, which may abort when ranks leave at different times.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/recipes"))

import one_rank_first
import print_whole_lines
import save_before_the_end
import switches

FOLDER, RANK = Path(sys.argv[2]), int(os.environ["RANK"])


def note(name: str, text: object) -> None:
    (FOLDER / f"{name}-{RANK}").write_text(str(text))


def emulated() -> None:
    total = torch.tensor(float(RANK + 1))
    dist.all_reduce(total)
    note("emulated", f"{os.environ['LOCAL_RANK']} {os.environ['EMULATED_NODE']} {dist.get_world_size()} {total.item():g}")


def first() -> None:
    made = FOLDER / "made"
    with one_rank_first.one_first() as was_first:
        seen = made.exists()
        if was_first:
            time.sleep(0.3)
            made.touch()
    note("first", f"{was_first} {seen}")


def switched() -> None:
    looked = switches.Switches(FOLDER, every=2)
    if RANK == 0:
        (FOLDER / "save").touch()
    dist.barrier()
    seen = [looked.look(step) for step in (1, 2, 4)]
    if RANK == 0:
        (FOLDER / "stop").touch()
    dist.barrier()
    note("switched", [*seen, looked.look(6)])


def signalled() -> None:
    end = save_before_the_end.EndIsNear()
    before = end.told()
    if RANK == 1:
        os.kill(os.getpid(), save_before_the_end.SIGNALS[0])
    note("signalled", f"{before} {end.told()} {save_before_the_end.requeue()}")


def printed() -> None:
    for number in range(40):
        print_whole_lines.say("\n".join(f"{number} {line} {'x' * 3000}" for line in range(3)))
    print_whole_lines.say("only one", only=0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
