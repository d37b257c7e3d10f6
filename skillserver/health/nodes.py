"""A paste from several machines -> one text a machine: what pdsh, clush, srun -l, dshbak, Ansible, kubectl and syslog put before lines.

The prefix is taken off, so that parsers see what the machine printed. A PCI id means nothing without its machine: facts
of different machines are judged apart. One machine's prefix is only taken off. Does not know what the lines say.

>>> split("node1: a\\nnode2: b\\nnode1: c")
[('node1', 'a\\nc'), ('node2', 'b')]
"""

from __future__ import annotations

import re
from collections import Counter

Part = tuple[str, str]
PREFIX = re.compile(r"^(?:\[pod/([^\]\s]+)\]|\[([A-Za-z][\w.-]{1,62})\]|([A-Za-z0-9][\w.-]{0,62}))(?::|(?<=\]))(?: |$)(.*)$")
NOT_A_NODE = re.compile(r"^(?:kernel|nvrm|nvidia.*|nvml.*|amdgpu|error|warning|info|note|fatal|critical|debug|nhc|state|rate|port|status|message|"
                        r"card\d+|ib\d+|eth\d+|en[ops]\w+|nvme\w*|cpu\d*|rip|code|gpu\d*|link\d*|mlx\d.*|pcieport|mce|edac|systemd.*|dmesg|http.*|watchdog|usage|root|info\w*|link_layer|capturedat|"
                        r"traceback|runtimeerror|timestamp|serial|\d{4}-.*)$", re.I)  # fmt: skip
DSHBAK = re.compile(r"^-{8,}\n(\S+(?: \(\d+\))?)\n-{8,}$", re.M)
ANSIBLE = re.compile(r"^([\w.-]+) \| (?:CHANGED|SUCCESS|FAILED|UNREACHABLE!?)\b[^\n]*>>\s*$", re.M)
ANSIBLE_TASK = re.compile(r"^(?:ok|changed|fatal): \[([\w.-]+)\](?: =>)?[^\n]*$", re.M)
TAIL = re.compile(r"^==> (\S+) <==$", re.M)
STAMP = r"(?:[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)?)"
SYSLOG = re.compile(rf"^(?:<\d+>)?{STAMP} ([A-Za-z0-9][\w.-]*) \S+?(?:\[\d+\])?: ")
LISTED = re.compile(r"^\s*([A-Za-z][\w.-]*)\s+\|\s+(?:Healthy\b|ERROR:)")
SHARE = 0.9  # assumed: of the lines, so many must carry a prefix
MOST_NODES = 512


def split(text: str) -> list[Part]:
    """(node, its text), in order of appearance; [("", text)] when nothing names a machine."""
    for heading in (DSHBAK, ANSIBLE, ANSIBLE_TASK, TAIL):
        if parts := _by_heading(heading, text):
            return parts
    lines = text.split("\n")
    if parts := _by_list(lines):
        return parts
    return _by_prefix(lines) or _by_syslog_host(lines) or [("", text)]


def _by_heading(heading: re.Pattern[str], text: str) -> list[Part]:
    found = list(heading.finditer(text))
    if not found or len(found) > MOST_NODES or (len(found) == 1 and heading is TAIL):
        return []
    ends = [*(one.start() for one in found[1:]), len(text)]
    joined: dict[str, list[str]] = {}
    before = text[: found[0].start()].strip()
    for one, end in zip(found, ends, strict=True):
        joined.setdefault(one[1], []).append(text[one.end() : end].strip("\n"))
    parts = [(node, "\n".join(texts)) for node, texts in joined.items()]
    return [("", before), *parts] if before else parts


def _by_list(lines: list[str]) -> list[Part]:
    """`node | Healthy` lists keep their lines whole: the parser of such results reads them."""
    found = [(row[1], line) for line in lines if (row := LISTED.match(line))]
    names = {name for name, _line in found}
    if len(names) < 2 or len(found) < len(lines) // 2 or len(names) > MOST_NODES:
        return []
    return [(name, "\n".join(line for one, line in found if one == name)) for name in dict.fromkeys(name for name, _line in found)]


def _by_prefix(lines: list[str]) -> list[Part]:
    sample = [line for line in lines[:2000] if line.strip()]
    if len(sample) < 2 or sum(bool(_prefix(line)) for line in sample) < SHARE * len(sample):
        return []
    counts = Counter(found[0] for line in sample if (found := _prefix(line)))
    bare = not sample[0].startswith("[")
    if len(counts) > MOST_NODES or (
        bare and len(counts) > 1 and sum(count == 1 for count in counts.values()) * 2 > len(counts) and not _alike(list(counts))
    ):
        return []
    joined: dict[str, list[str]] = {}
    for line in lines:
        found = _prefix(line)
        if found:
            joined.setdefault(found[0], []).append(found[1])
        elif line.strip():
            joined.setdefault(next(reversed(joined), ""), []).append(line)
    return [(node, "\n".join(texts)) for node, texts in joined.items()] if len(joined) <= MOST_NODES else []


def _prefix(line: str) -> Part | None:
    found = PREFIX.match(line[:2000])
    if not found:
        return None
    node = found[1] or found[2] or found[3]
    return None if NOT_A_NODE.match(node) else (node, line[found.start(4) :])


def _alike(names: list[str]) -> bool:
    """Names that differ in their digits only, as those of nodes do."""
    return len({re.sub(r"\d+", "#", name) for name in names}) == 1 and any(char.isdigit() for char in names[0])


def _by_syslog_host(lines: list[str]) -> list[Part]:
    if not lines or not any(SYSLOG.match(line[:300]) for line in lines[:200]):
        return []
    joined: dict[str, list[str]] = {}
    now = ""
    for line in lines:
        if found := SYSLOG.match(line[:300]):
            now = found[1]
        joined.setdefault(now, []).append(line)
    hosts = [host for host in joined if host]
    if len(hosts) < 2 or len(hosts) > MOST_NODES:
        return []
    return [(node, "\n".join(texts)) for node, texts in joined.items()]
