"""Hosts of our own on one switch, in network namespaces: what a test may break without harming the machine. Needs root."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"
BOOT = 'hostname "$1" && ip link set lo up && mount --bind "$2" /etc/hosts && echo ready && exec sleep infinity'


class Network:
    """`hosts` names on one bridge, 10.77.0.1 onwards, each with an /etc/hosts of its own that knows all."""

    def __init__(self, folder: Path, hosts: tuple[str, ...]) -> None:
        self.folder, self.hosts = folder, hosts
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.address = {host: f"10.77.0.{number}" for number, host in enumerate(hosts, 1)}

    def boot(self) -> None:
        self._boot("switch")
        self.on("switch", "ip", "link", "add", "br0", "type", "bridge")
        self.on("switch", "ip", "link", "set", "br0", "up")
        for host in self.hosts:
            self._boot(host)
            peer = str(self.processes[host].pid)
            self.on("switch", "ip", "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", peer)
            self.on("switch", "ip", "link", "set", host, "master", "br0", "up")
            self.on(host, "ip", "addr", "add", f"{self.address[host]}/24", "dev", "eth0")
            self.on(host, "ip", "link", "set", "eth0", "up")

    def _boot(self, host: str) -> None:
        names = self.folder / f"{host}.hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{self.address[one]} {one}\n" for one in self.hosts))
        command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", BOOT, "boot", host, str(names)]
        self.processes[host] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.processes[host].stdout.readline() == "ready\n"  # type: ignore[union-attr]

    def on(self, host: str, *command: str) -> None:
        subprocess.run(self.inside(host, *command), check=True, capture_output=True)

    def inside(self, host: str, *command: str) -> list[str]:
        return ["nsenter", "-t", str(self.processes[host].pid), "--net", "--uts", "--mount", *command]

    def names(self, host: str, text: str) -> None:
        """Another /etc/hosts for one host."""
        (self.folder / f"{host}.hosts").write_text(text)

    def check(self, only: tuple[str, ...] = (), environment: dict[str, dict[str, str]] | None = None, **settings: Any) -> dict[str, Any]:
        """One rank a host; the result of the first."""
        given = {"folder": str(self.folder / "run"), "limit_s": 0.7, "meet_s": 20, "group": False} | settings
        command = [sys.executable, str(SCRIPTS / "connectivity.py"), "--settings", json.dumps(given)]
        plain = {"PATH": os.environ["PATH"], "CONNECT_RANKS": str(len(self.hosts))}
        children = [
            subprocess.Popen(self.inside(host, *command), stdout=subprocess.PIPE, text=True,
                             env=plain | {"CONNECT_RANK": str(number)} | (environment or {}).get(host, {}))
            for number, host in enumerate(self.hosts) if host in (only or self.hosts)
        ]  # fmt: skip
        said = [child.communicate(timeout=120)[0] for child in children]
        return json.loads(said[0].splitlines()[-1])["payload"]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@contextlib.contextmanager
def network(folder: Path, *hosts: str) -> Iterator[Network]:
    made = Network(folder, hosts)
    try:
        made.boot()
        yield made
    finally:
        made.close()


def missing() -> str:
    """Why no namespaces can be made here, "" when they can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    if absent := [name for name in ("ip", "unshare", "nsenter") if not shutil.which(name)]:
        return f"{', '.join(absent)} is not installed"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True)
    return f"no bridge in a namespace of our own: {tried.stderr.strip()}" if tried.returncode else ""
