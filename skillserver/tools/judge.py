"""The face of judge_measurement: somebody's benchmark output or a sentence goes in, a verdict with its reference comes out.

>>> judge_measurement(text="8xA100 nccl busbw 180").verdict
'warning'
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.procedures import judged_outputs
from skillserver.procedures.judged_outputs import JudgedMeasurement
from skillserver.procedures.measured_setting import Hints

LARGEST = 16 * 2**20  # bytes of a file; benchmark outputs are kilobytes


@tool(toolset="measure", title="Judge a measurement", read_only=True)
def judge_measurement(
    text: Annotated[str, Field(description="benchmark output, or '342 GB/s all-reduce on 8xH100'")] = "",
    path: Annotated[str, Field(description="or a file with it")] = "",
    accelerator: Annotated[str, Field(description="'H100'")] = "",
    n_gpus: Annotated[int | None, Field(ge=1, le=10**6, description="in all")] = None,
    n_nodes: Annotated[int | None, Field(ge=1, le=10**6, description="nodes")] = None,
    link: Annotated[str, Field(description="port per GPU or instance: NDR, 400GbE, EFA-p5")] = "",
    detail: Annotated[bool, Field(description="every row")] = False,
) -> JudgedMeasurement:
    """Call when a benchmark number needs judging: is it good for that part and link? Reads nccl-tests, all_reduce_bench, mamf-finder, nvbandwidth,
    gpu-burn, gpu-fryer, fio, ib_write_bw, iperf3, OSU, dcgmproftester, STREAM, or a sentence. Names misreadings (algbw, bits, duplex, sparse).

    Exactly one of text and path. What no reference is known for is unknown, with the reason.
    """
    if bool(text.strip()) == bool(path):
        raise BadRequest("one_of_text_path", "give exactly one of text and path", next="judge_measurement(text=...) with the output, or path=...")
    return judged_outputs.judge_text(text or _read(path), Hints(accelerator, n_gpus, n_nodes, link), all_rows=detail)


def _read(path: str) -> str:
    file = permissions.readable(path)
    try:
        with file.open("rb") as opened:
            raw = opened.read(LARGEST + 1)
    except OSError as problem:
        raise BadRequest("unreadable_file", f"{file.name}: {problem.strerror}", next="let this user read it, or pass the text itself") from problem
    if len(raw) > LARGEST:
        raise BadRequest("file_too_large", f"{file.name} is larger than {LARGEST >> 20} MiB", next="pass the part with the results as text")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # PowerShell's `>`
        return raw.decode("utf-16", errors="replace")
    if b"\0" in raw:
        raise BadRequest("not_text", f"{file.name} is not text", next="pass the benchmark's text or JSON output")
    return raw.decode("utf-8", errors="replace")
