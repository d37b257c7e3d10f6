"""What judging a large kernel log costs: seconds and memory, from a path (streamed) and from a paste.

    python benchmarks/kernel_log_speed.py [MiB]

Writes logs of that size (50) into a temporary folder: `quiet` is ordinary traffic with one fault in 20,000 lines, `loud`
is nothing but Xid lines of eight GPUs. Each in a process of its own, time and traced memory apart; prints one line each.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

QUIET = 'Jan  1 00:00:01 node kernel: [{0}.123456] audit: type=1400 audit(1700000000.000:{0}): apparmor="ALLOWED" operation="open" pid={0}\n'
FAULT = "Jan  1 00:00:01 node kernel: [{0}.123456] NVRM: Xid (PCI:0000:{1:02x}:00): {2}, pid={0}, name=python, Ch 00000008\n"


def write(path: Path, mib: int, loud: bool) -> None:
    """A log of at least that many MiB."""
    with path.open("w") as file:
        line = 0
        while file.tell() < mib * 2**20:
            file.write("".join(
                FAULT.format(number, 0x18 + number % 8, (13, 31, 43, 45, 63)[number % 5]) if loud or number % 20_000 == 0 else QUIET.format(number)
                for number in range(line, line + 10_000)))  # fmt: skip
            line += 10_000


def judge(kind: str, path: Path, traced: bool) -> None:
    """Judge once and print what it took."""
    from skillserver.health import captures, report

    text = path.read_text() if kind == "paste" else ""
    if traced:
        tracemalloc.start()
    started = time.perf_counter()
    result = report.judge(captures.read([(path.name, text or captures.read_file(path))]))
    seconds = time.perf_counter() - started
    used = f"{tracemalloc.get_traced_memory()[1] / 2**20:.0f} MiB traced" if traced else f"{seconds:.2f} s"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = path.stat().st_size / 2**20
    print(f"{path.stem:6} {size:.0f} MiB as {kind:5}: {used}, peak {peak:.0f} MiB, {result.verdict}, {len(result.findings)} findings")


def main() -> None:
    """All four cases, or one (`--one KIND PATH TRACED`)."""
    if sys.argv[1:2] == ["--one"]:
        judge(sys.argv[2], Path(sys.argv[3]), sys.argv[4] == "traced")
        return
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as folder:
        for name in ("quiet", "loud"):
            path = Path(folder) / f"{name}.log"
            write(path, mib, name == "loud")
            for kind in ("path", "paste"):
                for traced in ("timed", "traced"):
                    subprocess.run([sys.executable, __file__, "--one", kind, str(path), traced], check=True)


if __name__ == "__main__":
    main()
