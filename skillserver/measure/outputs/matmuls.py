"""Output of mamf-finder.py (versions 1 and 2) and of dcgmproftester -> matmul speeds in TFLOPS.

mamf-finder prints mean, median and maximum of the best shape; the median is taken, because the maximum of many noisy
shapes is too high. dcgmproftester runs one fp16 GEMM (test 1004) and fp32, fp64 loops (1007, 1006).

>>> read_mamf(["mean:   771.5 TFLOPS @ 4096x4096x8192 (MxNxK)", "** Dtype: torch.bfloat16"])[0].rows[0].tflops
771.5
"""

from __future__ import annotations

import re
from statistics import median

from skillserver.measure.outputs.records import Mistake, Output, Row

BEST = re.compile(r"^\s*(mean|median|max):\s+([\d.]+) TFLOPS @ (\d+x\d+x\d+)")
OLD_BEST = re.compile(r"best outcome was ([\d.]+) ?TFLOPS @ (\d+x\d+x\d+).*?tried (\d+) shapes")
PROGRESS = re.compile(r"\|\s*best:\s*([\d.]+)\(mean\)\s+([\d.]+)\(median\)\s+([\d.]+)\(max\)")
TRIED = re.compile(r"Tried\s+(\d+) shapes")
DTYPE = re.compile(r"Dtype: (?:torch\.)?(\w+)|--dtype[= ](?:torch\.)?(\w+)")
DEVICE = re.compile(r"name='([^']+)'")
FEW_SHAPES = 500  # the quick line of 79 shapes finds 70-90% of the best
PROFTESTER = re.compile(r"(?:Worker (\d+):\d+ ?\[(\d+)\]: )?(\w+): generated .*?dcgm ([\d.]+) \(([\d.e+]+) gflops\)")
WORKLOADS = {"TensorEngineActive": ("fp16", "tensor"), "Fp16EngineActive": ("fp16", "vector"), "Fp32EngineActive": ("fp32", "vector"),
             "Fp64EngineActive": ("fp64", "vector")}  # fmt: skip


def read_mamf(lines: list[str]) -> list[Output]:
    """The outcome of a search, also when it was cut while it ran."""
    text = "\n".join(lines)
    best = {found[1]: (float(found[2]), found[3]) for line in lines if (found := BEST.match(line))}
    progress, old = PROGRESS.findall(text), OLD_BEST.search(text)
    if best:
        chosen = "median" if "median" in best else "mean" if "mean" in best else "max"
        (tflops, shape), facts = best[chosen], {"statistic": chosen} | {key: value for key, (value, _) in best.items()}
    elif old:
        tflops, shape, facts = float(old[1]), old[2], {"statistic": "max"}
    elif progress:
        tflops, shape, facts = float(progress[-1][1]), "", {"statistic": "median", "partial": True}
    else:
        return []
    output = Output("mamf-finder", [Row("matmul", tflops=tflops, facts=facts | {"shape": shape})])
    output.dtype = next((one or two for one, two in DTYPE.findall(text)), "")
    output.device = found[1] if (found := DEVICE.search(text)) else ""
    tried = TRIED.search(text)
    shapes = int(tried[1]) if tried else int(old[3]) if old else len(progress) or None
    output.facts = {"shapes": shapes, "few_shapes": shapes is not None and shapes < FEW_SHAPES, "partial": not best and not old}
    if "PYTORCH_TUNABLEOP_ENABLED=0" in text:
        output.facts["tunable_off"] = True
    if "max" in best and "median" in best and best["max"][0] > 1.03 * best["median"][0]:
        words = f"max {best['max'][0]:g} is the luckiest of many samples; judged is the median {best['median'][0]:g} TFLOPS"
        output.slips.append(Mistake(code="luckiest_sample", what=words))
    return [output]


def read_proftester(lines: list[str]) -> list[Output]:
    """dcgmproftester: the median speed of each GPU (worker) and workload, its first sample left out."""
    samples: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        if found := PROFTESTER.search(line):
            samples.setdefault((found[1] or "0", found[3]), []).append(float(found[5]) / 1e3)
    rows = []
    for (worker, name), seen in samples.items():
        dtype, units = WORKLOADS.get(name, ("", ""))
        rows.append(Row("matmul" if units == "tensor" else name, subject=f"GPU {worker}", tflops=median(seen[1:] or seen),
                        facts={"dtype": dtype, "units": units, "samples": len(seen)}))  # fmt: skip
    return [Output("dcgmproftester", rows, dtype=rows[0].facts["dtype"])] if rows else []
