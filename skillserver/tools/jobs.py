"""The face of long runs: follow, cancel or list the jobs that `run_*` tools started.

>>> await wait_job(job_id="run_mamf-1f3a9c20", wait_s=30)
WaitedJob(state='done', job_id='run_mamf-1f3a9c20', tool='run_mamf', result={...}, ...)
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.jobs import manager
from skillserver.jobs.store import JobRecord

SHOWN_JOBS = 20


class ListedJob(BaseModel):
    """One line of the list."""

    job_id: str
    tool: str
    state: str
    created: str
    message: str = Field(description="how far it is, or why it failed")


class WaitedJob(BaseModel):
    """A job as it stands, or the list of jobs (`state` is then `listed`)."""

    state: str = Field(description="done, running, failed, cancelled, lost, elsewhere; listed without an id")
    job_id: str = ""
    tool: str = ""
    result: dict[str, Any] | None = Field(default=None, description="as the tool itself answers; the best so far when cut short")
    error: dict[str, Any] | None = None
    progress: dict[str, Any] | None = Field(default=None, description="done, total, message")
    next: str = ""
    note: str = ""
    jobs: list[ListedJob] = Field(default_factory=list, description="newest first")
    skipped: list[str] = Field(default_factory=list, description="what was not shown and why")


@tool(toolset="core", title="Wait for a run", read_only=False, runs=True)
async def wait_job(
    job_id: Annotated[str, Field(description="from a run_* answer; empty lists all jobs")] = "",
    wait_s: Annotated[float, Field(ge=0, le=45, description="seconds to wait for its end")] = 30,
    cancel: Annotated[bool, Field(description="end it now; the best so far is kept")] = False,
) -> WaitedJob:
    """Call when a run_* tool answered state=running: waits for the job and returns its result. Also lists and cancels jobs.

    A running job that another host started is `elsewhere`; one whose process is gone is `lost`.
    """
    permissions.require_run("wait_job")
    if job_id:
        return _shown(await (manager.cancel(job_id) if cancel else manager.wait(job_id, wait_s)))
    if cancel:
        known, _ = await manager.listed()
        raise BadRequest("no_job_id", "cancel=true needs a job_id", valid=[job.job_id for job in known if job.state == "running"],
                         next="pass the job_id of the run to end")  # fmt: skip
    return _listed(*await manager.listed())


def _shown(record: JobRecord) -> WaitedJob:
    return WaitedJob(state=record.state, job_id=record.job_id, tool=record.tool, result=record.result, error=record.error,
                     progress=record.progress if record.state == "running" else None, next=record.next, note=record.note)  # fmt: skip


def _listed(records: list[JobRecord], broken: list[str]) -> WaitedJob:
    jobs = [ListedJob(job_id=record.job_id, tool=record.tool, state=record.state, created=record.created, message=_message(record))
            for record in records[:SHOWN_JOBS]]  # fmt: skip
    more = [f"{len(records) - SHOWN_JOBS} older jobs; each is still found by its id"] if len(records) > SHOWN_JOBS else []
    running = next((job.job_id for job in jobs if job.state == "running"), "")
    none = "" if jobs else "no job is recorded here; a run_* tool starts one"
    return WaitedJob(state="listed", jobs=jobs, skipped=more + broken, next=f'wait_job(job_id="{running}")' if running else none)


def _message(record: JobRecord) -> str:
    if record.error:
        return f"{record.error.get('code', '')}: {record.error.get('message', '')}"[:200]
    return str((record.progress or {}).get("message", ""))
