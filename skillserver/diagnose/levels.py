"""Whether a line that names an error reports one that ended something: program text does not, and a warning need not.

Source lines of a traceback, docstrings and calls that hold a message as their literal are *quoted*: nothing happened.
A message at INFO or WARNING, a Python warning, a retry, a fallback is *mild*: it happened and the program went on.
`NCCL WARN` is how NCCL reports failures, so it is neither. Knows single lines; not what the message means.

>>> mild("WARNING:root:429 Client Error: Too Many Requests for url: https://huggingface.co/api", 13)
True
"""

from __future__ import annotations

import re

BEFORE = 240  # characters before a message in which its level can stand
SPEAKERS = "warn|warning|warn_once|print|error|info|debug|exception|critical|log|fail|write"
LITERAL = re.compile(  # a call with the message as its text, still open where the message begins
    rf"""(?:\braise [\w.]{{1,80}}|\b[a-z_.]{{0,40}}(?:{SPEAKERS}))\(\s{{0,4}}[rfbu]{{0,2}}["'][^"')]{{0,200}}$"""
)
SOURCE = re.compile(r"""^(?:\[\w{1,16}\]:|\([^)]{1,60}\))?\s{0,40}(?:>>> |#|except\b.{0,80}:|elif\b.{0,80}:|\+?\s?echo )|\"\"\"""")
LEVEL = re.compile(  # "I ran out of memory" is no level, nor is NCCL_DEBUG=INFO
    r"(?<![=\w])(?:(?P<mild>INFO|WARN(?:ING)?|DEBUG|NOTICE)|ERROR|CRITICAL|FATAL|SEVERE)\b"
    r"|^\s{0,8}(?:slurmstepd: |srun: )?(?P<low>info|warning|debug): "
    r"|(?:\[(?P<glog>[IW])|\[[EF]) |(?:^|\[|: |\] |\) )(?:(?P<dated>[IW])|[EF])\d{3,4} \d\d:\d\d"
)
WARNED = re.compile(r"\b[A-Z]\w{0,40}Warning: ")
WENT_ON = re.compile(r"(?i)\bretrying\b|\bwill retry\b|\bfalling back\b|\bfalls? back to\b|\btrying (?:the )?(?:next|previous)\b|\bstrict=False\b")
IGNORED = "Exception ignored in"


def quoted(text: str, start: int) -> bool:
    """Whether the message that begins at `start` stands in program text instead of being printed by it."""
    return bool(LITERAL.search(text, max(0, start - BEFORE), start) or SOURCE.search(text[:start]))


def mild(text: str, start: int) -> bool:
    """Whether the line says that the program went on; of several levels the nearest before the message counts."""
    before = max(0, start - BEFORE)
    if "NCCL WARN" in text[before : start + len("NCCL WARN")]:
        return False
    level = None
    for level in LEVEL.finditer(text, before, start):  # noqa: B007  the last one is wanted
        pass
    low = level is not None and any(level.groupdict().values())
    return low or bool(WARNED.search(text, before, start)) or bool(WENT_ON.search(text, before, start + 400))
