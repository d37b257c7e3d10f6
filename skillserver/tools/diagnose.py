"""The face of diagnosis: an error text or log file goes in, ranked causes come out.

>>> explain_error(text="slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***").causes[0].id
'slurm_time_limit'
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.procedures import explain
from skillserver.procedures.explain import ErrorExplanation


@tool(toolset="core", title="Explain an error", read_only=True)
def explain_error(
    text: Annotated[str, Field(description="traceback or log lines, any mixture, up to MBs")] = "",
    path: Annotated[str, Field(description="or a log file of any size")] = "",
) -> ErrorExplanation:
    """Call when a job crashed, hung or was killed: traceback, NCCL, CUDA, OOM, torchrun, SLURM or kernel lines -> causes best first, each culprit or
    victim, with evidence, checks and remedies.

    Exactly one of text and path. Unknown text gives no causes and a `guess` that says it is one.
    """
    if bool(text) == bool(path):
        raise BadRequest("one_of_text_path", "give exactly one of text and path" + (", not both" if text else ""),
                         next="explain_error(text=...) with the failing rank's error lines, or explain_error(path=...)")  # fmt: skip
    return explain.explain_file(permissions.readable(path)) if path else explain.explain_text(text)
