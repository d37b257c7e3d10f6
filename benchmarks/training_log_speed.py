"""What reading a large training log costs: seconds a gigabyte and peak memory, for three kinds of lines.

    python benchmarks/training_log_speed.py [MB] [rounds]

Writes logs of that size (50) into a temporary folder: `megatron` is wide reports only, `noise` is one report among twenty
lines of ordinary chatter, NCCL set-up and warnings, `modded` is short reports. Each is read in a process of its own, the kinds
in turn, `rounds` times (7); prints one line of JSON a kind: median and spread of seconds a GB by the clock, the median of
processor seconds to read a GB and to judge the reports (which stops growing at 400,000 of them), and the highest memory.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MEGATRON = (
    " iteration {0:8d}/ 9999999 | consumed samples: {1:12d} | elapsed time per iteration (ms): {2:.1f} | learning rate: 6.000E-05 |"
    " global batch size:  2048 | lm loss: {3:.6E} | loss scale: 4096.0 | grad norm: {4:.3f} | num zeros: 0.0 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
MODDED = "step:{0}/9999999 train_loss:{3:.4f} train_time:{5}ms step_avg:{2:.2f}ms\n"
CHATTER = (
    "node{6:03d}:{0}:{0} [{7}] NCCL INFO Channel {7:02d}/0 : {7}[{7}] -> {8}[{8}] via P2P/IPC\n",
    "[2026-01-02 03:04:{8:02d},{9:03d}] [INFO] [logging.py:96:log_dist] [Rank {7}] rank {7} waits {2:.3f} s for batch {0}\n",
    "time (ms) | forward-compute: {2:.2f} | backward-compute: {4:.2f} | optimizer: {3:.2f}\n",
    "/opt/env/lib/python3.11/site-packages/torch/utils/checkpoint.py:{8}: UserWarning: None of the inputs have requires_grad=True {0}\n",
    "INFO dataset shard {0:06d} of worker {7} opened, {1} samples\n",
    "[rank{7}]: saving checkpoint at iteration {0} to /data/run/global_step{0}\n",
    "node{6:03d}:{0}:{1} [{7}] NCCL INFO NET/IB : Using [{7}]mlx5_{7}:1/RoCE [RO]; OOB eth0:10.0.0.{8}<0>\n",
    "GPU {7} memory allocated {2:.1f} MiB reserved {4:.1f} MiB retries 0\n",
)


def lines(kind: str) -> Iterator[str]:
    """Lines of a kind, without end."""
    number = 0
    while True:
        number += 1
        told = (number, number * 2048, 900 + number % 97, 2 + 1 / (1 + number % 1009 / 1e3), 0.5 + number % 13 / 50, number * 905,
                number % 128, number % 8, number % 60, number % 1000)  # fmt: skip
        if kind == "modded":
            yield MODDED.format(*told)
            continue
        yield MEGATRON.format(*told)
        if kind == "noise":
            for at in range(20):
                yield CHATTER[(number + at) % len(CHATTER)].format(*told)


def write(path: Path, kind: str, size: int) -> None:
    """A log of at least that many bytes."""
    written = 0
    with path.open("w") as file:
        for line in lines(kind):
            file.write(line)
            written += len(line)
            if written >= size:
                return


def read_once(path: Path) -> None:
    """Diagnose once and print what it took."""
    from skillserver.diagnose import log_reading, log_report

    gb = path.stat().st_size / 1e9
    started, at_first = time.perf_counter(), time.process_time()
    log = log_reading.read_file(path)
    at_read = time.process_time()
    report = log_report.diagnose([(path.name, log)])
    seconds, judged = time.perf_counter() - started, time.process_time() - at_read
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = {"s_per_gb": seconds / gb, "read_cpu_s_per_gb": (at_read - at_first) / gb, "judge_cpu_s": judged, "peak_mib": peak}
    print(json.dumps({**told, "format": report.format, "reports": report.reports}))


def main() -> None:
    """All kinds in turn, or one file (`--one PATH`)."""
    if sys.argv[1:2] == ["--one"]:
        read_once(Path(sys.argv[2]))
        return
    size = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 50_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    kinds = ("megatron", "noise", "modded")
    seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            write(Path(folder) / f"{kind}.log", kind, size)
        for _round in range(rounds):
            for kind in kinds:
                argv = [sys.executable, __file__, "--one", str(Path(folder) / f"{kind}.log")]
                seen[kind].append(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))
    for kind, each in seen.items():
        speeds = [one["s_per_gb"] for one in each]
        spread = [round(min(speeds), 1), round(max(speeds), 1)]
        peak = round(max(one["peak_mib"] for one in each))
        cpu = {name: round(statistics.median(one[name] for one in each), 1) for name in ("read_cpu_s_per_gb", "judge_cpu_s")}
        print(
            json.dumps({"kind": kind, "mb": size / 1e6, "s_per_gb": round(statistics.median(speeds), 1), "spread": spread, **cpu, "peak_mib": peak})
        )


if __name__ == "__main__":
    main()
