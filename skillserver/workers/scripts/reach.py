"""Whether one process reaches another over TCP, and how it fails when not. Standard library only.

A connection is begun, the listener says who it is, and a block larger than any frame travels there and back: a small
packet that passes proves little where a switch or tunnel drops large ones. Outcomes:

    ok           all of it
    timeout      nothing came back in time: dropped by a firewall, no way back, or a dead host
    refused      the address answered, the port did not: closed, or rejected by a firewall
    unreachable  this host or a router on the way knows no way there, or is told not to let it pass
    silent       connected, and then no word: something else listens there, or packets are lost
    wrong_peer   connected to another process than the one meant: the address leads elsewhere
    large_lost   words pass, the block does not: MTU on the way smaller than on the ends

>>> with Listener("rank 1") as there: attempt("127.0.0.1", there.port, 1.0, "rank 1")["outcome"]
'ok'
"""

import errno
import socket
import threading
import time

BLOCK = 2**18
GREETING = b"skillserver\n"
UNREACHABLE = {errno.EHOSTUNREACH: "no route to host, or the host does not answer on its segment", errno.ENETUNREACH: "no route to that network",
               errno.EACCES: "not permitted by a rule of this host", errno.EPERM: "not permitted by a rule of this host",
               errno.EINVAL: "a rule of this host discards it", errno.EADDRNOTAVAIL: "no local address to start from"}  # fmt: skip


class Listener:
    """Answers everybody who greets, on all addresses and a port that the kernel chose."""

    def __init__(self, name):
        self.name, self.socket, self.open = name, _listening(), True
        self.port = self.socket.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.open = False
        self.socket.close()

    def _accept(self):
        while self.open:
            try:
                one, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one):
        with one:
            try:
                one.settimeout(60.0)
                if received(one, len(GREETING)) != GREETING:
                    return
                one.sendall(self.name.encode().ljust(64)[:64])
                one.sendall(received(one, BLOCK))
            except OSError:
                return


def _listening():
    """All addresses of both families where the kernel has both."""
    try:
        return socket.create_server(("::", 0), family=socket.AF_INET6, backlog=256, dualstack_ipv6=True)
    except (OSError, ValueError):
        return socket.create_server(("", 0), backlog=256)


def received(one, size):
    """Exactly `size` bytes. Raises OSError when the other side ends early."""
    parts, left = [], size
    while left:
        part = one.recv(min(left, 2**16))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "ended early")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def attempt(address, port, limit_s, expected):
    """{"outcome", "ms" (greeting and answer), "source" (own address), "detail"}; nobody is expected behind a port when `expected` is None."""
    began = time.monotonic()
    told = {"outcome": "ok", "ms": None, "source": source(address), "detail": ""}
    try:
        with socket.create_connection((address, port), timeout=limit_s) as one:
            told["source"] = one.getsockname()[0]
            if expected is not None:
                told.update(_talk(one, expected, began))
    except OSError as problem:
        told.update(outcome=_failed(problem), detail=UNREACHABLE.get(problem.errno) or str(problem.strerror or problem))
    if told["outcome"] == "ok" and told["ms"] is None:
        told["ms"] = round((time.monotonic() - began) * 1e3, 3)
    return told


def _talk(one, expected, began):
    try:
        one.sendall(GREETING)
        name = received(one, 64).decode(errors="replace").strip()
    except OSError as problem:
        return {"outcome": "silent", "detail": str(problem.strerror or problem)}
    if name != expected:
        return {"outcome": "wrong_peer", "detail": "{0} answered".format(name)}
    ms = round((time.monotonic() - began) * 1e3, 3)
    try:
        one.sendall(bytes(BLOCK))
        received(one, BLOCK)
    except OSError as problem:
        return {"outcome": "large_lost", "ms": ms, "detail": "{0} bytes: {1}".format(BLOCK, problem.strerror or problem)}
    return {"ms": ms}


def _failed(problem):
    """The outcome of a connection that was never made."""
    if isinstance(problem, ConnectionRefusedError):
        return "refused"
    if isinstance(problem, socket.timeout) or problem.errno == errno.ETIMEDOUT:
        return "timeout"
    return "unreachable" if problem.errno in UNREACHABLE else "refused" if isinstance(problem, ConnectionError) else "unreachable"


def source(address):
    """The own address that the kernel would start from, "" where it knows no way; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        try:
            one.connect((address, 9))
            return one.getsockname()[0]
        except OSError:
            return ""
