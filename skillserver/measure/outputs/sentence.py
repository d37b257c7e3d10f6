"""A plain sentence with a number ("342 GB/s all-reduce on 8xH100") -> what was measured, in which unit, how surely.

Knows words of the trade, units and sizes. Does not know parts or links by name (procedures look those up), and marks
what it had to assume: a unit that was not given, bits or bytes that cannot be told apart, algbw or busbw not said.

>>> read("MAMF 650 TFLOPS H100 bf16").rows[0].tflops
650.0
"""

from __future__ import annotations

import re

from skillserver.errors import BadRequest
from skillserver.measure.outputs.records import Output, Row, collective, to_gb_s
from skillserver.units import parse_bytes

RATE = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s*([kKmMgGtT]i?(?:[bB](?:its?|ytes?)?)(?:ps|/s(?:ec)?(?:ond)?|/sec))(?![\w])")
FLOPS = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s*([GTP])(?:FLOPS|FLOP/s|flops|Flops|FLOPs|flop/s)\b", re.I)
IOPS = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s*([kKmM]?)\s*IOPS\b", re.I)
IOPS_BEFORE = re.compile(r"\bIOPS\s*[=:]?\s*(\d[\d,]*(?:\.\d+)?)([kKmM]?)\b", re.I)
TIME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*(us|µs|μs|usec|microseconds?|ms|ns)\b")
SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([KMGT]i?B|[KMG])\b(?![/p])", re.I)
BARE = re.compile(r"(?<![\w.x*×-])(\d{2,5}(?:\.\d+)?)(?![\w.]|\s*[x×*]|\s*(?:gpus?|nodes?|ranks?|[KMG]i?B)\b)", re.I)
COLLECTIVE = re.compile(
    r"\b(all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|alltoallv?|broadcast|send[-_ ]?recv)(?:_perf)?\b", re.I
)
PATTERN = re.compile(r"\b(rand(?:om)?[-_ ]?(?:read|write|rw)|seq(?:uential)?[-_ ]?(?:read|write)|read|write)s?\b", re.I)
TOPICS = (
    ("training", r"\bmfu\b|\bhfu\b|train|tokens?/s|per step|iteration"),
    ("collective", r"busbw|algbw|bus ?bandwidth|\bnccl\b|\brccl\b|all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|alltoall"),
    (
        "storage",
        r"\bfio\b|iops|rand[-_ ]?(?:read|write)|seq[-_ ]?(?:read|write)|\bnfs\b|lustre|checkpoint|\bdisk\b|\bnvme\b|\bssd\b|weka|gpfs|file ?system",
    ),
    ("matmul", r"\bmamf\b|matmul|gemm|\b[tpg]flops?\b|\b[tpg]flop/s"),
    ("tcp", r"iperf|\btcp\b"),
    ("network", r"ib_(?:write|read|send)_|\brdma\b|infiniband|\bndr\b|\bhdr\b|\bedr\b|\bxdr\b|\broce\b|\bib\b|gbe\b|\befa\b"),
    ("tcp", r"ethernet"),
    ("peer", r"nvlink|\bp2p\b|peer|gpu[- ]to[- ]gpu|device[-_ ]to[-_ ]device|\bd2d\b|xgmi|nvbandwidth"),
    ("host", r"pcie|\bh2d\b|\bd2h\b|host[-_ ]to[-_ ]device|device[-_ ]to[-_ ]host|pinned"),
    ("memory", r"stream\b|triad|\bhbm\b|memory bandwidth|babelstream|\bdram\b"),
)
DTYPE = re.compile(r"\b(bf16|bfloat16|fp16|float16|half|fp8|e4m3|fp4|nvfp4|tf32|fp32|float32|fp64|int8)\b", re.I)
BOTH_WAYS = re.compile(r"bi-?dir|duplex|both (?:ways|directions)|bidirectional", re.I)
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:[kKmMgGtT]i?[bB](?:its?)?(?:ps|/s)|[GTP]FLOP(?:S|/s))"
NEGATIVE = re.compile(rf"(?:^|[\s(:=])[-−]({NUMBER}\s*(?:{UNIT}|[kKmM]?\s*IOPS|[mnuµμ]s\b))", re.I)
OF_REFERENCE = re.compile(rf"({NUMBER})\s*(?:of|out of|/)\s*(?:the )?{NUMBER}\s*({UNIT})", re.I)
REFERENCE = re.compile(
    rf"(?:should be|expect(?:ed|ing)?|advertised|spec(?:ified)?|theoretical|peak|instead of|supposed to be|rated|out of|vs\.?|of)\b[^.,;\d]{{0,20}}"
    rf"{NUMBER}\s*{UNIT}",
    re.I,
)
CHINESE = (
    (r"两(?=\s*[台个机节])|双(?=机)", "2"), (r"单(?=[机台])", "1"), (r"(\d)\s*(?:台|个)?\s*(?:节点|机器|服务器|机|台)", r"\1 nodes "),
    (r"每(?:个|台)?\s*nodes", " per node "), (r"(\d+)\s*(?:张|块|个)?\s*(?:显?卡|GPU)\s*(?=[A-Za-z]+\d)", r"\1x "),
    (r"(\d+)\s*[张块]\s*(?=[A-Za-z])", r"\1x "), (r"(\d+)\s*(?:[张块]|个?\s*显?卡)", r"\1 GPUs "),
    (r"双向", " bidirectional "), (r"单向", " unidirectional "), (r"总线带宽", " busbw "), (r"算法带宽", " algbw "), (r"带宽", " bandwidth "),
    (r"微秒", " us "), (r"毫秒", " ms "), (r"稀疏", " sparsity "), (r"显存", " hbm "),
)  # "8卡H100" is "8x H100"; `\w` counts these signs as letters, so that 只有180GB/s would hide its number  # fmt: skip
LONGEST = 600  # characters; more than that is a log, not a sentence


def read(text: str) -> Output | None:
    """The first thing a sentence measures; None when it names no number with a meaning. Raises BadRequest for a negative one."""
    if len(text) > LONGEST:
        return None
    if found := NEGATIVE.search(text):
        raise BadRequest("negative_measurement", f"-{found[1]} is negative, which no speed or time can be", next="correct the number or its sign")
    topic = _topic(text)
    output = Output("sentence", [], collective=_collective(text) if topic == "collective" else "", facts={"topic": topic})
    output.dtype = found[1].lower() if (found := DTYPE.search(text)) else ""
    output.facts["bidirectional"] = bool(BOTH_WAYS.search(text)) and not re.search(r"unidir|one[- ]way|per direction|each way", text, re.I)
    output.facts["pinned"] = "pinned" in text.lower() and "unpinned" not in text.lower()
    row = _row(_measured(text), topic, output)
    if row is None:
        return None
    row.bytes = _size(text)
    output.rows.append(row)
    return output


def western(text: str) -> str:
    """A Chinese sentence with its counts and units as the patterns here know them; any other text as it is."""
    if len(text) > LONGEST or not re.search(r"[\u4e00-\u9fff]", text):
        return text
    for pattern, word in CHINESE:
        text = re.sub(pattern, word, text)
    return re.sub(r"([\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]+)", r" \1 ", text)


def _measured(text: str) -> str:
    """The text without the figures that the measurement is held against ("650 of 1979 TFLOPS", "should be 600 GB/s")."""
    own = OF_REFERENCE.sub(r"\1 \2", text)
    less = REFERENCE.sub(" ", own)
    return less if RATE.search(less) or FLOPS.search(less) else own


def _topic(text: str) -> str:
    lowered = text.lower()
    # fio and IOPS are plain; "send at NDR" beside all-reduce is still about the collective, so order decides
    return next((topic for topic, words in TOPICS if re.search(words, lowered)), "")


def _collective(text: str) -> str:
    found = COLLECTIVE.search(text)
    return collective(found[1]) if found else ""


def _size(text: str) -> int | None:
    found = SIZE.search(re.sub(r"\b[A-Za-z]+\d+[- ]?\d+ ?GB\b", "", RATE.sub("", text)))
    sized = re.search(r"(?:size|message|payload|buffer|at|of|with|-e|-b)\s*(?:of\s*)?$", text[: text.find(found[0])], re.I) if found else None
    after = re.match(r"\s*(?:message|payload|buffer|tensor|blocks?|block size)", text[text.find(found[0]) + len(found[0]) :], re.I) if found else None
    return parse_bytes(f"{found[1]}{found[2]}") if found and (sized or after) else None


def _row(text: str, topic: str, output: Output) -> Row | None:
    if topic in ("matmul", "training") and (found := FLOPS.search(text)):
        scale = {"G": 1e-3, "T": 1.0, "P": 1e3}[found[2].upper()]
        return Row("matmul" if topic == "matmul" else "training", tflops=_value(found[1]) * scale)
    if topic == "storage":
        return _storage(text)
    if topic == "collective":
        return _collective_row(text, output)
    if rate := RATE.search(text):
        output.facts |= _unit_facts(rate)
        return Row(topic or "bandwidth", gb_s=to_gb_s(_value(rate[1]), _bytes_or_bits(rate[2])))
    if topic in ("network", "tcp") and (found := TIME.search(text)):
        return Row(topic, latency_us=_microseconds(found))
    return None


def _storage(text: str) -> Row | None:
    found, before, rate = IOPS.search(text), IOPS_BEFORE.search(text), RATE.search(text)
    told = found or before
    named = PATTERN.search(text)
    pattern = re.sub(r"[-_ ]|om|uential", "", named[1].lower()) if named else ""
    block = re.search(r"\b(\d+) ?(k|kb|kib|m|mb|mib)\b(?! ?iops|/s|ps)", text, re.I)
    block_bytes = parse_bytes(f"{block[1]}{block[2][0].upper()}iB") if block else None
    iops = _value(told[1]) * {"": 1, "k": 1e3, "m": 1e6}[told[2].lower()] if told else None
    gb_s = to_gb_s(_value(rate[1]), _bytes_or_bits(rate[2])) if rate else iops * block_bytes / 1e9 if iops and block_bytes else None
    if iops is None and gb_s is None:
        return None
    way = "write" if "write" in pattern or re.search(r"checkpoint|saving", text, re.I) else "read"
    depth, jobs = re.search(r"(?:iodepth|qd)[= ]*(\d+)", text, re.I), re.search(r"numjobs[= ]*(\d+)|(\d+) jobs", text, re.I)
    facts = {"rw": pattern or way, "block_bytes": block_bytes, "iodepth": int(depth[1]) if depth else None,
             "jobs": int(jobs[1] or jobs[2]) if jobs else None}  # fmt: skip
    return Row(way, iops=iops, gb_s=gb_s, facts={key: value for key, value in facts.items() if value is not None})


def _collective_row(text: str, output: Output) -> Row | None:
    """busbw or algbw where the word stands by a number; else the rate, with `which` left open."""
    which = (
        "busbw"
        if re.search(r"busbw|bus ?bandwidth|bus bw", text, re.I)
        else "algbw"
        if re.search(r"algbw|algorithm bandwidth|alg bw", text, re.I)
        else ""
    )
    rates = list(RATE.finditer(text))
    chosen = _beside(text, which, rates) if rates else None
    value, unit = (_value(chosen[1]), chosen[2]) if chosen else (None, "GB/s")
    sized, took = SIZE.search(text), TIME.search(text)
    if chosen:
        output.facts |= _unit_facts(chosen)
    elif sized and took:  # "1GB takes 4 ms": algbw is size over time
        which, value = "algbw", parse_bytes(f"{sized[1]}{sized[2]}") / _microseconds(took) / 1e3 if _microseconds(took) else None
    elif took:
        return None  # a time without a size is no rate, and must not be read as one
    elif bare := BARE.search(COLLECTIVE.sub("", re.sub(r"\b\d+ ?[x×*] ?(?=[A-Za-z])", "", text))):
        value = _value(bare[1])
        output.facts["unit_assumed"] = True
    if value is None:
        return None
    rate = to_gb_s(value, _bytes_or_bits(unit))
    output.facts["which"] = which
    row = Row(output.collective or "collective")
    row.algbw_gb_s, row.busbw_gb_s = (rate, None) if which == "algbw" else (None, rate)
    return row


def _beside(text: str, which: str, rates: list[re.Match[str]]) -> re.Match[str]:
    """The rate nearest to the word busbw or algbw; the first when neither is said."""
    at = re.search("bus ?(?:bw|bandwidth)" if which == "busbw" else "alg", text, re.I) if which else None
    return min(rates, key=lambda rate: min(abs(rate.start() - at.end()), abs(at.start() - rate.end()))) if at else rates[0]


def _unit_facts(rate: re.Match[str]) -> dict[str, object]:
    letter = re.search(r"[bB]", rate[2])
    spelled = re.search(r"bit|byte", rate[2], re.I)
    is_lower = rate[2] == rate[2].lower() and not spelled
    bits = bool(spelled and spelled[0].lower() == "bit") or (not spelled and letter is not None and letter[0] == "b")
    return {"unit": rate[2], "in_bits": bits, "unit_unsure": is_lower and rate[2] != "gbps"}


def _bytes_or_bits(unit: str) -> str:
    return unit.replace("/sec", "/s").replace("/second", "/s").replace("/seconds", "/s")


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _microseconds(found: re.Match[str]) -> float:
    return float(found[1]) * {"n": 1e-3, "m": 1e3}.get(found[2][0] if found[2] in ("ns", "ms") else "u", 1.0)
