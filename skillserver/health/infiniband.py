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
DOWNED = re.compile(r"\blink_downed=(\d+)")
NOT_SHOWN = "?"


@dataclass
class _Port:
    device: str
    number: str
    state: str = NOT_SHOWN
    physical: str = NOT_SHOWN
    downed: int = 0


def parse(source: str, text: str) -> Facts | None:
    """One outcome a port; None without a port whose state is shown."""
    ports: list[_Port] = []
    device = ""
    for line in text.splitlines() if re.search(r"phys|CA '", text, re.I) else []:
        if found := CA.match(line):
            device = found[1]
        elif (found := CA_PORT.match(line)) and device:
            ports.append(_Port(device, found[1]))
        elif found := STATUS.match(line):
            ports.append(_Port(found[1], found[2]))
        elif found := LINE.match(line):
            downed = DOWNED.search(found[5])
            ports.append(_Port(found[1], found[2], found[3], found[4], int(downed[1]) if downed else 0))
        elif ports and (found := PAIR.match(line)):
            if found[1].lower() == "state":
                ports[-1].state = found[2]
            else:
                ports[-1].physical = found[2]
    outcomes = [_outcome(source, port) for port in ports if port.state != NOT_SHOWN]
    return Facts(outcomes=outcomes, judged=True) if outcomes else None


def _outcome(source: str, port: _Port) -> Outcome:
    state, physical = port.state.lower(), port.physical.lower()
    status = "active" if state == "active" else f"{state}_{physical}"
    if status == "active" and port.downed:
        status = "flapped" if port.downed > 3 else "active"  # assumed: a few downs are reboots of the other end
    downed = f", link_downed {port.downed}" if port.downed else ""
    return Outcome(
        source, "ib_port", "port", status, f"{port.device} port {port.number}", f"{port.device} port {port.number}: {state}, {physical}{downed}"
    )
