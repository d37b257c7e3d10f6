"""The face of GPU health: live, or from pasted captures and files; one verdict either way.

>>> check_gpu_health(captures=[{"name": "dmesg", "text": "NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus."}]).verdict
'critical'
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.health import captures as pasted
from skillserver.health import live, report
from skillserver.health.report import GpuHealth
from skillserver.units import Seconds


class Capture(BaseModel):
    """One pasted output."""

    model_config = ConfigDict(extra="forbid")
    name: str = ""
    text: str


@tool(toolset="core", title="Check GPU health", read_only=True)
def check_gpu_health(
    captures: Annotated[list[Capture] | None, Field(description="pasted nvidia-smi, dmesg, dcgmi, amd-smi, ibstat; mixed is fine")] = None,
    paths: Annotated[list[str] | None, Field(description="files with such output")] = None,
    deadline_s: Annotated[Seconds, Field(gt=0, le=120, description="for the live look")] = 30.0,
) -> GpuHealth:
    """Call when a GPU, node or job is suspect, or to judge nvidia-smi and kernel log output. Without captures and paths it looks at this host.

    Starts nothing on the GPUs. Text is judged as shown: what is cut or not recognised stands in `skipped`. Two captures of one
    machine at different times give rates; pastes of several machines (pdsh, syslog) are judged machine by machine.
    """
    if captures is None and paths is None:
        permissions.require_run("a live GPU check")
        return report.judge(*live.look(deadline_s))
    texts = [(capture.name, capture.text) for capture in captures or []]
    texts += [(path, pasted.read_file(permissions.readable(path))) for path in paths or []]
    if not texts:
        raise BadRequest("no_capture", "captures and paths are empty", next="leave both out for a live look, or pass the text of nvidia-smi -q")
    return report.judge(pasted.read(texts))
