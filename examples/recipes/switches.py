"""Stop or save a run from outside by touching a file: no signal, no job id, works through any launcher.

    touch RUN/save      # save a checkpoint at the next look, go on
    touch RUN/stop      # save and end; the file stays, so that a requeued job ends at once too

Rank 0 looks at the folder; what it saw goes to all ranks, because shared file systems show a file to nodes at different
times and a rank that leaves alone hangs the others.
"""

from pathlib import Path

import torch
import torch.distributed as dist


class Switches:
    """`every`: steps between two looks; one look is a stat of two files and a broadcast of two bytes."""

    def __init__(self, folder: str | Path, every: int = 10, device: str = "cpu") -> None:
        self.folder, self.every, self.device = Path(folder), every, device

    def look(self, step: int) -> tuple[bool, bool]:
        """(save now, stop now), the same on every rank."""
        if step % self.every:
            return False, False
        rank = dist.get_rank() if dist.is_initialized() else 0
        seen = [(self.folder / name).exists() for name in ("save", "stop")] if rank == 0 else [False, False]
        if dist.is_initialized():
            told = torch.tensor(seen, dtype=torch.uint8, device=self.device)
            dist.broadcast(told, src=0)
            seen = [bool(value) for value in told.tolist()]
        if rank == 0 and seen[0]:
            (self.folder / "save").unlink(missing_ok=True)
        return seen[0] or seen[1], seen[1]
