"""The face of the storage benchmark: what one folder gives to data loading, checkpoints, and code.

Thin: `storage_bench.py` of the workers measures, `procedures.guarded_run` runs it, `procedures.judged_storage_bench` says
what it means.

>>> (await run_storage_bench(path="/scratch/me", budget_s=30)).needs[0]["verdict"]
'ok'
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.procedures import judged_storage_bench, node_table, on_nodes
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.run_results import SAMPLES, STARTUP_S, Detail, DryRun, Nodes, Python, RunResult, Wait, fields
from skillserver.units import Bytes

Part = Literal["data_loading", "checkpoints", "code"]


class StorageResult(RunResult):
    """Each need of training beside the figure that speaks to it."""

    needs: list[dict[str, Any]] = Field(default_factory=list, description="need, verdict, value, unit, ok_from, poor_below, reason")
    rows: list[dict[str, Any]] = Field(default_factory=list, description="what, gb_s, iops, p99_us, in_flight")
    code: dict[str, Any] = Field(default_factory=dict, description="small files a second, imports, git status")
    file_system: dict[str, str] = Field(default_factory=dict, description="type, mount, options")
    history_file: str = Field(default="", description="as skillserver compare reads it")


@tool(toolset="measure", title="Measure storage", read_only=False, idempotent=False, runs=True)
async def run_storage_bench(
    path: Annotated[str, Field(description="folder on the storage in question; everything written is removed")],
    parts: Annotated[list[Part] | None, Field(description="default: all")] = None,
    size: Annotated[Bytes, Field(ge=2**26, le=2**40, description="of the test file, or 16GiB; twice that must be free")] = 2**30,
    budget_s: Annotated[float, Field(ge=6, le=1200, description="in all; 300 to outlast caches")] = 20,
    nodes: Nodes = 0,
    wait_s: Wait = 20,
    python: Python = "",
    dry_run: DryRun = False,
    detail: Detail = False,
) -> StorageResult:
    """Call when loading data, saving checkpoints, importing or git is slow, or before storage is chosen.
    Runs fio and small-file tests in a folder; judges the three IO needs of training apart.

    fio where it is installed, else plain Python, which is said. Only folders that this user may write to; over HTTP only
    below a root of --allow-path.
    """
    permissions.require_run("run_storage_bench")
    arguments: dict[str, Any] = {"path": path, "parts": parts, "size": size, "budget_s": budget_s}
    if nodes:
        if permissions.current().read_roots is not None:
            permissions.writable_folder(path)
        record = await on_nodes.each_node(tool="run_storage_bench", arguments=arguments, nodes=nodes, values=node_table.of_rows, python=python,
                                          limit_s=2 * budget_s + STARTUP_S, wait_s=wait_s, dry_run=dry_run)  # fmt: skip
        return StorageResult.model_validate(fields(record, dry_run, detail))
    folder = str(permissions.writable_folder(path))
    settings = {"folder": folder, "parts": parts, "bytes": size, "budget_s": budget_s, "raw_file": SAMPLES}
    record = await run_guarded(tool="run_storage_bench", arguments=arguments, script="storage_bench.py", settings=settings,
                               shape=judged_storage_bench.shape, device="cpu", wait_s=wait_s, python=python or None,
                               limit_s=2 * budget_s + STARTUP_S, dry_run=dry_run, needs_torch=False)  # fmt: skip
    return StorageResult.model_validate(fields(record, dry_run, detail))
