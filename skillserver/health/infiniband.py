"""Ports of InfiniBand and RoCE adapters (`ibstat`, `ibstatus`, a line a port from sysfs) -> outcomes.

Reads state, physical state and the 8-bit link-down counter, which sticks at 255. What a port carries is not known: an
unused port that is down is no fault. Rates are not compared; a management port is slower by design.

>>> parse("paste", "CA 'mlx5_0'\\n    Port 1:\\n        State: Down\\n        Physical state: Polling").outcomes[0].status
'down_polling'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from skillserver.health.reading import Facts, Outcome

KIND = "ibstat, ibstatus or a sysfs line a port"
CA = re.compile(r"^\s*CA '(\S+)'")
CA_PORT = re.compile(r"^\s*Port (\d+):\s*$")
STATUS = re.compile(r"^\s*Infiniband device '(\S+)' port (\d+) status:")
PAIR = re.compile(r"^\s*(state|physical state|phys state)\s*:\s*(?:\d+:\s*)?(\w+)\s*$", re.I)
LINE = re.compile(r"^\s*(\w+) port (\d+): state=(?:\d+: )?(\w+) phys_state=(?:\d+: )?(\w+)(.*)$")
PATH = re.compile(
    r"(?:^|/)infiniband/([^/\s]+)/ports/(\d+)/(?:counters/)?(state|phys_state|rate|link_downed|link_layer)\s*[:=]\s*(?:\d+: )?(\S.*?)\s*$"
)
HCA = re.compile(r"^\s*hca_id:\s*(\S+)")
HCA_PORT = re.compile(r"^\s*port:\s*(\d+)\s*$")
HCA_STATE = re.compile(r"^\s*state:\s*PORT_(\w+) \(\d\)")
RATE = re.compile(r"\brate[:=]\s*(\d+)", re.I)
LAYER = re.compile(r"\blink[_ ]layer[:=]\s*(\w+)", re.I)
FEWEST_PORTS = 4
DOWNED = re.compile(r"\blink_downed=(\d+)")
NOT_SHOWN = "?"


@dataclass
class _Port:
    device: str
    number: str
    state: str = NOT_SHOWN
    physical: str = NOT_SHOWN
    downed: int = 0
    rate: float | None = None
    layer: str = ""


def parse(source: str, text: str) -> Facts | None:
    """One outcome a port; None without a port whose state is shown."""
    ports: list[_Port] = []
    device = ""
    for line in text.splitlines() if re.search(r"phys|CA '|hca_id|/ports/", text, re.I) else []:
        if found := CA.match(line):
            device = found[1]
        elif (found := CA_PORT.match(line)) and device:
            ports.append(_Port(device, found[1]))
        elif found := PATH.search(line):
            _from_sysfs(ports, *found.groups())
        elif found := HCA.match(line):
            device = found[1]
        elif (found := HCA_PORT.match(line)) and device:
            ports.append(_Port(device, found[1]))
        elif ports and (found := HCA_STATE.match(line)):
            ports[-1].state = found[1]
            ports[-1].physical = "LinkUp" if found[1] == "ACTIVE" else NOT_SHOWN
        elif found := STATUS.match(line):
            ports.append(_Port(found[1], found[2]))
        elif found := LINE.match(line):
            downed = DOWNED.search(found[5])
            ports.append(_Port(found[1], found[2], found[3], found[4], int(downed[1]) if downed else 0))
            _rate(ports[-1], line)
        elif ports and (found := PAIR.match(line)):
            if found[1].lower() == "state":
                ports[-1].state = found[2]
            else:
                ports[-1].physical = found[2]
        elif ports:
            _rate(ports[-1], line)
    outcomes = [_outcome(source, port) for port in ports if port.state != NOT_SHOWN]
    return Facts(outcomes=[*outcomes, *_slower(source, ports)], judged=True) if outcomes else None


def _rate(port: _Port, line: str) -> None:
    if found := RATE.search(line):
        port.rate = float(found[1])
    if found := LAYER.search(line):
        port.layer = found[1].lower()


def _from_sysfs(ports: list[_Port], device: str, number: str, what: str, value: str) -> None:
    port = next((one for one in ports if (one.device, one.number) == (device, number)), None)
    if port is None:
        port = _Port(device, number)
        ports.append(port)
    if what == "rate":
        port.rate = float(found[0]) if (found := re.match(r"\d+", value)) else None
    elif what == "link_downed":
        port.downed = int(value) if value.isdigit() else 0
    else:
        setattr(port, {"state": "state", "phys_state": "physical", "link_layer": "layer"}[what], value.split()[0])


def _slower(source: str, ports: list[_Port]) -> list[Outcome]:
    """One active port below an odd number of equal ones: rails come in even numbers, storage and management ports beside them."""
    active = [port for port in ports if port.state.lower() == "active" and port.rate and "bond" not in port.device and port.layer != "ethernet"]
    rates = [port.rate for port in active if port.rate]
    top = max(rates, default=0.0)
    slow = [port for port in active if port.rate and port.rate < top]
    if len(active) < FEWEST_PORTS or len(slow) != 1 or (len(active) - 1) % 2 == 0:
        return []
    said = f"{slow[0].device} port {slow[0].number}: {slow[0].rate:g} Gb/s, the other {len(active) - 1} at {top:g}"
    return [Outcome(source, "ib_port", "rate", "slower", f"{slow[0].device} port {slow[0].number}", said)]


def _outcome(source: str, port: _Port) -> Outcome:
    state, physical = port.state.lower(), port.physical.lower()
    status = "active" if state == "active" else f"{state}_{physical}"
    if status == "active" and port.downed:
        status = "flapped" if port.downed > 3 else "active"  # assumed: a few downs are reboots of the other end
    downed = f", link_downed {port.downed}" if port.downed else ""
    return Outcome(
        source, "ib_port", "port", status, f"{port.device} port {port.number}", f"{port.device} port {port.number}: {state}, {physical}{downed}"
    )
