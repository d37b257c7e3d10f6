"""What stands around a result: environment variables, launcher options, node and GPU counts in words, storage media.

Pure text; no part names (procedures look those up in the catalogue).

>>> read("NCCL_ALGO=Ring srun -N 4 all_reduce_perf -g 8").n_nodes
4
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from skillserver.measure import judge

WHOLE_NODE = 8
WORDS = {"one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16}
COUNT = r"(\d+|one|single|two|three|four|eight|sixteen)"
NODES = re.compile(
    rf"(?:--nnodes[= ]|--nodes[= ]|\bsrun .*?-N[= ]?|\bsbatch .*?-N[= ]?)(\d+)\b|\b{COUNT}[- ]?(?:nodes?|hosts?|servers?|machines?)\b", re.I
)
GPUS = re.compile(r"\b(\d+) ?[- ]?(?:gpus?|ranks?|accelerators?|cards?)\b(?! ?(?:per|each|a|/) ?node)", re.I)
PER_NODE = re.compile(r"(?:--gpus-per-node|--ntasks-per-node|--nproc[-_]per[-_]node)[= ](\d+)|\b(\d+) ?(?:gpus?)? ?(?:per|each|a|/) ?node\b", re.I)
GRID = re.compile(r"\b(\d+) ?[x×*] ?(\d+) ?[x×*]? ?(?=[a-z])", re.I)
TIMES = re.compile(r"\b(\d+) ?[x×*] ?(?=[a-z])", re.I)
ENVIRONMENT = re.compile(r"\b((?:NCCL|RCCL)_\w+)=([^\s\"']+)")
SOCKET = re.compile(r"NET/Socket\s*:\s*Using|Using network Socket|via NET/Socket")
MEDIA = (
    ("nfs", r"\bnfs\b|\befs\b|filestore"),
    ("parallel", r"\blustre\b|\bfsx\b|gpfs|weka|vast|beegfs|parallel file"),
    ("object", r"\bs3\b|\bgcs\b|object stor"),
    ("nvme", r"\bnvme\b|local ssd"),
)


@dataclass
class Surroundings:
    """Counts are None when the text does not say them."""

    n_nodes: int | None
    n_gpus: int | None
    per_node: int | None
    environment: dict[str, str]
    over_sockets: bool
    medium: str

    @property
    def ring_forced(self) -> bool:
        """Whether NVLink SHARP was switched off or the ring chosen, so that ring figures are to be expected."""
        return judge.ring_forced(self.environment)


def read(text: str) -> Surroundings:
    """Whatever the text says of its own circumstances."""
    nodes, gpus, per_node = NODES.search(text), GPUS.search(text), PER_NODE.search(text)
    grid, times = GRID.search(text), TIMES.search(text)
    n_nodes = _count(nodes[1] or nodes[2]) if nodes else int(grid[1]) if grid else None
    n_each = int(per_node[1] or per_node[2]) if per_node else int(grid[2]) if grid else None
    n_gpus = int(gpus[1]) if gpus else n_nodes * n_each if n_nodes and n_each else in_all(int(times[1]), n_nodes) if times else None
    media = next((name for name, words in MEDIA if re.search(words, text, re.I)), "")
    return Surroundings(n_nodes, n_gpus, n_each, dict(ENVIRONMENT.findall(text)), bool(SOCKET.search(text)), media)


def in_all(count: int, n_nodes: int | None) -> int:
    """GPUs in all of "2 nodes of 8xH100" and of "2 nodes, 16xH100": a count that fits one node is that of each."""
    return count * n_nodes if n_nodes and n_nodes > 1 and count <= WHOLE_NODE else count


def _count(text: str) -> int:
    return WORDS.get(text.lower()) or int(text)
