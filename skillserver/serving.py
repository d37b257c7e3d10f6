"""The two ways a server is reached: stdio for one client, streamable HTTP for several, and what HTTP may do.

HTTP answers knowledge, estimates and diagnosis of text, on loopback, until the human says more: `--allow-run`,
`--allow-path`, and beyond loopback a bearer token read from a file. One server serves one user.

>>> over_stdio(server.build(registry.select()))
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from skillserver.cluster import slurm_submit
from skillserver.errors import BadRequest, NotHere

MIN_TOKEN = 16  # characters; below that a token can be guessed
BODY_LIMIT = 8 << 20  # a pasted capture or log tail; files go by path


@dataclass(frozen=True)
class Listener:
    """Where HTTP listens and the token it asks for ("" = none, loopback only)."""

    host: str
    port: int
    token: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise BadRequest("bad_port", f"--port {self.port} is not between 1 and 65535")
        if not is_loopback(self.host) and not self.token:
            raise BadRequest("token_required", f"--host {self.host} is reachable from other machines",
                             next="give --token-file FILE with a secret of at least 16 characters, or --host 127.0.0.1")  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path | None) -> str:
    """The secret of --token-file. Raises BadRequest when it is missing or too short."""
    if path is None:
        return ""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise BadRequest("token_file", f"--token-file {path} cannot be read: {problem}") from problem
    if len(token) < MIN_TOKEN:
        raise BadRequest("token_file", f"the secret in {path} has {len(token)} characters", next=f"use at least {MIN_TOKEN}")
    return sendable(token, str(path))


def sendable(token: str, place: str) -> str:
    """The secret, when an HTTP header can carry it. Raises BadRequest without repeating it."""
    if not (token.isascii() and token.isprintable()):
        raise BadRequest("token_file", f"the secret in {place} holds characters that no HTTP header carries", next="use printable ASCII, on one line")
    return token


def log_to_stderr(level: str) -> None:
    """stdout belongs to the protocol."""
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format="%(levelname)s %(name)s: %(message)s", force=True)


def over_stdio(server: MCPServer[None]) -> None:
    """Serve one client until it closes our stdin. Raises NotHere when whoever started us gave us none."""
    if sys.stdin is None or sys.stdout is None:
        raise NotHere("no_stdio", "stdin or stdout is closed", next="start it from an MCP client, or serve --http")
    slurm_submit.end_jobs_with_us()  # a client that loses patience; workers of this host end with us anyway
    server.run("stdio")


def over_http(server: MCPServer[None], listener: Listener) -> None:
    """Serve HTTP at http://HOST:PORT/mcp until interrupted."""
    import uvicorn  # only HTTP needs it, and start-up is what stdio users feel

    with bound(listener) as place:  # before the address is announced
        name = f"[{listener.host}]" if ":" in listener.host else listener.host
        print(f"skillserver: http://{name}:{listener.port}/mcp", file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(http_app(server, listener), log_level="warning")).run(sockets=[place])


def bound(listener: Listener) -> socket.socket:
    """A socket at that address. Raises NotHere when it is taken or not one of this host."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)[0]
        place = socket.socket(family, kind, protocol)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
    except OSError as problem:
        raise NotHere("cannot_listen", f"{listener.host}:{listener.port}: {problem.strerror}", next="choose another --port or --host") from problem
    return place


def http_app(server: MCPServer[None], listener: Listener) -> Any:
    """The ASGI application, behind the token when there is one."""
    names = [listener.host, f"{listener.host}:*", "127.0.0.1:*", "localhost:*", "[::1]:*"]
    # With a token any name of this host may be used; without one only loopback names, against DNS rebinding.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=not listener.token, allowed_hosts=names,
                                         allowed_origins=[f"http://{name}" for name in names])  # fmt: skip
    app = server.streamable_http_app(host=listener.host, transport_security=security, max_request_body_size=BODY_LIMIT)
    return BearerOnly(app, listener.token) if listener.token else app


class BearerOnly:
    """ASGI wrapper: 401 without `Authorization: Bearer TOKEN`; compares in constant time."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                await _unauthorized(send)
                return
        await self.app(scope, receive, send)


async def _unauthorized(send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"www-authenticate", b'Bearer realm="skillserver"')]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"error":"unauthorized","next":"send Authorization: Bearer TOKEN"}'})
