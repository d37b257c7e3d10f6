"""What the connectivity worker saw, as check_connectivity answers it.

Joins measure.connectivity with the topics. Results are plain dictionaries, because jobs keep them as JSON.

>>> answer({"mode": "ranks", "ranks": [...], "links": [...], "absent": [], ...})["verdict"]
'ok'
"""

from __future__ import annotations

from typing import Any

from skillserver import findings, topics
from skillserver.findings import Finding
from skillserver.measure import connectivity

Document = dict[str, Any]
SHOWN = 16
NOT_TESTED = "RDMA and UDP were not tested: only TCP, which rendezvous, gloo and NCCL's set-up use"
PROXIES = "an open port says that something answers: a transparent proxy looks the same"


def answer(payload: Document) -> Document:
    """One answer for ranks that met, or for hosts seen from here."""
    told = _of_hosts(payload) if payload["mode"] == "hosts" else _of_ranks(payload)
    found: list[Finding] = told.pop("found")
    return {
        "verdict": findings.verdict(found, judged=True),
        "findings": [finding.model_dump(exclude_defaults=True) for finding in findings.worst_first(found)],
        "conditions": {"worker": payload.get("worker"), "limit_s": payload["limit_s"], "env": _variables(payload)},
        "sections": topics.sections("nccl_interfaces", "rendezvous"),
        "of_all": True,  # each rank joined what all saw
        **told,
        "skipped": [*told["skipped"], NOT_TESTED],
    }


def _of_ranks(payload: Document) -> Document:
    found, links, group = connectivity.ranks(payload), payload["links"], payload.get("group") or {}
    failed = [link for link in links if link["outcome"] != connectivity.WORKING]
    names = sorted({one["host"] for one in payload["ranks"]})
    done = bool(group.get("answers")) and all(one["step"] == "done" for one in group["answers"])
    used = next((f"{one['backend']} of torch {one['torch']}" for one in group.get("answers", []) if one.get("torch")), "")
    reason = f"{len(payload['ranks'])} of {payload['world']} ranks on {_counted(len(names), 'host')}: "
    reason += f"{len(links) - len(failed)} of {len(links)} connections"
    reason += f", and a group of {used} was made" if done else ""
    return {
        "found": found,
        "reason": "; ".join([reason, *dict.fromkeys(f"{finding.code}: {finding.subject}" for finding in found if finding.severity != "info")][:6]),
        "tested": {"ranks": len(payload["ranks"]), "hosts": len(names), "connections": len(links), "failed": len(failed),
                   "slowest_ms": max((link["ms"] for link in links if link["ms"] is not None), default=None), "group": used if done else ""},
        "ranks": [_rank(one) for one in payload["ranks"][:SHOWN]],
        "skipped": [f"torch's group was not tried: {group['skipped']}"] if group.get("skipped") else [],
    }  # fmt: skip


def _rank(one: Document) -> Document:
    """A rank in one line."""
    chosen = {library: f"{one[library]['interface']} {one[library]['address'] or one[library]['error']}".strip() for library in ("gloo", "nccl")}
    return {"rank": one["rank"], "host": one["host"], "name_resolves_to": ", ".join(one["name_addresses"]) or one["name_error"], **chosen}


def _of_hosts(payload: Document) -> Document:
    found, closed = connectivity.hosts(payload), connectivity.closed_ports(payload)
    rows = [{"host": one["host"], "port": one["port"], "addresses": ", ".join(one["addresses"]) or one["error"], **_best(one["attempts"])}
            for one in payload["hosts"]]  # fmt: skip
    reached = sum(row["outcome"] in ("open", "closed") for row in rows)
    answer = f"{reached} of {_counted(len(rows), 'host')} {'answers' if len(rows) == 1 else 'answer'} from {payload['here']['host']}"
    told = [f"closed though the host answers, so nothing listens there: {', '.join(closed[:SHOWN])}"] if closed else []
    return {
        "found": found,
        "reason": "; ".join([answer, *told,
                             *(f"{finding.code}: {finding.subject}" for finding in found if finding.code != "port_closed")][:6]),
        "hosts": rows,
        "skipped": ["only from this host: pairs between the others need nodes=N", PROXIES],
    }  # fmt: skip


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _best(attempts: list[Document]) -> Document:
    """The address that went best: open, then closed, then whatever failed first."""
    for outcome, word in (("ok", "open"), ("refused", "closed")):
        for one in attempts:
            if one["outcome"] == outcome:
                return {"outcome": word, "ms": one["ms"], "interface": one["interface"]}
    return {"outcome": attempts[0]["outcome"] if attempts else "unresolved", "ms": None, "interface": attempts[0]["interface"] if attempts else ""}


def _variables(payload: Document) -> Document:
    """The interface variables that were set, per library; hosts that differ show as several values."""
    told: dict[str, list[str]] = {}
    for one in payload.get("ranks") or [payload["here"]]:
        for library in ("gloo", "nccl"):
            if one[library]["variable"]:
                told.setdefault(f"{library.upper()}_SOCKET_IFNAME", []).append(one[library]["variable"])
    return {name: ", ".join(dict.fromkeys(values)) for name, values in told.items()}
