"""What the keys of a training log mean: one record type, and the column of it that a name such as `lm loss` or `gnorm` goes to.

Frameworks agree on little: `lm-loss`, `reduced_train_loss`, `train/CE loss` and `loss` are the same quantity. A name is
stripped to letters and digits and classified by rules; of several names that fit one column the most usual wins, and
auxiliary losses (router, z-loss) never do. Knows names and numbers; not lines.

>>> record(("step", "lm-loss", "grad norm"), ("7", "2.5E+00", "0.4")).loss
2.5
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Record:
    """One report of a run; None = it did not say. `clock_s` counts the time trained so far, `time_s` is a date."""

    step: int | None = None
    total: int = 0
    rank: int | None = None
    loss: float | None = None
    eval_loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    loss_scale: float | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    skipped: float | None = None
    nans: float | None = None
    batch: float | None = None
    clock_s: float | None = None
    time_s: float | None = None
    wants_loss: bool = False  # its format always prints a loss, except when every step was skipped


EXACT: dict[str, tuple[str, int, float]] = {
    **dict.fromkeys(("step", "iteration", "iter", "steps", "trainstep", "iternum"), ("step", 1, 1.0)),
    **dict.fromkeys(("globalstep", "numupdates", "trainerglobalstep", "validnumupdates", "trainnumupdates"), ("step", 0, 1.0)),
    **dict.fromkeys(("gradnorm", "gnorm", "norm", "totalgradnorm", "gradientnorm", "l2normgradglobal", "traingradnorm"), ("grad_norm", 0, 1.0)),
    **dict.fromkeys(("lr", "learningrate", "optimlr", "trainlr", "trainlearningrate"), ("lr", 0, 1.0)),
    **dict.fromkeys(("tps", "tgs", "wps", "toks", "tokenspersec", "tokenspersecond", "trainwps"), ("tokens_per_s", 0, 1.0)),
    "samplespersecond": ("tokens_per_s", 8, 1.0),
    "samplessec": ("tokens_per_s", 8, 1.0),
    "numberofskippediterations": ("skipped", 0, 1.0),
    "numberofnaniterations": ("nans", 0, 1.0),
    "globalbatchsize": ("batch", 0, 1.0),
    "elapsedtimeperiterations": ("step_time_s", 0, 1.0),
    "trainsteptimingins": ("step_time_s", 0, 1.0),
    "tel": ("eval_loss", 0, 1.0),
    "trl": ("loss", 0, 1.0),
}  # fmt: skip
USUAL_LOSS = ("lmloss", "reducedtrainloss", "loss", "trainloss", "trainlossstep", "traincrossentropyloss", "traincelossavg", "traincelosstotal",
              "losstrain", "losstraintotal", "traincel", "totalloss", "globalavgloss", "globalavglosses", "globalloss")  # fmt: skip
AUXILIARY = re.compile(r"aux|balanc|zloss|gate|router|mtp|penalty|klloss|lossz|regular|distill|entropyloss$|lossavg20|max|min|std")
EVALUATION = re.compile(r"(?:^|[^a-z])(?:e?val|eval\w{0,10}|valid\w{0,10}|test|dev)(?:[^a-z]|$|loss)")
STEP_TIME = re.compile(r"steptim|itertim|timeperiter|timeperstep|secondsperstep|secperstep|sperstep")
NUMBER = re.compile(r"[-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)\b", re.I)
SUFFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "ms": 1e-3}


@functools.lru_cache(maxsize=8192)
def column(name: str) -> tuple[str, int, float] | None:
    """(column of Record, rank, factor) of a name, None when it is nothing we read; a lower rank is the better name."""
    low = re.sub(r"[^a-z0-9]+", "", name.lower())
    if low in EXACT:
        return EXACT[low]
    if "loss" in low and "scale" in low:
        return "loss_scale", 0, 1.0
    if "loss" in low or "crossentropy" in low:
        return _loss(name.lower(), low)
    if "grad" in low and "norm" in low and not re.search(r"layer|weight|bias|param", low):
        return "grad_norm", len(low), 1.0
    if STEP_TIME.search(low):
        return "step_time_s", len(low), 1e-3 if re.search(r"ms(ec)?$", low) else 1.0
    if re.search(r"tok(?:en)?sper(?:gpu)?s|tokpersec|devicetps", low):
        return "tokens_per_s", len(low), 1.0
    if low.startswith(("lr", "learningrate")) or low.endswith(("learningrate", "lr")):
        return "lr", len(low), 1.0
    return None


def _loss(name: str, low: str) -> tuple[str, int, float] | None:
    if AUXILIARY.search(low) and low not in USUAL_LOSS:
        return None
    if EVALUATION.search(name):
        return ("eval_loss", len(low), 1.0) if "train" not in low else None
    rank = USUAL_LOSS.index(low) if low in USUAL_LOSS else len(USUAL_LOSS) + len(low)
    return "loss", rank + (20 if "epoch" in low else 0), 1.0


@functools.lru_cache(maxsize=4096)
def layout(names: tuple[str, ...]) -> tuple[tuple[int, str, float], ...]:
    """(place, column, factor) of the names worth reading, one for each column."""
    best: dict[str, tuple[int, int, float]] = {}
    for place, name in enumerate(names):
        found = column(name)
        if found and (found[0] not in best or found[1] < best[found[0]][0]):
            best[found[0]] = (found[1], place, found[2])
    return tuple((place, name, factor) for name, (_rank, place, factor) in best.items())


def record(names: tuple[str, ...], values: Sequence[object]) -> Record:
    """A Record of parallel names and values; what is no number is left out."""
    found = Record()
    for place, name, factor in layout(names):
        value = number(values[place])
        if value is None:
            continue
        if name != "step":
            setattr(found, name, value * factor)
        elif value == value and abs(value) < 1e15:
            found.step = int(value)
    return found


def number(value: object) -> float | None:
    """A float of 3, "3.1e-4", " 1,024.5 ", "4.19M", "148ms", "nan"; None when it does not begin with a number."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    if not isinstance(value, str) or not (match := NUMBER.match(value.strip())):
        return None
    tail = value.strip()[match.end() :]
    factor = SUFFIXES.get(tail.split("/")[0].strip(), 1.0) if tail else 1.0
    try:
        return float(match[0].replace(",", "").replace("_", "")) * factor
    except ValueError:
        return None
