"""The error of a run that failed, raised anew for whoever called the tool. Knows records; not what ran.

>>> or_error(record).state
'done'
"""

from __future__ import annotations

from skillserver.errors import BadRequest, NotHere, SkillError, TooLong, WorkerFailed
from skillserver.jobs.store import JobRecord

ERRORS: dict[str, type[SkillError]] = {kind.__name__: kind for kind in (BadRequest, NotHere, TooLong, WorkerFailed)}


def or_error(record: JobRecord) -> JobRecord:
    """The record; raises a failed run's own error when it has nothing else to show."""
    if record.state != "failed" or record.result is not None:
        return record
    said = record.error or {"code": "worker_failed", "message": "the run failed without a word"}
    raise ERRORS.get(record.error_kind, WorkerFailed)(said["code"], said["message"], next=said.get("next", ""), valid=said.get("valid", []))
