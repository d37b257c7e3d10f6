"""check_connectivity as a caller meets it: refusals, hosts by name, ranks of this host."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.errors import BadRequest, NotHere
from skillserver.jobs import device_locks, manager
from skillserver.permissions import Permissions
from skillserver.procedures import judged_connectivity, node_table
from skillserver.tools.connectivity import check_connectivity


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(manager, "default", manager.Manager())
    before = permissions.current()
    permissions.grant(Permissions(login_node=True))
    yield
    permissions.grant(before)


@pytest.mark.parametrize("host", ["", "n1:ssh", "n1:70000", "two words", "[]:22"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(BadRequest, match="bad_host"):
        check_connectivity.sync(hosts=[host])


def test_hosts_and_nodes_are_one_or_the_other() -> None:
    with pytest.raises(BadRequest, match="hosts_or_nodes"):
        check_connectivity.sync(hosts=["n1"], nodes=2)


def test_over_http_only_named_hosts_are_tried_and_nothing_without_permission() -> None:
    permissions.grant(Permissions(private_hosts=False, hosts=("n1",)))
    with pytest.raises(NotHere, match="host_not_permitted"):
        check_connectivity.sync(hosts=["n2"])
    permissions.grant(Permissions(run=False))
    with pytest.raises(NotHere, match="not_permitted"):
        check_connectivity.sync()


def test_a_port_that_listens_is_open_and_its_neighbour_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        told = check_connectivity.sync(hosts=[f"localhost:{there.getsockname()[1]}"], port=closed.getsockname()[1])
        other = check_connectivity.sync(hosts=["127.0.0.1"], port=closed.getsockname()[1])
    assert (told.state, told.verdict, told.hosts[0]["outcome"], told.hosts[0]["interface"]) == ("done", "ok", "open", "lo")
    assert (other.verdict, other.hosts[0]["outcome"], "nothing listens there" in other.reason) == ("warning", "closed", True)
    assert [one["code"] for one in other.findings] == ["port_closed"]


@pytest.mark.parametrize("host", ["http://n1:29500/", "a:b:c", "-oProxyCommand=x", "n1;reboot", "user@n1", "[n1", "n1:", ""])
def test_what_no_resolver_takes_is_refused_before_it_is_called_unresolved(host: str) -> None:
    with pytest.raises(BadRequest, match="bad_host"):
        check_connectivity.sync(hosts=[host])


def test_it_runs_beside_a_benchmark_of_the_cpu_and_asks_for_each_host_once() -> None:
    with device_locks.releasing(device_locks.Locks(["cpu"], "run_other")):
        told = check_connectivity.sync(hosts=["127.0.0.1", "127.0.0.1", "::1"])
    assert [row["host"] for row in told.hosts] == ["127.0.0.1", "::1"]


@pytest.mark.torch
def test_ranks_of_this_host_reach_each_other_and_make_a_group() -> None:
    pytest.importorskip("torch", reason="the group is torch's")
    told = check_connectivity.sync(nproc=2, wait_s=120, detail=True)
    assert (told.state, told.verdict, told.tested and told.tested["failed"]) == ("done", "ok", 0)
    assert told.tested is not None
    assert told.tested["group"].startswith("gloo of torch")
    assert told.samples is not None
    assert {link["outcome"] for link in told.samples} == {"ok"}


@pytest.mark.parametrize("host", ["[::1]", "::1", "[::1]:1"])
def test_an_address_of_the_newer_family_is_taken_with_and_without_brackets(host: str) -> None:
    told = check_connectivity.sync(hosts=[host], port=1)
    assert (told.hosts[0]["host"], told.hosts[0]["addresses"], told.hosts[0]["port"]) == ("::1", "::1", 1)


def test_nodes_that_joined_what_all_saw_are_told_once_and_without_their_names() -> None:
    lost = {"rank": 0, "host": "n1", "name_addresses": ["10.0.0.1"], "name_error": None, "interfaces": [],
            **{library: {"variable": "", "interface": "eth0", "address": "10.0.0.1", "error": None} for library in ("gloo", "nccl")}}  # fmt: skip
    payload = {"mode": "ranks", "limit_s": 5, "world": 2, "ranks": [lost], "absent": [1], "unfinished": [], "links": [], "group": {}}
    answers = {node: judged_connectivity.answer(payload) for node in ("n1", "n2")}
    told = node_table.joined(["n1", "n2"], answers, {}, {}, node_table.nothing)
    assert [(finding["code"], finding["subject"]) for finding in told["findings"]] == [("rank_absent", "ranks 1")]
    assert told["verdict"] == "critical"


def test_a_dry_run_starts_nothing() -> None:
    told = check_connectivity.sync(hosts=["n1"], dry_run=True)
    assert told.plan is not None
    assert (told.plan["settings"]["hosts"], told.verdict) == (["n1"], "unknown")
