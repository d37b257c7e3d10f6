"""The numbers of one finished benchmark, kept for `skillserver compare` with who measured them and with what.

A run that was cut short, or that measured nothing, is not kept. The host is the worker's, so that a result of another
node is kept under that node's name. Joins the answer of a benchmark with measure.history and the files of kept_results.

>>> keep("run_storage_bench", answer, metrics, part="ext4 at /scratch")
>>> answer["history_file"]
'/home/anna/.local/state/skillserver/history/20261130T113153Z-run_storage_bench-n17-4f0a9c21.json'
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from typing import Any

import skillserver
from skillserver.jobs.store import now
from skillserver.measure.history import Kept, Metric
from skillserver.procedures import kept_results

SOFTWARE = ("torch", "cuda", "hip", "nccl", "fio", "server")


def keep(tool: str, answer: dict[str, Any], metrics: Mapping[str, Metric], *, part: str = "", devices: int = 0) -> None:
    """Write the result and put its path under `history_file`, or the reason why it was not written under `skipped`."""
    if not metrics or answer.get("partial"):
        return
    conditions = answer.get("conditions") or {}
    worker = conditions.get("worker") or {}
    versions = {"skillserver": skillserver.__version__, "kernel": platform.release()}
    versions |= {name: str(conditions[name]) for name in SOFTWARE if conditions.get(name)}
    result = Kept(kind=tool, at=now(), host=worker.get("host") or socket.gethostname(), part=part, devices=devices, verdict=answer["verdict"],
                  disturbed=any(one["code"] == "not_alone" for one in answer["findings"]), driver=str(conditions.get("driver") or ""),
                  versions=versions, metrics=dict(metrics))  # fmt: skip
    answer["history_file"], why = kept_results.keep(result)
    answer["skipped"] += [why] if why else []
