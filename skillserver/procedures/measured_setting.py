"""What a measurement was made on: part, GPUs, nodes and link, from hints, from the output itself, and from its words.

What the output printed wins over a hint that contradicts it, and the contradiction is said. A name that fits several
parts keeps them all: a verdict holds only when it is the same for each. Joins hardware.catalogue and measure.outputs.

>>> [part.id for part in named_parts("NCCL on 8xA100 SXM")]
['A100-40GB-SXM', 'A100-80GB-SXM']
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from skillserver.hardware import catalogue
from skillserver.hardware.catalogue import Accelerator, Link
from skillserver.measure.outputs import surroundings
from skillserver.measure.outputs.records import Mistake, Output

VARIANTS = r"(?:[\s/-]*(?:sxm\d?|pcie|nvl|oam|\d+ ?gi?b|hbm\d?e?))*"
LINK_WORDS = re.compile(r"\b(ndr|hdr|edr|xdr)\b|\b(p4d|p5en|p5e|p5|p6-b200|p6-b300)\.\d+xlarge\b|\bpcie ?(?:gen)? ?([3-6])\b", re.I)
PORT_RATE = re.compile(
    r"\b(\d{1,4}) ?(?:gbe|g(?:igabit)? ?ethernet|g(?:b/s|bps|bit/s)? (?:port|nic|link|roce|infiniband|ib))\b|\b(?:hdr|ndr)(100|200)\b", re.I
)
BARE_RATE = re.compile(r"(?:hdr|ndr|roce)?-?(\d{2,4}) ?(?:g|gbe|gb/s|gbps|gbit/s)?", re.I)
NVLINK = re.compile(r"nvlink|nvswitch|\bnvls\b", re.I)
LOOKED_AT = 200_000  # characters; the circumstances stand before the results
WHOLE_NODE = surroundings.WHOLE_NODE
RACK_SCALE = {"GB200-186GB"}  # one NVLink domain spans trays, so ranks do not tell nodes


@dataclass(frozen=True)
class Hints:
    """What the caller said beside the text."""

    accelerator: str = ""
    n_gpus: int | None = None
    n_nodes: int | None = None
    link: str = ""


@dataclass
class Setting:
    """Where a number was measured, as far as anybody said; empty or None = not known."""

    parts: list[Accelerator]
    n_gpus: int | None
    n_nodes: int | None
    link: Link | None
    around: surroundings.Surroundings
    unknown_part: str = ""
    assumed: list[str] = field(default_factory=list)
    slips: list[Mistake] = field(default_factory=list)

    @property
    def part(self) -> Accelerator | None:
        """The part, when there is exactly one."""
        return self.parts[0] if len(self.parts) == 1 else None

    def shown(self) -> dict[str, object]:
        """For a reader."""
        told: dict[str, object] = {"accelerator": " or ".join(part.id for part in self.parts), "n_gpus": self.n_gpus, "n_nodes": self.n_nodes}
        told |= {"link": self.link.id if self.link else None, "medium": self.around.medium, "environment": self.around.environment}
        return {name: value for name, value in told.items() if value}


def resolve(output: Output, text: str, hints: Hints) -> Setting:
    """The setting of one output. Raises BadRequest for a hint that the catalogue does not know."""
    text = text[:LOOKED_AT]
    around = surroundings.read(text)
    around.medium = surroundings.read(hints.link).medium or around.medium
    for entry in output.facts.get("environment", []):  # the -J file of nccl-tests keeps its environment
        name, _, value = str(entry).partition("=")
        around.environment |= {name: value} if name.startswith("NCCL_") else {}
    setting = Setting([], None, None, _link(hints.link, text), around)
    _set_parts(setting, output, text, hints)
    _set_counts(setting, output, text, hints)
    return setting


def _link(hint: str, text: str) -> Link | None:
    if hint:
        rate = BARE_RATE.fullmatch(hint.strip())
        return None if surroundings.read(hint).medium else _port(int(rate[1])) if rate else catalogue.link(hint)
    if words := LINK_WORDS.search(text):
        return catalogue.link(f"pcie gen{words[3]}" if words[3] else words[0])
    rate = PORT_RATE.search(text)
    return _port(int(rate[1] or rate[2])) if rate else None


def _port(gbit_s: int) -> Link:
    """A port named by its rate in Gb/s (10^9 bits a second)."""
    note = f"{gbit_s} Gb/s a port, as named by the caller"
    return Link(id=f"{gbit_s}G", aliases=[], kind="network", each_way_gb_s=gbit_s / 8, stated_total_gb_s=gbit_s / 4, links=1, note=note,
                source="the rate is in the name")  # fmt: skip


def _set_parts(setting: Setting, output: Output, text: str, hints: Hints) -> None:
    hinted = catalogue.matches(hints.accelerator) if hints.accelerator else []
    if hints.accelerator and not hinted:
        catalogue.accelerator(hints.accelerator)  # refuses, with the near ones
    printed = catalogue.matches(output.device) if output.device else []
    common = [part for part in printed if part in hinted]
    if output.device and hinted and not common:
        shown = "/".join(part.id for part in hinted[:2])
        words = f"the output names {output.device!r}, the hint says {shown}; the output is believed"
        setting.slips.append(Mistake(code="part_contradicted", what=words))
        hinted = []
    setting.parts = common or printed or hinted or ([] if output.device else named_parts(text))
    if len(setting.parts) > 1 and NVLINK.search(text):
        setting.parts = [part for part in setting.parts if (part.link or "").startswith("NVLink")] or setting.parts
    if output.device and not setting.parts:
        setting.unknown_part = output.device
    if len(setting.parts) > 1:
        setting.assumed.append(f"the part may be {' or '.join(part.id for part in setting.parts)}; pass accelerator= to settle it")


def _set_counts(setting: Setting, output: Output, text: str, hints: Hints) -> None:
    around = setting.around
    setting.n_nodes = output.n_nodes or hints.n_nodes or around.n_nodes
    setting.n_gpus = output.n_ranks or hints.n_gpus or around.n_gpus or (_counted(text, setting) if output.kind == "sentence" else None)
    if output.n_ranks and hints.n_gpus and hints.n_gpus != output.n_ranks:
        if hints.n_nodes and hints.n_gpus * hints.n_nodes == output.n_ranks:  # GPUs of a node were meant
            return
        words = f"the output shows {output.n_ranks} ranks, the hint says {hints.n_gpus} GPUs; the output is believed"
        setting.slips.append(Mistake(code="ranks_contradicted", what=words))
    if setting.n_nodes is None and setting.n_gpus and not any(part.id in RACK_SCALE for part in setting.parts):
        setting.n_nodes = -(-setting.n_gpus // WHOLE_NODE)
        setting.assumed.append(f"{setting.n_gpus} GPUs taken as {setting.n_nodes} node{'s' if setting.n_nodes > 1 else ''}; pass n_nodes= otherwise")


def _counted(text: str, setting: Setting) -> int | None:
    """The count that stands right before the name of the part: "8 H100s"."""
    for part in setting.parts[:1]:
        if found := re.search(rf"\b(\d{{1,4}}) +(?:nvidia |amd )?{re.escape(part.id.split('-')[0])}(?![a-z0-9]*[0-9])", text, re.I):
            return surroundings.in_all(int(found[1]), setting.n_nodes)
    return None


@functools.cache
def _names() -> tuple[str, ...]:
    """Every short name of a part, longest first; a bare number such as 4090 is one only after the letters."""
    names = {name.lower() for part in catalogue.accelerators() for name in (part.id.split("-")[0], *part.aliases)}
    return tuple(sorted((name for name in names if not name.isdigit()), key=len, reverse=True))


def named_parts(text: str) -> list[Accelerator]:
    """The parts that a text may mean, by the first name in it; [] when it names none of the catalogue."""
    plain = re.sub(r"\b(\d+) ?[x×*] ?(?=[a-z])", r"\1 x ", text.lower())
    plain = re.sub(r"\b(\d+) ?[x×*] ?(\d+) ?[x×*]? ?(?=[a-z])", r"\1 x \2 x ", plain)
    found = [match for name in _names() if (match := re.search(rf"(?<![a-z0-9.]){re.escape(name)}{VARIANTS}(?:s)?(?![a-z0-9])", plain))]
    for match in sorted(found, key=lambda match: (match.start(), -len(match[0]))):
        for name in (match[0], match[0].rstrip("s"), re.split(r"[\s/]", match[0])[0]):
            if parts := catalogue.matches(re.sub(r"hbm\d?e?", "", name)):
                return parts
    return []
