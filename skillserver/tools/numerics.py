"""The face of numerics diagnosis: files of the numerics hook go in, the first NaN or infinity comes out.

>>> diagnose_numerics(paths=["numerics.rank0.jsonl"]).first.module
'layers.3.fc2'
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from skillserver import paths as places
from skillserver import permissions
from skillserver.contract import tool
from skillserver.diagnose import numerics, numerics_reading
from skillserver.diagnose.numerics import NumericsDiagnosis
from skillserver.errors import BadRequest

HOOK = "workers/scripts/numerics_hook.py"


@tool(toolset="diagnose", title="Diagnose NaN and overflow", read_only=True)
def diagnose_numerics(
    paths: Annotated[list[str], Field(max_length=10_000, description="numerics.rank*.jsonl files or their folder, of all ranks if you can")] = [],  # noqa: B006
    text: Annotated[str, Field(description="or their lines")] = "",
) -> NumericsDiagnosis:
    """Call when a run gives NaN or inf and the layer must be found: records of the numerics hook -> first bad module, forward, backward or weights,
    growth before it, fp16 range, loss-scale advice. Without arguments: the hook's path and the lines to add to the training script.

    Files of several ranks are judged together: the earliest is the origin.
    """
    if paths and text:
        raise BadRequest("one_of_text_paths", "give paths or text, not both", next="diagnose_numerics(paths=[folder of the hook's files])")
    if text.strip():
        return numerics.diagnose([("text", (line.encode("utf-8", "replace") for line in text.splitlines()))])
    if not paths:
        return numerics.how_to_watch(str(places.PACKAGE / HOOK))
    files = [file for path in paths for file in permissions.files_of(path, "*.jsonl")]
    return numerics.diagnose([(file.name, numerics_reading.lines_of(file)) for file in files])
