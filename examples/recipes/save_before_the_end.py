"""Save a checkpoint when SLURM is about to end the job, then ask to be requeued.

    #SBATCH --signal=USR1@300     # to every process, 300 s before the time limit
    #SBATCH --requeue             # preemption sends SIGTERM (SIGCONT first), then waits KillWait or GraceTime

A handler only sets a flag: saving inside it could meet a half-done optimiser step or a collective. All ranks agree by an
all-reduce, since the signal reaches them at different steps.
"""

import os
import signal
import subprocess

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class EndIsNear:
    """Ask `told()` once a step, on every rank."""

    def __init__(self, device: str = "cpu") -> None:
        self.device, self._seen = device, False
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self._seen = True

    def told(self) -> bool:
        """True on every rank as soon as one rank was told."""
        if not dist.is_initialized():
            return self._seen
        seen = torch.tensor(int(self._seen), device=self.device)
        dist.all_reduce(seen, op=dist.ReduceOp.MAX)
        return bool(seen.item())


def requeue() -> bool:
    """Put this job back into the queue; call on one rank, after the checkpoint is on disk. False outside SLURM."""
    job = os.environ.get("SLURM_JOB_ID")
    return bool(job) and subprocess.run(["scontrol", "requeue", job], check=False).returncode == 0
