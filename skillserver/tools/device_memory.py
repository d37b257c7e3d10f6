"""The face of memory diagnosis: a CUDA memory snapshot or an out-of-memory message goes in, the holders come out.

>>> diagnose_memory(path="snap.pickle").by_kind_gib
{'activations': 31.2, 'optimizer state': 24.0, ...}
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.diagnose import memory_report
from skillserver.diagnose.memory_report import MemoryDiagnosis
from skillserver.errors import BadRequest


@tool(toolset="diagnose", title="Diagnose GPU memory", read_only=True)
def diagnose_memory(
    path: Annotated[str, Field(description="pickle of torch.cuda.memory._dump_snapshot, or a log with the OOM message")] = "",
    text: Annotated[str, Field(description="or the out-of-memory message")] = "",
) -> MemoryDiagnosis:
    """Call when a GPU ran out of memory or to see what holds it: a CUDA memory snapshot -> bytes alive at the failure or peak, by kind and by line of
    the program, fragmentation, what was asked for; an OOM message alone -> its numbers judged.

    Exactly one of path and text. Pickles are read as plain data: nothing in them is run.
    """
    if bool(path) == bool(text):
        raise BadRequest("one_of_text_path", "give exactly one of path and text" + (", not both" if text else ""),
                         next="diagnose_memory(path='snap.pickle') or text='CUDA out of memory. ...'")  # fmt: skip
    return memory_report.of_file(permissions.readable(path)) if path else memory_report.of_text(text)
