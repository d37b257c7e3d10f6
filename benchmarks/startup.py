"""Spawn to first `tools/list` answer over stdio: `skillserver serve` beside a bare MCPServer with one tool.

Interleaved pairs, raw JSON-RPC (no client library in the way); prints medians, spread and the ratio of medians.
Promise: at most 1.3.    .venv/bin/python benchmarks/startup.py [pairs]
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = Path(__file__).with_name("bare_server.py")
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "startup", "version": "0"}}
ASKED = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
]
TEXT = "".join(json.dumps(message) + "\n" for message in ASKED)


def seconds_to_list(command: list[str], home: str) -> float:
    """Time from spawn to the line that answers tools/list."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env={"PATH": "/usr/bin:/bin", "HOME": home, "SKILLSERVER_HOME": home})  # fmt: skip
    assert process.stdin and process.stdout
    process.stdin.write(TEXT)
    process.stdin.flush()
    while json.loads(process.stdout.readline()).get("id") != 2:
        pass
    taken = time.perf_counter() - started
    process.communicate()
    return taken


def main(pairs: int = 11) -> None:
    """Print one line of JSON."""
    commands = {"bare": [sys.executable, str(BARE)], "skillserver": [sys.executable, "-m", "skillserver", "serve"]}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as home:
        for pair in range(-1, pairs):  # the first pair warms the disk and is not counted
            for name, command in commands.items():
                seconds = seconds_to_list(command, home)
                if pair >= 0:
                    taken[name].append(seconds)
    found = {
        name: {"median_ms": round(1000 * statistics.median(times)), "min_ms": round(1000 * min(times)), "max_ms": round(1000 * max(times))}
        for name, times in taken.items()
    }
    ratio = statistics.median(taken["skillserver"]) / statistics.median(taken["bare"])
    print("startup", json.dumps(found | {"pairs": pairs, "ratio": round(ratio, 3)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
