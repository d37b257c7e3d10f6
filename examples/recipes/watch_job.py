"""Say so when a run has gone quiet: a log or heartbeat file that no longer grows, or a job that is no longer in the queue.

    */10 * * * *  python watch_job.py /data/run/train.log --minutes 30 --job train-7b || mail -s "train-7b" me@example.org < /tmp/watch.txt

Ends with 0 (alive), 1 (quiet) or 2 (gone), and prints one line. A hang keeps the job RUNNING, so the queue alone says nothing;
take the time limit longer than the longest evaluation or checkpoint.
"""

import argparse
import subprocess
import time
from pathlib import Path


def quiet_minutes(file: Path, now: float | None = None) -> float:
    """Minutes since the file last changed. Raises FileNotFoundError."""
    return ((now or time.time()) - file.stat().st_mtime) / 60


def in_queue(name: str) -> bool:
    """Whether a job of that name is running or waiting."""
    asked = subprocess.run(["squeue", "--noheader", "--name", name, "--states", "RUNNING,PENDING,SUSPENDED,CONFIGURING"],
                           capture_output=True, text=True, check=True)  # fmt: skip
    return bool(asked.stdout.strip())


def verdict(file: Path, minutes: float, job: str = "") -> tuple[int, str]:
    """(exit status, the line)."""
    if job and not in_queue(job):
        return 2, f"{job} is neither running nor waiting"
    if not file.exists():
        return 1, f"{file} is not there"
    idle = quiet_minutes(file)
    return (1, f"{file} has not changed for {idle:.0f} min (limit {minutes:g})") if idle > minutes else (0, f"{file} changed {idle:.1f} min ago")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--job", default="", help="name of the SLURM job")
    told = parser.parse_args()
    status, line = verdict(told.file, told.minutes, told.job)
    print(line)
    raise SystemExit(status)
