"""What ranks saw of each other -> findings: causes before consequences, torch's steps told apart."""

from typing import Any

import pytest

from skillserver.measure import connectivity

NO_FAULT = {"variable": "", "interface": "eth0", "error": None, "why": ""}


def rank(number: int, host: str = "", **more: Any) -> dict[str, Any]:
    address = f"10.0.0.{number + 1}"
    chosen = {library: NO_FAULT | {"address": address} for library in ("gloo", "nccl")}
    return {"rank": number, "host": host or f"n{number}", "name_addresses": [address], "name_error": None,
            "interfaces": [{"name": "lo"}, {"name": "eth0"}], **chosen, **more}  # fmt: skip


def link(a: int, b: int, outcome: str = "ok", kinds: tuple[str, ...] = ("name", "gloo", "nccl")) -> dict[str, Any]:
    return {"from": a, "to": b, "outcome": outcome, "kinds": list(kinds), "address": f"10.0.0.{b + 1}", "interface": "eth0", "detail": "", "ms": 0.1}


def met(links: list[dict[str, Any]], count: int = 3, group: dict[str, Any] | None = None, **ranks: dict[str, Any]) -> list[tuple[str, str, str]]:
    there = [ranks.get(f"n{number}", rank(number)) for number in range(count)]
    told = {"world": count, "limit_s": 5, "ranks": there, "absent": [], "unfinished": [], "links": links, "group": group}
    return [(finding.code, finding.severity, finding.subject) for finding in connectivity.ranks(told)]


def test_nothing_is_found_where_all_is_well() -> None:
    assert met([link(a, b) for a in range(3) for b in range(3) if a != b]) == []


def test_one_direction_is_told_as_one() -> None:
    links = [link(0, 1, "timeout"), link(1, 0), link(0, 2), link(2, 0), link(1, 2), link(2, 1)]
    assert met(links) == [("packets_dropped", "critical", "n0 (rank 0) -> n1 (rank 1)")]


def test_only_the_address_of_nccl_failing_is_a_warning() -> None:
    links = [link(0, 1), link(0, 1, "unreachable", ("nccl",)), link(1, 0), link(2, 1)]
    assert met(links) == [("no_route", "warning", "n0 (rank 0) -> n1 (rank 1)")]


def test_of_two_outcomes_of_a_pair_the_telling_one_names_it() -> None:
    links = [link(0, 1, "timeout"), link(1, 0, "unreachable"), link(0, 2), link(2, 0), link(1, 2), link(2, 1)]
    assert met(links) == [("no_route", "critical", "n0 (rank 0) <-> n1 (rank 1)")]


def test_a_rank_that_went_away_is_named() -> None:
    told = {"world": 2, "limit_s": 5, "ranks": [rank(0), rank(1)], "absent": [], "unfinished": [1], "links": [], "group": {}}
    assert [finding.code for finding in connectivity.ranks(told)] == ["rank_lost"]


@pytest.mark.parametrize(
    ("steps", "code", "subject"),
    [
        (("done", "store"), "rendezvous_failed", "n1 (rank 1)"),
        (("sum", "group"), "group_failed", "n1 (rank 1)"),
        (("group", "group"), "group_failed", "n0 (rank 0), n1 (rank 1)"),
        (("import", "store"), "torch_failed", "n0 (rank 0)"),
        (("sum", "done"), "collective_failed", "n0 (rank 0)"),
    ],
)
def test_the_first_step_of_torch_that_failed_is_the_cause(steps: tuple[str, str], code: str, subject: str) -> None:
    answers = [{"rank": number, "step": step, "words": "said"} for number, step in enumerate(steps)]
    assert met([link(0, 1), link(1, 0)], 2, {"answers": answers}) == [(code, "critical", subject)]


def test_loopback_is_no_fault_on_one_host() -> None:
    here = {f"n{number}": rank(number, "n", name_addresses=["127.0.1.1"], gloo=NO_FAULT | {"interface": "lo", "address": "127.0.1.1"})
            for number in range(2)}  # fmt: skip
    assert met([link(0, 1), link(1, 0)], 2, **here) == [("name_is_loopback", "info", "n")]


def test_a_bridge_of_containers_explains_its_own_failed_connections() -> None:
    bridged = rank(1, nccl=NO_FAULT | {"interface": "docker0", "address": "172.17.0.1"})
    links = [link(0, 1, kinds=("name", "gloo")), link(0, 1, "refused", ("nccl",)), link(2, 1, "refused", ("nccl",)), link(1, 0)]
    assert met(links, 3, n1=bridged) == [("bridge_chosen", "critical", "n1")]
