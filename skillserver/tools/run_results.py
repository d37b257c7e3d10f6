"""What every benchmark's face shares: its common arguments, its result, the flat answer of a job's record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from skillserver.jobs.store import JobRecord

SAMPLES = "samples.json"
STARTUP_S = 120.0  # torch from a slow disk takes a minute

Wait = Annotated[float, Field(ge=0, description="seconds")]
Python = Annotated[str, Field(description="environment")]
DryRun = Annotated[bool, Field(description="plan only")]
Detail = Annotated[bool, Field(description="samples")]
Plot = Annotated[str, Field(description="text, FILE.png")]
Nodes = Annotated[int, Field(ge=0, description="by SLURM; 0: here")]


class RunResult(BaseModel):
    """What every benchmark answers."""

    state: str = Field(description="done, running, failed, cancelled")
    job_id: str = ""
    next: str = ""
    note: str = ""
    error: dict[str, Any] | None = None
    verdict: str = Field(default="unknown", description="ok, warning, critical, unknown")
    reason: str = Field(default="", description="what the verdict rests on")
    findings: list[dict[str, Any]] = Field(default_factory=list)
    conditions: dict[str, Any] = Field(default_factory=dict, description="device, software, clocks, load and method while measuring")
    assumptions: list[str] = Field(default_factory=list)
    sections: list[str] = Field(default_factory=list, description="ids for read_knowledge")
    skipped: list[str] = Field(default_factory=list, description="what was not done and why")
    partial: bool = Field(default=False, description="the run was ended early")
    table: dict[str, Any] | None = Field(default=None, description="of several nodes: columns (median, spread, outliers), rows, failed")
    slurm: dict[str, Any] | None = Field(default=None, description="job_id, state, nodes")
    samples_file: str = Field(default="", description="every sample as JSON, on the host that ran it")
    samples: list[Any] | None = None
    plan: dict[str, Any] | None = Field(default=None, description="of a dry run")


def fields(record: JobRecord, dry_run: bool, detail: bool) -> dict[str, Any]:
    """The flat answer of a record: its state beside the fields of its result."""
    told: dict[str, Any] = {"state": record.state, "job_id": record.job_id, "next": record.next, "note": record.note, "error": record.error}
    if dry_run:
        return told | {"plan": record.result}
    if record.state == "running" and record.slurm_job_id and record.progress:  # why it waits in the queue, or how far its nodes are
        told["note"] = "; ".join(part for part in (record.note, record.progress["message"]) if part)
    if (record.result or {}).get("slurm"):
        return told | {"samples_file": str(Path(record.run_folder) / "nodes")} | (record.result or {})
    file = Path(record.run_folder) / SAMPLES if record.run_folder else None
    if file and file.is_file():
        told["samples_file"] = str(file)
        told["samples"] = json.loads(file.read_text(encoding="utf-8")) if detail else None
    told |= record.result or {}
    return told | {"next": told["next"] or _next(told)}


def _next(told: dict[str, Any]) -> str:
    """What usually follows a run that ended; findings carry their own actions, worst first."""
    if told["state"] != "done":
        return ""
    if any(one["severity"] in ("warning", "critical") for one in told.get("findings") or []):
        return "do what the action of the first finding says, then call it again"
    return "`skillserver compare` shows this beside earlier results and other nodes" if told.get("history_file") else ""
