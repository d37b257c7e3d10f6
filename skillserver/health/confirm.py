"""Finding -> the command that would show whether it is true (data/health_confirm.toml).

Knows commands, not what they print. A finding about several GPUs or none gets the command with a placeholder.

>>> command("xid_48", "0000:3b:00.0", 3)
'nvidia-smi -q -i 0000:3b:00.0 -d ECC,ROW_REMAPPER,PAGE_RETIREMENT'
"""

from __future__ import annotations

import re

from skillserver import tables


class Confirm(tables.Record):
    """One row; see the head of the table."""

    code: str
    command: str
    source: str


def command(code: str, pci: str | None, index: int | None = None) -> str:
    """The command for a code, with the GPU filled in where one is known."""
    row = next(row for row in tables.load("health_confirm.toml", Confirm) if re.fullmatch(row.code, code))
    return row.command.replace("{pci}", pci or "GPU").replace("{index}", "GPU" if index is None else str(index))
