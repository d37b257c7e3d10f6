"""Any pasted text -> the benchmarks it holds, each read by its own family; a sentence when it is no benchmark.

>>> [output.kind for output in read("8xA100 nccl busbw 180")]
['sentence']
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from skillserver.measure.outputs import burns, copies, fio, matmuls, memory_and_mpi, nccl_tests, sentence, torch_benches, wires
from skillserver.measure.outputs.records import Output, lines

TEXTS = (
    nccl_tests.read, torch_benches.read_bench, torch_benches.read_deepspeed, matmuls.read_mamf, matmuls.read_proftester,
    copies.read_nvbandwidth, copies.read_p2p, copies.read_diag, burns.read_burn, burns.read_fryer, fio.read_text, wires.read_perftest,
    wires.read_iperf, memory_and_mpi.read_stream, memory_and_mpi.read_osu,
)  # fmt: skip
DOCUMENTS = (nccl_tests.read_json, copies.read_nvbandwidth_json, fio.read_json, wires.read_iperf_json)
LONGEST_LINE = 2_000  # characters; rows are at most some hundred, and patterns may take the square of a line
FEW_LINES = 6  # more are a table of a program that is not known here, and its numbers no sentence
READS = (
    "nccl-tests, rccl-tests, all_reduce_bench.py, DeepSpeed's comm benchmark, mamf-finder, dcgmproftester, nvbandwidth, "
    "p2pBandwidthLatencyTest, dcgmi diag -v, gpu-burn, gpu-fryer, fio, perftest (ib_write_bw ...), iperf3, STREAM, BabelStream, OSU, "
    "or a sentence with number, unit and part"
)


def read(text: str) -> list[Output]:
    """Every benchmark found, JSON first; [] when nothing in the text is a measurement."""
    found = [output for document in _documents(text) for reader in DOCUMENTS if (output := reader(document))]
    if found:
        return found
    plain = [line[:LONGEST_LINE] for line in lines(text)]
    outputs = [output for reader in TEXTS for output in reader(plain)]
    if outputs:
        return outputs
    told = [line.strip() for line in plain if line.strip()]
    said = sentence.read(" ".join(told)) if len(told) <= FEW_LINES else None
    return [said] if said else []


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects of a text, also after notes that a program wrote before them."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("\n{", at)
            at = at + 1 if at >= 0 else -1
            continue
        if isinstance(value, dict):
            yield value
        at = text.find("{", end)
