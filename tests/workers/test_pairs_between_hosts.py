"""The tournament between hosts of our own, one of which has a slow wire: a real queue on its interface, no sleep."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from networks import SCRIPTS, missing, network

from skillserver.measure import pair_matrix

pytest.importorskip("torch", reason="the worker's environment is this one")
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]
SLOW_WIRE = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "64kb", "latency", "400ms")


def no_queue() -> str:
    if not shutil.which("tc"):
        return "tc is not installed"
    tried = subprocess.run(["unshare", "--net", *SLOW_WIRE[:4], "lo", *SLOW_WIRE[5:]], capture_output=True, text=True)
    return f"no tc tbf here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.skipif(not missing() and bool(no_queue()), reason="no tc tbf here")
def test_a_host_with_a_slow_wire_is_named(tmp_path: Path) -> None:
    hosts = ("n1", "n2", "n3", "n4")
    settings = {"backend": "gloo", "sizes": [2**20], "budget_s": 6, "passes": 2}
    command = [
        sys.executable,
        str(SCRIPTS / "launch.py"),
        "--nproc",
        "1",
        "--nodes",
        "4",
        str(SCRIPTS / "torch_pairs.py"),
        "--settings",
        json.dumps(settings),
    ]
    plain = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "15001"}
    with network(tmp_path, *hosts) as net:
        net.on("n3", *SLOW_WIRE)
        children = [
            subprocess.Popen(net.inside(host, *command), env=plain | {"SLURM_NODEID": str(number)}, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
            for number, host in enumerate(hosts)
        ]
        said = [child.communicate(timeout=200)[0] for child in children]
    payload: dict[str, Any] = [json.loads(line) for line in said[0].splitlines() if line.strip()][-1]["payload"]
    told = pair_matrix.judge(payload["players"], payload["matrix"])
    assert (payload["player"], payload["players"], payload["correct"]) == ("host", list(hosts), True)
    assert (told.players, told.pairs) == (["n3"], [])
