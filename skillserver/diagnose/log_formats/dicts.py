"""Reports printed as dictionaries: Hugging Face Trainer on a terminal, fairseq and metaseq JSON lines, plain JSONL.

`{'loss': 0.61, 'grad_norm': nan, 'learning_rate': 9.8e-05, 'epoch': 1.8}` names no step: it is taken from the progress bar
before it. `2021-03-08 ... | train_inner | {"loss": "16.4", "num_updates": "1", ...}` quotes its numbers. Knows single lines.

>>> Dicts().read('{"step": 3, "loss": 1.5}').loss
1.5
"""

from __future__ import annotations

import json
import re
from typing import Any

from skillserver.diagnose.log_formats.names import Record, record

PYTHON = re.compile(r"\{'[^{}]{1,4000}\}")
PAIR = re.compile(r"'([^']{1,80})': '?([^',}]{1,40})")
BAR = re.compile(r"(\d+)/(\d+) \[")
SUMMARY = ("train_runtime", "train_wall_total")


class Dicts:
    """Remembers the longest progress bar, which is the training one."""

    name = "hf_stdout"
    late = False
    gathers = False

    def __init__(self) -> None:
        self._step: int | None = None
        self._total = 0

    def read(self, text: str) -> Record | None:
        """The record of a line, None when it holds no dictionary with something to read."""
        if "/" in text and " [" in text and (bar := BAR.search(text)) and int(bar[2]) >= self._total:
            self._step, self._total = int(bar[1]), int(bar[2])
        if '{"' in text:
            return self._json(text)
        if "{'" in text and (match := PYTHON.search(text)) and "loss" in match[0]:
            return self._python(match[0])
        return None

    def close(self) -> Record | None:
        """Nothing is held back."""
        return None

    def _python(self, text: str) -> Record | None:
        pairs = PAIR.findall(text)
        if any(name in SUMMARY for name, _value in pairs):
            return None
        found = record(tuple(name for name, _value in pairs), [value for _name, value in pairs])
        self.name = "hf_stdout"
        if found.step is None:
            found.step, found.total = self._step, self._total
        return found if found.loss is not None or found.eval_loss is not None else None

    def _json(self, text: str) -> Record | None:
        start, end = text.find('{"'), text.rfind("}")
        try:
            parsed = json.loads(text[start : end + 1])
        except (ValueError, RecursionError):
            return None
        found = from_object(parsed)
        if found is not None:
            self.name = "metaseq" if "num_updates" in text else "jsonl"
        return found


def from_object(parsed: Any) -> Record | None:
    """The record of one parsed object, nested metrics included; None for a summary or when there is nothing to read."""
    if not isinstance(parsed, dict) or any(name in parsed for name in SUMMARY):
        return None
    flat = {key: value for key, value in parsed.items() if not isinstance(value, dict | list)}
    for key, value in parsed.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{name}": inner for name, inner in value.items() if not isinstance(inner, dict | list)}
    found = record(tuple(map(str, flat)), list(flat.values()))
    told = (found.loss, found.eval_loss, found.grad_norm)
    return found if any(value is not None for value in told) else None
