"""Asks the SLURM of this host, by its commands in their text forms, each with a deadline. Never changes anything.

squeue and sacct are asked for columns parted by `|`, the name last; scontrol's blocks have not changed since 17.x. What a
command refused is in `refused`, with its own words. Does not judge.

>>> ask("ann").text            # NotHere on a host without SLURM
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass, field

from skillserver import permissions, processes
from skillserver.errors import BadRequest, NotHere, TooLong

DEADLINE_S = 20.0
QUEUE_COLUMNS = "%i|%P|%u|%T|%M|%l|%D|%b|%r|%N|%j"
SACCT_COLUMNS = "JobID,User,Partition,State,ExitCode,Elapsed,Timelimit,TotalCPU,AllocCPUS,ReqMem,MaxRSS,NNodes,AllocTRES,NodeList,JobName"
NAME = re.compile(r"[A-Za-z0-9_][\w.@+,-]{0,99}")
JOB_ID = re.compile(r"\d{1,12}(?:_\d{1,9})?(?:\+\d{1,4})?")
PASTE = "paste the output of scontrol show node, squeue or sacct as text="


@dataclass
class Asked:
    """Output of all commands in one text, and what was refused."""

    text: str = ""
    refused: list[str] = field(default_factory=list)


def name(value: str, what: str) -> str:
    """A user or partition name that no shell or SLURM option can mistake. Raises BadRequest."""
    if value and not NAME.fullmatch(value):
        raise BadRequest(f"bad_{what}", f"{what} {value!r} is no name of SLURM's", next=f"pass the {what} as squeue shows it")
    return value


def job_id(value: str) -> str:
    """ "123" or "123_4". Raises BadRequest."""
    if not JOB_ID.fullmatch(value):
        raise BadRequest("bad_job_id", f"job_id {value!r} is not like 123 or 123_4", next="pass the id as squeue shows it, without a step")
    return value


def ask(user: str = "", job: str = "", partition: str = "") -> Asked:
    """The cluster and a user's jobs ("" = whoever runs this, "all" = everybody), or one job. Raises NotHere, TooLong, BadRequest."""
    permissions.require_run("inspect_slurm without text")
    asked = Asked()
    if job:
        _one_job(asked, job)
        if "PENDING" not in asked.text:
            return asked
    _run(asked, ["scontrol", "show", "partition", *([partition] if partition else [])], needed=not job)
    _run(asked, ["scontrol", "-d", "show", "node"], needed=not job)  # GresUsed: also where the site does not account for GPUs
    if not job:
        whose = [] if user == "all" else [f"--user={user or _me()}"]
        _run(asked, ["squeue", *whose, *([f"--partition={partition}"] if partition else []), "-o", QUEUE_COLUMNS], needed=False)
    return asked


def _one_job(asked: Asked, job: str) -> None:
    """scontrol knows it for some minutes after its end, sacct for ever where the site keeps accounts."""
    shown = _run(asked, ["scontrol", "show", "job", job], needed=False)
    accounted = _run(asked, ["sacct", "-P", "-j", job, "-o", SACCT_COLUMNS], needed=False)
    if "JobId=" not in shown and accounted.count("\n") < 2:
        raise BadRequest("no_such_job", f"SLURM does not know job {job}: {'; '.join(asked.refused) or 'sacct lists nothing'}",
                         next="check the id; where the site keeps no accounts a job is forgotten some minutes after its end")  # fmt: skip


def _run(asked: Asked, argv: list[str], *, needed: bool) -> str:
    done = processes.run_with_deadline(argv, DEADLINE_S)
    words = " ".join((done.stderr or done.stdout).split())[-300:]
    if done.rc == 127:
        raise NotHere("no_slurm", f"there is no {argv[0]} on this host", next=f"run it on a login node of the cluster, or {PASTE}")
    if done.rc is None and needed:
        raise TooLong(
            "slurm_slow", f"{' '.join(argv)} did not answer within {DEADLINE_S:.0f} s", next="ask again in a minute; slurmctld may be overloaded"
        )
    if done.rc and re.search(r"configuration source|contact slurm controller|Connection refused|Unable to contact|resolve", words, re.I):
        raise NotHere("slurm_unreachable", f"{argv[0]} is here but reaches no controller: {words}", next=f"ask on a login node, or {PASTE}")
    if done.rc and needed:
        raise BadRequest("slurm_refused", f"{' '.join(argv)} ended with {done.rc}: {words}", next="check the partition with sinfo -s")
    if done.rc != 0:
        asked.refused.append(f"{argv[0]}: {words or 'no answer in time'}")
        return ""
    asked.text += f"{done.stdout}\n\n"
    return done.stdout


def _me() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
