"""Which server a benchmark may call: the permission behind a base URL, and the one address that is then used.

Permitted are loopback and private networks (10/8, 172.16/12, 192.168/16, fc00::/7), because that is where one's own server
runs; over HTTP, where the caller may sit elsewhere, nothing but the hosts that `--allow-host` names. Everything that a
name resolves to must be permitted, and the worker connects to the address that was looked at here, so a name cannot
change its mind. Addresses that clouds answer metadata and credentials on are refused even when they are named. The key
goes to loopback and to named hosts only.

>>> permitted("http://localhost:8000/v1").place["address"]
'127.0.0.1'
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from skillserver import paths, permissions
from skillserver.errors import BadRequest, NotHere

KEY = "SKILLSERVER_INFERENCE_KEY"
PRIVATE = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")]
METADATA = [ipaddress.ip_network(text) for text in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32")]
PORTS = {"http": 80, "https": 443}
ENDPOINTS = ("/chat/completions", "/completions", "/models")
EXAMPLE = "pass base_url='http://127.0.0.1:8000/v1'"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Permitted:
    """Where the worker connects, and the environment (the key) that it gets for it."""

    place: dict[str, Any]
    environment: dict[str, str]
    is_loopback: bool


def permitted(base_url: str) -> Permitted:
    """The address of a base URL. Raises BadRequest for one that is none, NotHere for a host that may not be called or found."""
    parts = _parts(base_url)
    host, port, named = parts.hostname or "", _port(parts), _is_named(parts)
    allowed = permissions.current()
    if not named and not allowed.private_hosts:
        raise _refusal(host, "this server takes calls over HTTP and may call no host that was not named")
    addresses = _resolved(host, port)
    for address in addresses:
        if _inside(address, METADATA):
            raise NotHere("host_not_permitted", f"{host!r} is {address}, where clouds and networks keep metadata and credentials",
                          next="name the host that serves the model")  # fmt: skip
        if not named and not _inside(address, PRIVATE):
            raise _refusal(host, f"it is {address}, which is neither loopback nor a private network")
    loopback = all(address.is_loopback for address in addresses)
    key = paths.environment(KEY)
    place = {"scheme": parts.scheme, "host": host, "address": str(addresses[0]), "port": port, "prefix": _prefix(parts)}
    return Permitted(place, {KEY: key} if key and (named or loopback) else {}, loopback)


def _refusal(host: str, why: str) -> NotHere:
    return NotHere("host_not_permitted", f"{host!r} may not be called: {why}", valid=permissions.current().hosts,
                   next=f"ask your user to start skillserver with --allow-host {host}")  # fmt: skip


def _parts(base_url: str) -> SplitResult:
    try:
        parts = urlsplit(base_url.strip())
        _ = parts.port
    except ValueError as problem:
        raise BadRequest("bad_url", f"base_url {base_url[:100]!r} is no URL: {problem}", next=EXAMPLE) from problem
    if parts.scheme not in PORTS or not parts.hostname:
        raise BadRequest("bad_url", f"base_url {base_url[:100]!r} is not http://HOST:PORT/v1", next=EXAMPLE)
    if parts.username or parts.password:
        raise BadRequest("bad_url", "base_url carries a user or password, which would stand in logs", next=f"set {KEY} where skillserver starts")
    if parts.query or parts.fragment or any(mark in base_url for mark in "\r\n\t "):
        raise BadRequest("bad_url", f"base_url {base_url[:100]!r} carries more than scheme, host, port and path", next=EXAMPLE)
    if parts.path.rstrip("/").endswith(ENDPOINTS):
        raise BadRequest("bad_url", f"base_url {base_url[:100]!r} names an endpoint", next="end it before /completions, mostly in /v1")
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme]


def _prefix(parts: SplitResult) -> str:
    """The path before /completions; /v1 where none is given, as every server has it."""
    return parts.path.rstrip("/") or "/v1"


def _is_named(parts: SplitResult) -> bool:
    """Whether the human named this host, with or without its port."""
    host = (parts.hostname or "").lower()
    return bool({host, f"{host}:{_port(parts)}"} & {name.lower() for name in permissions.current().hosts})


def _resolved(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        words = getattr(problem, "strerror", None) or str(problem)
        raise NotHere("unknown_host", f"{host!r} is not found: {words}", next="check the name, or pass an address") from problem
    addresses = [ipaddress.ip_address(str(row[4][0]).split("%")[0]) for row in found]
    plain = [mapped if isinstance(one, ipaddress.IPv6Address) and (mapped := one.ipv4_mapped) else one for one in addresses]
    unspecified = next((one for one in plain if one.is_unspecified), None)
    if unspecified:
        raise BadRequest("bad_url", f"{host!r} is {unspecified}, an address to listen at and not one to call", next=EXAMPLE)
    return list(dict.fromkeys(plain))


def _inside(address: Address, networks: list[Any]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
