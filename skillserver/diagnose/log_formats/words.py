"""Formats that a line of words holds: torchtitan, nanoGPT, llm.c (terminal and main.log), modded-nanogpt, fairseq, bars.

Each is one small function from a line to a record. The last, `loose`, reads any line that names a step and a loss, and
counts only in a log where nothing else is found: a sentence may name both. Knows lines; not what follows what.

>>> nanogpt("iter 36298: loss 5.8465, time 148.74ms, mfu 0.01%").step_time_s
0.14874
"""

from __future__ import annotations

import re
from collections.abc import Callable

from skillserver.diagnose.log_formats.names import Record, number, record

VALUE = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
TITAN = re.compile(rf"\bstep:\s*(\d+)\s+(?:train_)?loss:\s*({VALUE})", re.I)
TITAN_PAIR = re.compile(rf"\b(grad_norm|tps|lr|max_loss):\s*({VALUE})", re.I)
NANOGPT = re.compile(rf"\biter (\d+): (?:train )?loss ({VALUE})(?:, time ([\d.]+) ?ms)?", re.I)
NANOGPT_EVAL = re.compile(rf"\bstep (\d+): train loss ({VALUE}), val loss ({VALUE})", re.I)
LLMC = re.compile(r"^\s*step\s+(\d+)/(\d+)\s*\|")
LLMC_CELL = re.compile(rf"\b(train loss|val loss|loss|norm|lr) ({VALUE})|({VALUE}) (ms|tok/s)", re.I)
LLMC_LOG = re.compile(rf"^s:(\d+) (?:tel:({VALUE})|trl:({VALUE})(?: lr:(\S+))?(?: norm:(\S+))?)\s*$", re.I)
MODDED = re.compile(rf"\bstep:(\d+)/(\d+) (?:(train_loss|val_loss):({VALUE}) )?train_time:([\d.]+)(ms|s)\b", re.I)
FAIRSEQ = re.compile(r"\bepoch \d+:\s+(?:\d+%\|[^|]*\|\s*)?(\d+) ?/ ?(\d+)\b")
BAR = re.compile(r"\b(\d+)/(\d+) \[[^\]]{3,60}[,\]]")
PAIR = re.compile(rf"\b([A-Za-z][\w/.-]{{0,60}})=({VALUE})\b", re.I)
LOOSE_STEP = re.compile(r"\b(?:global[_ ]?step|step|iteration|iter|update|batch)s?\b\s?[:=#\[(]?\s{0,8}(\d[\d,]*)(?:\s?/\s?(\d[\d,]*))?", re.I)
LOOSE_LOSS = re.compile(rf"\b([A-Za-z][\w/.-]{{0,40}}|)[ _]?(loss|lr|grad[_ ]?norm)\b\s?[:=]?\s{{0,4}}({VALUE})(?![\w.])", re.I)


def titan(text: str) -> Record | None:
    """torchtitan: `step:  4  loss:  7.62585  grad_norm: 26.6250  memory: ...  tps: 10,050`."""
    match = TITAN.search(text) if "step:" in text and "oss:" in text else None
    if not match:
        return None
    pairs = [("loss", match[2]), *TITAN_PAIR.findall(text)]
    found = record(tuple(name for name, _value in pairs), [value for _name, value in pairs])
    found.step = int(match[1])
    return found


def nanogpt(text: str) -> Record | None:
    """nanoGPT: `iter 9: loss 5.8, time 148.74ms, mfu 1%` and `step 0: train loss 10.9, val loss 10.9`."""
    if "loss " not in text:
        return None
    if match := NANOGPT.search(text):
        time_ms = number(match[3])
        return Record(step=int(match[1]), loss=number(match[2]), step_time_s=None if time_ms is None else time_ms / 1e3)
    if match := NANOGPT_EVAL.search(text):
        return Record(step=int(match[1]), eval_loss=number(match[3]))
    return None


def llmc(text: str) -> Record | None:
    """llm.c: `step 1/100 | loss 7.6 (+0.1z)| norm 6.4 (nanz)| lr 2e-05 | 90.1 ms | 50% bf16 MFU | 9000 tok/s`."""
    match = LLMC.match(text) if "|" in text else None
    if not match:
        return None
    found = Record(step=int(match[1]), total=int(match[2]))
    for name, value, amount, unit in LLMC_CELL.findall(text[match.end() :]):
        parsed = number(value or amount)
        if parsed is not None and unit:
            setattr(found, "step_time_s" if unit == "ms" else "tokens_per_s", parsed / 1e3 if unit == "ms" else parsed)
        elif parsed is not None:
            setattr(found, {"norm": "grad_norm", "lr": "lr", "val loss": "eval_loss"}.get(name.lower(), "loss"), parsed)
    return found if found.loss is not None or found.eval_loss is not None else None


def llmc_log(text: str) -> Record | None:
    """llm.c's main.log: `s:47 trl:8.6458 lr:0.000041 norm:1.58`, `s:500 tel:5.37`."""
    match = LLMC_LOG.match(text) if text.startswith("s:") else None
    if not match:
        return None
    return Record(step=int(match[1]), eval_loss=number(match[2]), loss=number(match[3]), lr=number(match[4]), grad_norm=number(match[5]))


def modded(text: str) -> Record | None:
    """modded-nanogpt: `step:1/6200 train_loss:10.9184 train_time:74701ms step_avg:nanms`."""
    match = MODDED.search(text) if "train_time:" in text else None
    if not match:
        return None
    step, total, name, loss, clock, unit = match.groups()
    found = Record(int(step), int(total))
    found.clock_s = float(clock) / (1e3 if unit == "ms" else 1.0)
    if name:
        setattr(found, "eval_loss" if name.lower() == "val_loss" else "loss", number(loss))
    return found


def fairseq(text: str) -> Record | None:
    """fairseq's plain lines: `epoch 001:    100 / 5000 loss=5.1, ppl=34, num_updates=100, lr=0.1, gnorm=1.2`."""
    if "loss=" not in text or not (match := FAIRSEQ.search(text)):
        return None
    return _pairs(text, int(match[1]), 0)


def bar(text: str) -> Record | None:
    """A progress bar with values: NeMo 1, Lightning, any tqdm with `loss=` behind it."""
    if "loss" not in text or "=" not in text or " [" not in text or not (match := BAR.search(text)):
        return None
    return _pairs(text, int(match[1]), int(match[2]))


def _pairs(text: str, step: int, total: int) -> Record | None:
    pairs = PAIR.findall(text)
    found = record(tuple(name for name, _value in pairs), [value for _name, value in pairs])
    if found.step is None:
        found.step, found.total = step, total
    return found if found.loss is not None or found.eval_loss is not None else None


def loose(text: str) -> Record | None:
    """Any line that names a step and a loss with numbers."""
    if "{" in text or not (match := LOOSE_STEP.search(text)):
        return None
    pairs = [(f"{before}_{name}" if before else name, value) for before, name, value in LOOSE_LOSS.findall(text)]
    found = record(tuple(name for name, _value in pairs), [value for _name, value in pairs])
    found.step, found.total = int(match[1].replace(",", "")), int((match[2] or "0").replace(",", ""))
    return found if found.loss is not None or found.eval_loss is not None else None


FORMATS: tuple[tuple[str, Callable[[str], Record | None]], ...] = (
    ("modded-nanogpt", modded), ("llm.c", llmc_log), ("llm.c", llmc), ("nanogpt", nanogpt), ("torchtitan", titan), ("fairseq", fairseq),
    ("progress_bar", bar),
)  # fmt: skip
