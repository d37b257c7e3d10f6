"""How a job ended and why: memory kill, time limit, node failure, preemption, a signal, its own exit code, a person.

Rests on the states of job and steps, `ExitCode=status:signal`, and lines of slurmstepd. What SLURM itself decided is
certain; a SIGKILL without its word is not: sites without cgroups show a memory kill as FAILED 0:9. Does not read the
program's own log.

>>> post_mortem(Job("7", state="FAILED", exit_code="0:9"), []).cause
'killed'
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from pydantic import BaseModel, Field

from skillserver import topics
from skillserver.cluster.slurm_records import Job, Step
from skillserver.cluster.slurm_text import EMPTY, ENDED

SAYS = (
    ("time_limit", re.compile(r"DUE TO TIME LIMIT", re.I)),
    ("node_failure", re.compile(r"DUE TO NODE FAILURE|DUE TO NODE FAIL", re.I)),
    ("preempted", re.compile(r"DUE TO (?:JOB )?PREEMPTION", re.I)),
    ("requeued", re.compile(r"DUE TO JOB REQUEUE", re.I)),
    ("out_of_memory", re.compile(r"oom[-_ ]?kill|exceeded (?:job|step) memory limit|Exceeded .*memory limit|Out of memory: Kill", re.I)),
)
BY_STATE = {"OUT_OF_MEMORY": "out_of_memory", "TIMEOUT": "time_limit", "NODE_FAIL": "node_failure", "PREEMPTED": "preempted",
            "BOOT_FAIL": "boot_failure", "DEADLINE": "deadline", "LAUNCH_FAILED": "launch_failure"}  # fmt: skip
OUTPUT_SIGNAL = 53  # how SLURM reports that a batch script could not be set up: its folder or output file, or the prolog
OOM_STATUS = 125


@dataclass(frozen=True)
class Verdict:
    """What a cause means and what to do about it."""

    words: str
    action: str
    topics: tuple[str, ...]


CAUSES = {
    "out_of_memory": Verdict("the kernel killed a process because the job passed its memory limit (host memory, not the GPU's)",
                             "fix_setup: ask for more (--mem=0 takes the whole node), or fewer DataLoader workers", ("host_oom",)),
    "time_limit": Verdict("it reached its time limit", "fix_setup: save before the limit by a signal and requeue, or ask for more --time",
                          ("slurm_time_limit",)),
    "node_failure": Verdict("a node stopped answering or failed; the program is not to blame",
                            "restart_app: from the last checkpoint, and leave that node out until it was checked", ("slurm_ended", "slurm_nodes")),
    "preempted": Verdict("a job of higher priority took its nodes", "restart_app: from the last checkpoint; --requeue lets SLURM do it",
                         ("slurm_preemption",)),
    "requeued": Verdict("it was put back into the queue and starts again under the same id", "observe: it must find its latest checkpoint itself",
                        ("slurm_preemption",)),
    "boot_failure": Verdict("a node could not be booted or prepared for it", "restart_app: leave that node out", ("slurm_nodes",)),
    "deadline": Verdict("it could no longer end before its --deadline", "fix_setup: a later deadline or a shorter --time", ("slurm_ended",)),
    "launch_failure": Verdict("its start failed on a node", "fix_setup: see slurmd's log and the prolog of that node", ("slurm_ended",)),
    "cancelled": Verdict("somebody cancelled it", "none: ask who did, if it was not you", ("slurm_ended",)),
    "output_unwritable": Verdict("its script could not be set up: the folder or the output file cannot be written on the node, or a prolog failed",
                                 "fix_setup: check --output, --chdir and the file system on that node", ("slurm_ended",)),
    "killed": Verdict("a process was killed by SIGKILL; SLURM does not say by whom. Mostly memory where the site has no cgroups, else the kernel's "
                      "OOM killer, an epilog or a person", "observe: dmesg -T on the node and MaxRSS beside ReqMem tell memory from the rest",
                      ("slurm_ended", "host_oom")),
    "terminated": Verdict("a process was ended by SIGTERM: by scancel, a launcher that ends its ranks, or a time limit",
                          "observe: look for the first failing rank in its log", ("slurm_ended",)),
    "signal": Verdict("a process crashed by a signal of its own", "restart_app: after reading its log; a native crash leaves a core or a stack",
                      ("exit_codes",)),
    "exit_code": Verdict("the program itself returned an error; SLURM did nothing to it",
                         "fix_setup: read the log of the first rank that failed (explain_error)", ("exit_codes", "slurm_ended")),
    "step_failed": Verdict("the job counts as completed, but one of its steps failed: the script's last command succeeded all the same",
                           "fix_setup: end the script with the status of srun", ("slurm_ended",)),
    "completed": Verdict("it completed with exit code 0", "none", ("slurm_ended",)),
    "failed": Verdict("it failed; nothing shown says how", "observe: sacct with State, ExitCode and the steps", ("slurm_ended",)),
}  # fmt: skip


class PostMortem(BaseModel):
    """Why a job ended. `certain` means that SLURM itself said so."""

    job_id: str
    cause: str
    words: str
    certain: bool
    evidence: list[str] = Field(default_factory=list)
    first_failed_step: str = ""
    nodes: str = ""
    action: str
    sections: list[str] = Field(default_factory=list)


def post_mortem(job: Job, events: list[str]) -> PostMortem | None:
    """Why it ended; None while it waits or runs. `events` are lines of slurmstepd, kept when they are about this job."""
    mine = [line for line in events if job.id.split("_")[0] in named_jobs(line)] or [line for line in events if not named_jobs(line)]
    said = next((cause for cause, pattern in SAYS if any(pattern.search(line) for line in mine)), "")
    sure = any(named_jobs(line) for line in mine)
    if job.state not in ENDED and not (said and not job.state):
        return None
    step = first_failed(job)
    cause, certain = _cause(job, step, said, sure)
    verdict = CAUSES[cause]
    states = f"job {job.state_text or job.state or '(state not shown)'}" + (f", ExitCode {job.exit_code}" if job.exit_code else "")
    evidence = [states + (f", {_reason(job)}" if job.why not in EMPTY else "")]
    evidence += [f"step {step.name}: {step.state} {step.exit_code}".rstrip()] if step else []
    evidence += _memory(job, cause) + mine[:3]
    return PostMortem(job_id=job.id, cause=cause, words=_worded(cause, verdict.words, job, step), certain=certain, evidence=evidence,
                      first_failed_step=step.name if step else "", nodes=job.node_list, action=verdict.action,
                      sections=topics.sections(*verdict.topics))  # fmt: skip


def named_jobs(line: str) -> list[str]:
    """Job ids that a line of slurmstepd or the kernel names; the kernel's often name none and are a hint only."""
    return re.findall(r"(?:JOB |STEP |StepId=|JobId=|job |step |job_)(\d+)", line)


def _reason(job: Job) -> str:
    return f"reason {job.why}"


def first_failed(job: Job) -> Step | None:
    """The first step that did not succeed; the batch script and srun's helper only when no other did."""
    bad = [step for step in job.steps if step.state in ENDED and step.state != "COMPLETED" and step.name != "job"]
    real = [step for step in bad if step.name.split("+")[0].isdigit()]
    order = {"OUT_OF_MEMORY": 0, "NODE_FAIL": 1, "FAILED": 2}  # a cancelled step is mostly a consequence
    return min(real or bad, key=lambda step: order.get(step.state, 3), default=None)


def _cause(job: Job, step: Step | None, said: str, sure: bool) -> tuple[str, bool]:
    """(cause, whether SLURM said so)."""
    if job.state in BY_STATE:
        return BY_STATE[job.state], True
    if said and job.state != "COMPLETED":
        return said, sure
    if any(known.state == "OUT_OF_MEMORY" for known in job.steps) or job.why == "OutOfMemory":
        return "out_of_memory", True
    if job.state == "COMPLETED":
        return ("step_failed", True) if step and step.name.isdigit() else ("completed", True)
    if job.state == "CANCELLED":
        return "cancelled", True
    return _by_code(job, step)


def _by_code(job: Job, step: Step | None) -> tuple[str, bool]:
    code = _parsed(step.exit_code if step else "") or (0, 0)
    if code == (0, 0):
        code = _parsed(job.exit_code) or (0, 0)
    status, number = code
    own = _parsed(job.exit_code) or (0, 0)
    if own[1] == OUTPUT_SIGNAL or number == OUTPUT_SIGNAL:
        return "output_unwritable", False
    if own == (0, OOM_STATUS) or code == (0, OOM_STATUS):
        return "out_of_memory", True
    number = number or (status - 128 if 128 < status < 128 + 65 else 0)  # a shell's way to say it
    if number == signal.SIGKILL:
        return "killed", False
    if number == signal.SIGTERM:
        return "terminated", False
    if number:
        return "signal", False
    return ("exit_code", False) if status else ("failed", False)


def _parsed(code: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d+):(\d+)", code.strip())
    return (int(found[1]), int(found[2])) if found else None


def _worded(cause: str, words: str, job: Job, step: Step | None) -> str:
    code = _parsed(step.exit_code if step else "") or (0, 0)
    status, number = code if code != (0, 0) else _parsed(job.exit_code) or (0, 0)
    if cause == "exit_code":
        return f"{words} (exit status {status})"
    if cause == "signal":
        return f"{words} ({_name(number or status - 128)})"
    if cause == "cancelled":
        return f"{words} ({_canceller(job.state_text)})" if " by " in job.state_text else words
    if cause == "out_of_memory" and step:
        return f"{words}, in step {step.name}"
    return words


def _canceller(state_text: str) -> str:
    who = state_text.split(" by ")[1].strip()
    return "user id 0: root or SLURM itself" if who == "0" else f"user id {who}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _memory(job: Job, cause: str) -> list[str]:
    peak = max((step.max_rss_gib for step in job.steps if step.max_rss_gib is not None), default=None)
    if peak is None or job.requested_gib is None or cause not in ("out_of_memory", "killed"):
        return []
    per = {"n": " a node", "c": " a CPU"}.get(job.requested_per, "")
    return [f"largest task's MaxRSS {peak:.3g} GiB (sampled, may miss the peak), requested {job.requested_gib:.3g} GiB{per}"]
