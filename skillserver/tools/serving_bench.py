"""The face of the serving benchmark: latency and throughput of an OpenAI-compatible server.

Thin: `serving_bench.py` of the workers measures, `procedures.server_address` says which server may be called,
`procedures.guarded_run` runs it, `procedures.judged_serving` says what it means. There is no argument for a key: it is
read from SKILLSERVER_INFERENCE_KEY of the process that runs skillserver.

>>> (await run_inference_bench(base_url="http://127.0.0.1:8000/v1")).by_concurrency[-1]["output_tokens_s"]
1840.0
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.hardware import catalogue
from skillserver.procedures import judged_serving, server_address
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.run_results import SAMPLES, STARTUP_S, Detail, DryRun, Python, RunResult, Wait, fields

Lengths = Annotated[list[int] | None, Field(description="default 128, 512, 2048")]
Outputs = Annotated[list[int] | None, Field(description="default 16, 64")]
Levels = Annotated[list[int] | None, Field(description="default 1, 2, 4, 8")]
Target = Annotated[float | None, Field(description="goodput target")]
TIMEOUT_S = 60.0
MOST_AT_ONCE, LONGEST, MOST_MS, LISTED = 256, 2**20, 1e7, 8  # threads of one client; tokens; ms; entries of a list


def _bounded(**given: tuple[list[int] | float | None, float]) -> None:
    """Here and not in the schema, which every agent pays for."""
    for name, (value, most) in given.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        if (isinstance(value, list) and not 0 < len(value) <= LISTED) or any(not 0 < one <= most for one in values):
            of = f"1 to {LISTED} numbers" if isinstance(value, list) else "a number"
            raise BadRequest("bad_arguments", f"run_inference_bench: {name}: {str(value)[:80]} is not {of} above 0 and up to {most:,.0f}",
                             next=f"leave {name} out for its default")  # fmt: skip


class ServingResult(RunResult):
    """Latencies in ms, rates of the whole server."""

    model: str = ""
    api: str = ""
    by_prompt: list[dict[str, Any]] = Field(default_factory=list, description="tokens; ttft_ms of requests alone: p50, interval, p95")
    by_output: list[dict[str, Any]] = Field(default_factory=list, description="tokens; tpot_ms of requests alone: p50, interval, p95")
    by_concurrency: list[dict[str, Any]] = Field(default_factory=list, description="output_tokens_s, requests_s, TTFT, TPOT, goodput_requests_s")
    prefix_cache: dict[str, Any] = Field(default_factory=dict, description="TTFT of a new and of a known start")
    prefill_tokens_s: float | None = Field(default=None, description="from the slope of TTFT over prompt length")
    pays_up_to: int | None = Field(default=None, description="concurrency beyond which throughput grows by less than a tenth")
    compared_with: list[dict[str, Any]] = Field(default_factory=list, description="estimate of the same load, when accelerator is given")
    history_file: str = Field(default="", description="as skillserver compare reads it")


@tool(toolset="measure", title="Measure an inference server", read_only=False, idempotent=False, open_world=True, runs=True)
async def run_inference_bench(
    base_url: Annotated[str, Field(description="http://127.0.0.1:8000/v1")],
    model: Annotated[str, Field(description="default: the one served")] = "",
    prompt_tokens: Lengths = None,
    output_tokens: Outputs = None,
    concurrency: Levels = None,
    ttft_ms: Target = None,
    tpot_ms: Target = None,
    accelerator: Annotated[str, Field(description="server's, for an estimate")] = "",
    tp: Annotated[int, Field(ge=1, description="server's")] = 1,
    budget_s: Annotated[float, Field(ge=5, le=1200, description="in all")] = 30,
    wait_s: Wait = 20,
    python: Python = "",
    dry_run: DryRun = False,
    detail: Detail = False,
) -> ServingResult:
    """Call when an LLM server is slow or is to be sized: loads an OpenAI-compatible server.
    Gives TTFT, TPOT, tokens/s by concurrency, goodput, prefix-cache effect.

    Loopback and private hosts; others need --allow-host. A key is read from SKILLSERVER_INFERENCE_KEY, never an argument.
    """
    permissions.require_run("run_inference_bench")
    _bounded(concurrency=(concurrency, MOST_AT_ONCE), prompt_tokens=(prompt_tokens, LONGEST), output_tokens=(output_tokens, LONGEST),
             ttft_ms=(ttft_ms, MOST_MS), tpot_ms=(tpot_ms, MOST_MS))  # fmt: skip
    if accelerator:
        catalogue.accelerator(accelerator)  # a name that nobody knows is told before the server is loaded, not after
    allowed = await asyncio.to_thread(server_address.permitted, base_url)
    arguments: dict[str, Any] = {"base_url": base_url, "model": model, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens,
                                 "concurrency": concurrency, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "budget_s": budget_s}  # fmt: skip
    settings = arguments | {"place": allowed.place, "timeout_s": TIMEOUT_S, "raw_file": SAMPLES}
    asked = judged_serving.Asked(accelerator, tp, allowed.is_loopback)
    record = await run_guarded(tool="run_inference_bench", arguments=arguments, script="serving_bench.py", settings=settings,
                               shape=judged_serving.shaped(asked), device="cpu", wait_s=wait_s, python=python or None,
                               limit_s=3 * budget_s + STARTUP_S, dry_run=dry_run, needs_torch=False, extra=allowed.environment)  # fmt: skip
    return ServingResult.model_validate(fields(record, dry_run, detail))
