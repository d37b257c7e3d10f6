"""The face of hang diagnosis: Flight Recorder dumps, stacks or living processes go in, one verdict comes out.

>>> diagnose_hang(paths=["flight_recorder/"]).culprits
[1]
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.diagnose import hang, live_stacks, slurm_stacks
from skillserver.diagnose.hang import HangDiagnosis
from skillserver.errors import BadRequest

DEEP, MOST = 3, 20_000  # levels of folders, files


@tool(toolset="core", title="Diagnose a hang", read_only=True)
def diagnose_hang(
    paths: Annotated[list[str], Field(description="dump or stack files or folders, name them rank_N; two moments = two folders")] = [],  # noqa: B006
    pids: Annotated[list[Annotated[int, Field(gt=0)]], Field(max_length=64, description="or live processes here (py-spy)")] = [],  # noqa: B006
    text: Annotated[str, Field(description="or pasted stacks of several ranks")] = "",
    slurm_job: Annotated[str, Field(description="or id of a running SLURM job: srun --overlap py-spy on all its nodes")] = "",
) -> HangDiagnosis:
    """Call when a distributed job hangs or timed out: Flight Recorder dumps (NCCL, gloo), py-spy or faulthandler stacks of the ranks -> the rank that
    keeps the others waiting, mismatched collectives, circular waits, slow versus hung.

    Any mixture of the four. One moment alone gives a warning; a second dump half a minute later gives certainty.
    """
    if not (paths or pids or text.strip() or slurm_job):
        raise BadRequest("nothing_given", "paths, pids, text and slurm_job are all empty", valid=["paths", "pids", "text", "slurm_job"],
                         next="diagnose_hang(paths=[folder of dumps]) or pids=[...] of the ranks on this host")  # fmt: skip
    files = [file for path in paths for file in permissions.files_of(path, deep=DEEP, most=MOST)]
    taken = live_stacks.texts(pids) if pids else live_stacks.Taken()
    step = slurm_stacks.texts(slurm_job) if slurm_job else live_stacks.Taken()
    texts: list[hang.Text] = [*taken.pairs, *step.pairs, *([("pasted text", text, None)] if text.strip() else [])]
    return hang.diagnose(files, texts, [*taken.skipped, *step.skipped])
