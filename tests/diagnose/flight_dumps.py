"""Writes Flight Recorder dumps as torch 2.13 writes them, for worlds that no test machine could run."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

START_NS = 1_700_000_000_000_000_000
STEP_NS = 10_000_000
FRAMES = [("all_reduce", "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252)] + [
    (f"level_{depth}", f"/home/user/train/model_{depth}.py", 10 * depth + 7) for depth in range(8)
]


def entry(record: int, seq: int, op: str = "all_reduce", size: Iterable[int] = (1024,), group: tuple[str, str] = ("0", "default_pg"), *,
          backend: str = "nccl", done: bool = True, state: str = "", dtype: str = "Float", pg_id: int = 0, at_ns: int | None = None,
          timeout_ms: int = 600_000, p2p: bool = False) -> dict[str, Any]:  # fmt: skip
    """One collective; gloo stays `scheduled` for ever."""
    default = "scheduled" if backend == "gloo" else "completed" if done else "scheduled"
    return {
        "record_id": record, "pg_id": pg_id, "process_group": group, "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": record,
        "profiling_name": f"{backend}:{op}", "time_created_ns": START_NS + record * STEP_NS if at_ns is None else at_ns,
        "input_sizes": [list(size)], "output_sizes": [list(size)], "input_dtypes": [dtype], "output_dtypes": [dtype],
        "state": state or default, "retired": done, "timeout_ms": timeout_ms, "is_p2p": p2p, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "thread_name": "python", "thread_id": "1",
        "frames": [{"name": name, "filename": file, "line": line} for name, file, line in FRAMES],
    }  # fmt: skip


def steps(n: int, **kwargs: Any) -> list[dict[str, Any]]:
    """Collectives 1..n, all done."""
    return [entry(seq - 1, seq, **kwargs) for seq in range(1, n + 1)]


def write(folder: Path, rank: int, entries: list[dict[str, Any]], config: dict[str, Any] | None = None, *, as_json: bool = False,
          after_s: float = 20.0) -> Path:  # fmt: skip
    """The file of one rank; its time is `after_s` after its last entry."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = {"version": "2.10", "comm_lib_version": "2.27.3", "pg_config": config or {}, "pg_status": {}, "entries": entries}
    path = folder / f"nccl_trace_rank_{rank}"
    if as_json:
        path = path.with_suffix(".json")
        path.write_text(json.dumps(raw | {"entries": [{k: v for k, v in row.items() if k != "frames"} for row in entries]}))
    else:
        path.write_bytes(pickle.dumps(raw, protocol=2))
    last_s = max((row["time_created_ns"] for row in entries), default=START_NS) / 1e9
    os.utime(path, (last_s + after_s, last_s + after_s))
    return path


def config(**groups: Iterable[int]) -> dict[str, Any]:
    """pg_config of NCCL: name -> ranks; a leading `g` of the keyword is dropped (g0 -> "0")."""
    return {name[1:]: {"name": name[1:], "desc": "default_pg" if name == "g0" else "undefined", "ranks": str(list(ranks))}
            for name, ranks in groups.items()}  # fmt: skip
