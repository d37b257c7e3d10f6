"""The connectivity worker between hosts of our own: each kind of fault is made for real and told apart from the others."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from networks import SCRIPTS, Network, missing, network

from skillserver.procedures import judged_connectivity

needs_namespaces = pytest.mark.skipif(bool(missing()), reason=missing())
NAMES = "127.0.0.1 localhost\n10.77.0.1 n1\n"


def dropped(net: Network) -> None:
    """What n1 sends to n3 goes to a station that is not there, as with a firewall that drops."""
    net.on("n1", "ip", "neigh", "add", net.address["n3"], "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")


def no_route(net: Network) -> None:
    net.on("n3", "ip", "route", "add", "unreachable", f"{net.address['n2']}/32")


def unknown_name(net: Network) -> None:
    net.names("n1", f"{NAMES}10.77.0.3 n3\n")


def debian_name(net: Network) -> None:
    net.names("n2", f"{NAMES}127.0.1.1 n2\n10.77.0.3 n3\n")


def another_hosts_address(net: Network) -> None:
    net.names("n1", f"{NAMES}10.77.0.2 n2\n10.77.0.2 n3\n")


def a_dead_address_first(net: Network) -> None:
    """The name has two addresses, and only the second is alive: connecting by name works all the same."""
    net.names("n1", f"{NAMES}10.77.0.99 n2\n10.77.0.2 n2\n10.77.0.3 n3\n")


def docker_bridge(net: Network) -> None:
    for words in (("link", "add", "docker0", "type", "bridge"), ("addr", "add", "172.17.0.1/16", "dev", "docker0"), ("link", "set", "docker0", "up")):
        net.on("n2", "ip", *words)


def small_frames(net: Network) -> None:
    """The switch port of n3 takes less than the hosts send, and says nothing."""
    net.on("switch", "ip", "link", "set", "n3", "mtu", "1000")
    for host in net.hosts:
        net.on(host, "ip", "link", "set", "eth0", "gso_max_segs", "1")


def unplugged(net: Network) -> None:
    net.on("switch", "ip", "link", "set", "n3", "down")


def nothing(net: Network) -> None:
    """All is well."""


@needs_namespaces
@pytest.mark.parametrize(
    ("prepare", "more", "found"),
    [
        (nothing, {}, []),
        (dropped, {}, [("packets_dropped", "n1 (rank 0) <-> n3 (rank 2)")]),
        (no_route, {}, [("no_route", "n2 (rank 1) <-> n3 (rank 2)")]),
        (unknown_name, {}, [("name_unresolved", "n1 (rank 0) -> n2 (rank 1)")]),
        (debian_name, {}, [("name_is_loopback", "n2")]),
        (a_dead_address_first, {"limit_s": 2}, []),
        (another_hosts_address, {}, [("connection_refused", "n1 (rank 0) -> n3 (rank 2)")]),
        (nothing, {"environment": {"n2": {"GLOO_SOCKET_IFNAME": "eth9"}}}, [("interface_missing", "n2")]),
        (nothing, {"environment": {"n2": {"GLOO_SOCKET_IFNAME": "lo"}}}, [("loopback_chosen", "n2")]),
        (docker_bridge, {"environment": {"n2": {"NCCL_SOCKET_IFNAME": "docker"}}}, [("bridge_chosen", "n2")]),
        (small_frames, {}, [("large_packets_lost", "n3 (rank 2) with all 2 others")]),
        (unplugged, {}, [("packets_dropped", "n3 (rank 2) with all 2 others")]),
        (nothing, {"only": ("n1", "n2"), "meet_s": 1}, [("rank_absent", "ranks 2")]),
    ],
)
def test_each_fault_is_told_apart(tmp_path: Path, prepare: Callable[[Network], None], more: dict[str, Any], found: list[tuple[str, str]]) -> None:
    with network(tmp_path, "n1", "n2", "n3") as net:
        prepare(net)
        told = judged_connectivity.answer(net.check(**more))
    assert [(finding["code"], finding["subject"]) for finding in told["findings"]] == found
    assert told["verdict"] == ("critical" if found else "ok")


@needs_namespaces
def test_a_failed_pair_is_told_with_address_interface_and_limit(tmp_path: Path) -> None:
    with network(tmp_path, "n1", "n2", "n3") as net:
        dropped(net)
        evidence = judged_connectivity.answer(net.check())["findings"][0]["evidence"]
    assert evidence[0] == "n1 (rank 0) to n3 (rank 2), name/gloo/nccl: 10.77.0.3 over eth0: no answer in 0.7 s"


@needs_namespaces
@pytest.mark.torch
def test_hosts_that_reach_each_other_make_a_group(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the group is torch's")
    with network(tmp_path, "n1", "n2") as net:
        told = judged_connectivity.answer(net.check(group=True, limit_s=10))
    assert (told["verdict"], told["tested"]["group"].split()[0]) == ("ok", "gloo")


def run(cwd: Path, **settings: Any) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPTS / "connectivity.py"), "--settings", json.dumps(settings)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, env={"PATH": os.environ["PATH"], "SLURM_PROCID": "3"})
    return json.loads(done.stdout.splitlines()[-1])


def test_ranks_of_this_host_reach_each_other(tmp_path: Path) -> None:
    payload = run(tmp_path, ranks=3, group=False, raw_file="samples.json")["payload"]
    assert {(link["from"], link["to"]) for link in payload["links"]} == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}
    assert {link["outcome"] for link in payload["links"]} == {"ok"}
    assert json.loads((tmp_path / "samples.json").read_text()) == payload["links"]


def test_one_rank_has_nobody_to_reach(tmp_path: Path) -> None:
    assert run(tmp_path, ranks=1)["code"] == "one_rank"


def test_hosts_are_open_closed_or_unknown(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        hosts = [f"localhost:{there.getsockname()[1]}", f"127.0.0.1:{closed.getsockname()[1]}", "no-such-host.invalid"]
        told = judged_connectivity.answer(run(tmp_path, hosts=hosts, limit_s=5)["payload"])
    assert [row["outcome"] for row in told["hosts"]] == ["open", "closed", "unresolved"]
    assert (told["verdict"], [finding["code"] for finding in told["findings"]]) == ("critical", ["name_unresolved", "port_closed"])


@pytest.mark.torch
def test_a_store_that_nobody_opened_is_the_step_that_fails(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the store is torch's")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        env = {"PATH": os.environ["PATH"], "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(closed.getsockname()[1])}
        done = subprocess.run([sys.executable, str(SCRIPTS / "torch_group.py"), "gloo", "1"], capture_output=True, text=True, env=env, timeout=100)
    assert (done.returncode, json.loads(done.stdout.splitlines()[-1])["step"]) == (1, "store")
