"""The devices of this host that one run can measure all at once: every GPU that torch can use, else the CPU.

>>> await every("train")
(['cuda:0', 'cuda:1'], '')
"""

from __future__ import annotations

import asyncio

from skillserver.findings import Finding
from skillserver.procedures import gpus_here
from skillserver.topics import sections
from skillserver.workers import interpreters


async def every(python: str) -> tuple[list[str], str]:
    """Every GPU that torch can use, else the CPU; and why GPUs that are here will not be measured."""
    found = await interpreters.find(python or None)
    here = await asyncio.to_thread(gpus_here.visible_gpus)
    if here and not (found.cuda or found.hip):
        return ["cpu"], f"{len(here)} GPUs are here and torch {found.torch} of {found.path} is built for CPUs: the CPU was measured instead"
    return [f"cuda:{place}" for place in range(len(here))] or ["cpu"], ""


def unmeasured(why: str) -> list[Finding]:
    """A node must not pass because nobody looked at its GPUs."""
    if not why:
        return []
    return [Finding(code="gpus_not_measured", severity="warning", subject="GPUs", evidence=[why],
                    reason="This test says nothing of what the GPUs of this node reach.",
                    action="fix_setup: call again with python= an environment whose torch sees the GPUs",
                    sections=sections("driver_setup"))]  # fmt: skip
