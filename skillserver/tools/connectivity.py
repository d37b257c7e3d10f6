"""The face of the connectivity check: who reaches whom, and what kind of fault it is when not.

Thin: the worker tries, `procedures.judged_connectivity` says what it means.

>>> (await check_connectivity(hosts=["n1", "n2"])).verdict
'ok'
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from pydantic import Field

from skillserver import permissions
from skillserver.contract import tool
from skillserver.errors import BadRequest, NotHere
from skillserver.procedures import judged_connectivity
from skillserver.procedures.guarded_run import run_guarded
from skillserver.tools.run_results import SAMPLES, STARTUP_S, Detail, DryRun, Nodes, Python, RunResult, Wait, fields

PORTS = range(1, 65536)
NAME = re.compile(r"[\w][\w.-]{0,252}")
LEAST_S = 1.0  # TCP sends a lost first packet again after a second: below, one lost packet would be a finding


class ConnectivityResult(RunResult):
    """Who reaches whom."""

    tested: dict[str, Any] | None = Field(default=None, description="ranks, hosts, connections, failed, slowest_ms, group")
    ranks: list[dict[str, Any]] = Field(default_factory=list, description="host, what its name resolves to, interfaces of gloo and NCCL")
    hosts: list[dict[str, Any]] = Field(default_factory=list, description="host, port, addresses, outcome, ms, interface")


@tool(toolset="measure", title="Check that ranks and hosts reach each other", read_only=False, runs=True, open_world=True)
async def check_connectivity(
    hosts: Annotated[list[str], Field(max_length=256, description="names or host:port to reach from here, instead of ranks")] = [],  # noqa: B006
    port: Annotated[int, Field(ge=1, le=65535, description="of hosts without one")] = 22,
    nproc: Annotated[int, Field(ge=2, le=64, description="ranks of this host")] = 2,
    nodes: Nodes = 0,
    limit_s: Annotated[float, Field(ge=LEAST_S, le=60, description="seconds an attempt")] = 5,
    wait_s: Wait = 20,
    python: Python = "",
    dry_run: DryRun = False,
    detail: Detail = False,
) -> ConnectivityResult:
    """Call when init_process_group hangs or fails, before blaming code: every rank tries every other; names the failing pair and interface.
    Tells DNS, firewall, route, MTU, wrong GLOO/NCCL interface and rendezvous apart.

    Every attempt has a limit. Ranks meet through files, so a broken network still gives an answer; torch makes a group last.
    With `nodes` one rank a node of a SLURM job. `hosts` are only resolved and connected to.
    """
    hosts = list(dict.fromkeys(hosts))
    for host in hosts:
        _refuse(host)
    if hosts and nodes:
        raise BadRequest("hosts_or_nodes", "hosts are reached from this host, nodes from each other", next="pass one of hosts and nodes")
    arguments = {"hosts": hosts, "port": port, "nproc": nproc, "limit_s": limit_s}
    settings = {"hosts": hosts, "port": port, "ranks": nproc, "limit_s": limit_s, "nodes": nodes, "raw_file": SAMPLES}
    record = await run_guarded(tool="check_connectivity", arguments=arguments, script="connectivity.py", settings=settings,
                               shape=judged_connectivity.answer, device="cpu", wait_s=wait_s, python=python or None,
                               limit_s=2 * STARTUP_S + 30 * limit_s, dry_run=dry_run, busy_matters=False, needs_torch=False,
                               nodes=nodes)  # fmt: skip
    return ConnectivityResult.model_validate(fields(record, dry_run, detail))


def _refuse(host: str) -> None:
    """A name with an impossible port, or none at all, or one that a caller over HTTP may not have scanned."""
    name, colon, text = host.rpartition(":") if host.count(":") == 1 or "]:" in host else (host, "", "")
    if not _is_host(name):
        raise BadRequest("bad_host", f"{host!r} is no host", next='pass names such as "n1", "n1:29500" or "[fd00::1]:22"')
    allowed = permissions.current()
    if not allowed.private_hosts and not {name.strip("[]"), host} & set(allowed.hosts):
        raise NotHere("host_not_permitted", f"{host!r} may not be tried: this server takes calls over HTTP", valid=allowed.hosts,
                      next=f"ask your user to start skillserver with --allow-host {name}")  # fmt: skip
    if colon and not (text.isascii() and text.isdigit() and int(text) in PORTS):
        raise BadRequest("bad_host", f"{host!r}: {text!r} is no port", next="ports go from 1 to 65535")


def _is_host(name: str) -> bool:
    """A name as resolvers take it or an address; not a URL, an option or a sentence."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return bool(NAME.fullmatch(name))
    return True
