"""What ranks and hosts found when they tried to reach each other -> findings that name the failing pair and the kind of fault.

Kinds told apart: a rank that never came; a name that does not resolve; a name that is loopback where it is used (Debian
writes 127.0.1.1 into /etc/hosts); an interface variable that names none; loopback or a container bridge chosen; packets
dropped (no answer in time), refused (the address answered), no route, large packets lost (MTU), another process behind
the address; and torch's own steps (store, group, sum). A fault of a host's own name or interface explains its failed
pairs, which are then counted there and not told again. Pure: takes what the workers wrote, knows no socket.

>>> ranks({"world": 2, "ranks": [...], "links": [...], ...})[0].code
'packets_dropped'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from skillserver import topics
from skillserver.findings import Finding

Document = dict[str, Any]
Link = Document
WORKING = "ok"
VIRTUAL = ("docker", "virbr", "veth", "br-", "cni", "flannel", "podman")
LISTED = 4
WHY = {
    "timeout": ("packets_dropped", "No answer in time: a firewall drops the packets, the way back is missing, or the host is gone.",
                "fix_setup: open TCP between the nodes (all ports: torch and NCCL take free ones), then check routes on both sides"),
    "refused": ("connection_refused", "The address answered, the port did not: a firewall rejects, or the address is another host's.",
                "fix_setup: compare the address with the host's own, and look for REJECT rules"),
    "unreachable": ("no_route", "This host knows no way there, or a rule of it forbids it.",
                    "fix_setup: look at ip route get ADDRESS and the rules here; both interfaces must be on one network or routed"),
    "unresolved": ("name_unresolved", "The name does not resolve here, so a launcher or gloo that uses it fails before any packet is sent.",
                   "fix_setup: put the name into DNS or /etc/hosts of every node, or use addresses"),
    "silent": ("no_words", "The connection was made and nobody spoke: a proxy or something else listens there, or packets after the first are lost.",
               "fix_setup: look for a transparent proxy, and compare MTUs"),
    "wrong_peer": ("wrong_peer", "Another process answered at this address: two hosts share it, or it leads to this host itself.",
                   "fix_setup: give every host an address of its own, and correct /etc/hosts"),
    "large_lost": ("large_packets_lost", "Small packets pass and large ones do not: the MTU on the way is smaller than on the ends.",
                   "fix_setup: set one MTU on all interfaces and switch ports (ping -M do -s 8972 finds the limit of jumbo frames)"),
}  # fmt: skip
TELLING = ("unresolved", "unreachable", "refused", "wrong_peer", "silent", "large_lost", "timeout")  # of several of a pair, what says most
STEPS = {
    "start": ("torch_failed", "torch could not be started."),
    "import": ("torch_failed", "torch could not be imported, or that took longer than allowed."),
    "store": (
        "rendezvous_failed",
        "The rank did not get to the store of the first rank: MASTER_ADDR or MASTER_PORT cannot be reached, or the store never came up.",
    ),
    "group": ("group_failed", "The store was reached and the group was not made: gloo or NCCL connects over another interface than the store."),
    "sum": ("collective_failed", "The group was made and the first sum failed: data goes over another path than the set-up."),
}


def ranks(told: Document) -> list[Finding]:
    """Findings about ranks that met, causes before consequences."""
    by_number = {one["rank"]: one for one in told["ranks"]}
    several = len({one["host"] for one in told["ranks"]}) > 1
    found = [*_absent(told), *_own_faults(told["ranks"], several)]
    faulty = {one["rank"]: _faulty(one) for one in told["ranks"]} if several else {}
    bad = [link for link in told["links"] if link["outcome"] != WORKING]
    found += _of_links([link for link in bad if not set(link["kinds"]) <= faulty.get(link["to"], set())], told, by_number)
    return found + _of_group(told.get("group") or {}, by_number)


def _faulty(one: Document) -> set[str]:
    """Kinds of addresses of a rank that cannot work, whoever tries them."""
    found = {library for library in ("gloo", "nccl") if one[library]["error"] or _is_loopback(one[library]) or _is_bridge(one[library])}
    return found | ({"name"} if "gloo" in found else set())


def hosts(told: Document) -> list[Finding]:
    """Findings about hosts seen from this one; a closed port of a host that answers is no fault of the network, but of a service that was named."""
    found = []
    for one in told["hosts"]:
        where = f"{one['host']}:{one['port']}"
        if not one["addresses"]:
            found.append(_finding("unresolved", f"{told['here']['host']} -> {one['host']}", [f"{one['host']}: {one['error']}"]))
            continue
        if all(address.startswith("127.") or address == "::1" for address in one["addresses"]) and one["host"] not in (
            "localhost",
            *one["addresses"],
        ):
            found.append(_loopback_name(one["host"], one["addresses"]))
        outcomes = {attempt["outcome"] for attempt in one["attempts"]}
        if outcomes == {"refused"} and one.get("port_named"):
            found.append(_port_closed(where, told["here"]["host"]))
        if WORKING in outcomes or outcomes == {"refused"}:
            continue
        worst = next(attempt for attempt in one["attempts"] if attempt["outcome"] != "refused")
        found.append(_finding(worst["outcome"], f"{told['here']['host']} -> {where}", [_seen(worst, told["limit_s"])]))
    return found


def _port_closed(where: str, here: str) -> Finding:
    return Finding(code="port_closed", severity="warning", subject=f"{here} -> {where}", evidence=[f"{where}: the host answers, the port is closed"],
                   reason="Nothing listens on the port that was named, or only on another address of that host, or a firewall rejects.",
                   action="fix_setup: start what should listen there; ss -tln on that host shows on which addresses it does",
                   sections=topics.sections("rendezvous"))  # fmt: skip


def closed_ports(told: Document) -> list[str]:
    """Hosts that answered and whose port is closed: reachable, and nothing listens."""
    return [
        f"{one['host']}:{one['port']}" for one in told["hosts"] if one["attempts"] and all(each["outcome"] == "refused" for each in one["attempts"])
    ]


def _absent(told: Document) -> list[Finding]:
    found = []
    if told["absent"]:
        found.append(Finding(code="rank_absent", severity="critical", subject=f"ranks {_listed(told['absent'])}",
                             evidence=[f"{len(told['ranks'])} of {told['world']} ranks appeared in the shared folder"],
                             reason="It was never started, or it does not see the folder that the others share.",
                             action="fix_setup: look at the output of the launcher on those nodes, and at the mount of the folder"))  # fmt: skip
    if told["unfinished"]:
        found.append(Finding(code="rank_lost", severity="critical", subject=f"ranks {_listed(told['unfinished'])}",
                             evidence=["appeared, and told nothing"],
                             reason="It was killed, or its node went away, while it tried the others.",
                             action="observe: look at the node's kernel log and at the scheduler"))  # fmt: skip
    return found


def _own_faults(ranks: list[Document], several: bool) -> list[Finding]:
    """What is wrong with a host before any packet is sent; each host once."""
    found = []
    for one in {one["host"]: one for one in ranks}.values():
        host, names = one["host"], [each["name"] for each in one["interfaces"]]
        for library, variable in (("gloo", "GLOO_SOCKET_IFNAME"), ("nccl", "NCCL_SOCKET_IFNAME")):
            chosen = one[library]
            if chosen["error"] and chosen["variable"]:
                found.append(_bad_variable(host, variable, chosen, names))
            elif several and not chosen["error"] and (_is_loopback(chosen) or _is_bridge(chosen)):
                if library == "gloo" and not chosen["variable"] and one["name_addresses"]:
                    found.append(_loopback_name(host, one["name_addresses"]) if _is_loopback(chosen) else _unfit(host, library, chosen, names))
                else:
                    found.append(_unfit(host, library, chosen, names))
        if not several and _is_loopback(one["gloo"]) and not one["gloo"]["variable"] and one["name_addresses"]:
            found.append(_loopback_name(host, one["name_addresses"]).model_copy(
                update={"severity": "info", "reason": "Fine for ranks of one host; with several, they would connect to themselves."}))  # fmt: skip
        if one["name_error"]:
            found.append(_finding("unresolved", host, [f"its own name {host}: {one['name_error']}"], "critical" if several else "warning"))
    return found


def _is_loopback(chosen: Document) -> bool:
    return chosen["address"].startswith("127.") or chosen["address"] == "::1"


def _is_bridge(chosen: Document) -> bool:
    return chosen["interface"].startswith(VIRTUAL)


def _bad_variable(host: str, variable: str, chosen: Document, names: list[str]) -> Finding:
    why = {
        "missing": "names no interface of this host",
        "down": "names an interface that is down",
        "no_address": "names an interface without an address",
    }
    return Finding(code=f"interface_{chosen['error']}", severity="critical", subject=host,
                   evidence=[f"{variable}={chosen['variable']} {why[chosen['error']]}; here: {', '.join(names)}"],
                   reason="The library ends, or waits for its timeout, when it cannot listen on the interface it is told to use.",
                   action=f"fix_setup: set {variable} to an interface with an address on the network of the nodes, or leave it unset",
                   sections=topics.sections("nccl_interfaces"))  # fmt: skip


def _unfit(host: str, library: str, chosen: Document, names: list[str]) -> Finding:
    kind = "loopback" if _is_loopback(chosen) else "a bridge of containers or virtual machines"
    variable = f"{library.upper()}_SOCKET_IFNAME"
    asked = f"{variable}={chosen['variable']}: " if chosen["variable"] else ""
    return Finding(code="loopback_chosen" if _is_loopback(chosen) else "bridge_chosen", severity="critical", subject=host,
                   evidence=[f"{asked}{library} takes {chosen['interface']} ({chosen['address']}), {kind}; here: {', '.join(names)}"],
                   reason="No other host can connect to that address.",
                   action=f"fix_setup: set {variable} to the interface that the nodes share",
                   sections=topics.sections("nccl_interfaces"))  # fmt: skip


def _loopback_name(host: str, addresses: list[str]) -> Finding:
    return Finding(code="name_is_loopback", severity="critical", subject=host, evidence=[f"{host} resolves to {', '.join(addresses)} there"],
                   reason="gloo and launchers tell the others the address of the host's own name; with loopback they connect to themselves.",
                   action="fix_setup: in /etc/hosts give the name its real address instead of 127.0.1.1 (the default of Debian and Ubuntu), or set "
                   "GLOO_SOCKET_IFNAME and the launcher's address", sections=topics.sections("nccl_interfaces"))  # fmt: skip


def _of_links(bad: list[Link], told: Document, ranks: dict[int, Document]) -> list[Finding]:
    """Failed attempts: a host that nobody reaches is one finding, any other pair is its own."""
    found, left = [], list(bad)
    for outcome in WHY:
        alike = [link for link in bad if link["outcome"] == outcome]
        for one in sorted({link["to"] for link in alike}):
            others = {link["from"] for link in told["links"] if link["to"] == one}
            if len(others) > 1 and {link["from"] for link in alike if link["to"] == one} == others:
                here = [link for link in left if one in (link["from"], link["to"]) and link["outcome"] == outcome]
                left = [link for link in left if link not in here]
                if here:
                    subject = f"{_name(one, ranks)} with all {len(others)} others"
                    found.append(_finding(outcome, subject, _lines(here, told, ranks), _severity(here)))
    pairs: dict[tuple[int, int], list[Link]] = {}
    for link in left:
        pairs.setdefault((min(link["from"], link["to"]), max(link["from"], link["to"])), []).append(link)
    for (a, b), links in pairs.items():
        ways = {(link["from"], link["to"]) for link in links}
        first, second = (a, b) if len(ways) == 2 else next(iter(ways))
        subject = f"{_name(first, ranks)} {'<->' if len(ways) == 2 else '->'} {_name(second, ranks)}"
        telling = next(outcome for outcome in TELLING if any(link["outcome"] == outcome for link in links))
        found.append(_finding(telling, subject, _lines(links, told, ranks), _severity(links)))
    return found


def _severity(links: Iterable[Link]) -> str:
    """Only NCCL's own choice failing harms GPU jobs alone, and this host may have none."""
    return "warning" if all(_only(link, "nccl") for link in links) else "critical"


def _only(link: Link, *kinds: str) -> bool:
    return set(link["kinds"]) <= set(kinds)


def _lines(links: list[Link], told: Document, ranks: dict[int, Document]) -> list[str]:
    lines = [
        f"{_name(link['from'], ranks)} to {_name(link['to'], ranks)}, {'/'.join(link['kinds'])}: {_seen(link, told['limit_s'])}" for link in links
    ]
    return lines[:LISTED] + ([f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else [])


def _seen(link: Link, limit_s: float) -> str:
    """One attempt in words, with the address and the interface it started from."""
    over = f" over {link['interface']}" if link["interface"] else " (no interface leads there)" if link["outcome"] != "unresolved" else ""
    what = f"no answer in {limit_s:g} s" if link["outcome"] == "timeout" else link["detail"] or link["outcome"]
    return f"{link['address']}{over}: {what}"


def _name(number: int, ranks: dict[int, Document]) -> str:
    one = ranks.get(number)
    return f"{one['host']} (rank {number})" if one else f"rank {number}"


def _finding(outcome: str, subject: str, evidence: list[str], severity: str = "critical") -> Finding:
    code, reason, action = WHY[outcome]
    return Finding(code=code, severity=severity, subject=subject, evidence=evidence, reason=reason, action=action,  # type: ignore[arg-type]
                   sections=topics.sections("nccl_interfaces"))  # fmt: skip


def _of_group(group: Document, ranks: dict[int, Document]) -> list[Finding]:
    """torch's steps: the earliest that failed is the cause, ranks that stand in it together are one finding."""
    failed = [one for one in group.get("answers", []) if one["step"] != "done"]
    if not failed:
        return []
    order: Callable[[Document], int] = lambda one: list(STEPS).index(one["step"])  # noqa: E731
    step = min(failed, key=order)["step"]
    stuck = [one for one in failed if one["step"] == step]
    code, reason = STEPS[step]
    return [Finding(code=code, severity="critical", subject=_listed([_name(one["rank"], ranks) for one in stuck]),
                    evidence=[f"{_name(one['rank'], ranks)}: {one['words']}" for one in stuck[:LISTED]],
                    reason=f"{reason} Every pair of sockets was fine.",
                    action="fix_setup: run it again with TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG=INFO and one interface named in "
                    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME", sections=topics.sections("rendezvous", "nccl_interfaces"))]  # fmt: skip


def _listed(items: Iterable[object]) -> str:
    every = [str(item) for item in items]
    return ", ".join(every[: 2 * LISTED]) + (f" and {len(every) - 2 * LISTED} more" if len(every) > 2 * LISTED else "")
