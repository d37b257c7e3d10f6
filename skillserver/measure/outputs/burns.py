"""Output of gpu-burn and gpu-fryer -> one row a GPU, and what they say of errors, throttling and dead devices.

Both are stress tests: they compare answers (gpu-burn) or GPUs with each other (gpu-fryer). Their FLOPS are no maximum:
one shape, under full heat. gpu-burn uses fp32 (`FLOATS`), fp64 (`DOUBLES`), or tensor units when asked (-tc).

>>> read_burn(["100.0%  proc'd: 18000 (6311 Gflop/s) - 12600 (6440 Gflop/s)   errors: 0 - 0   temps: 51 C - 45 C"])[0].rows[1].tflops
6.44
"""

from __future__ import annotations

import re
from statistics import median

from skillserver.findings import Finding
from skillserver.measure.outputs.records import Output, Row

PROGRESS = re.compile(r"([\d.]+)%\s+proc'd:\s*(.*?)\s+errors:\s*(.*?)\s+temps:\s*(.*)")
SPEED = re.compile(r"(-?\d+) \((\d+) Gflop/s\)")
ERRORS = re.compile(r"(-?\d+)\s*(?:\((WARNING|DIED)!\))?")
BURN_VERDICT = re.compile(r"GPU (\d+): (OK|FAULTY)")
NAMED = re.compile(r"GPU (\d+): (.+?) \(UUID")
FRYER_GPU = re.compile(r"GPU #(\d+):\s+([\d.]+) [GT]flops/s \(min: ([\d.]+), max: ([\d.]+)")
FRYER_HEAT = re.compile(r"Throttling HW: (\w+), Thermal SW: (\w+), Thermal HW: (\w+)")
FRYER_NAMED = re.compile(r'Detected GPU #(\d+): "?([^"(]+?)"? \(')
FRYER_SICK = re.compile(r"GPU #(\d+).*(not healthy|throttled|not performing)", re.I)


def read_burn(lines: list[str]) -> list[Output]:
    """gpu-burn: the last speed of each GPU, the largest error count, and the verdicts at the end."""
    reports = [found for line in lines if (found := PROGRESS.search(line))]
    text = "\n".join(lines)
    verdicts = dict(BURN_VERDICT.findall(text))
    if not reports and not (verdicts and "Tested" in text):
        return []
    output = Output("gpu-burn", _burn_rows(reports), device=next((name for _, name in NAMED.findall(text)), ""))
    output.dtype = "fp64" if "DOUBLES" in text else "fp16" if re.search(r"tensor cores", text, re.I) else "fp32" if "FLOATS" in text else ""
    output.facts = {"finished": bool(verdicts), "computed": any((row.tflops or 0) > 0 for row in output.rows)}
    bad = [f"GPU {gpu}" for gpu, said in verdicts.items() if said == "FAULTY"]
    wrong = {row.subject: row.wrong for row in output.rows if row.wrong}
    dead = [row.subject for row in output.rows if row.facts.get("died")]
    if bad or wrong:
        evidence = [f"{', '.join(bad)}: FAULTY"] if bad else []
        evidence += [f"{subject}: {count} wrong results" for subject, count in list(wrong.items())[:4]]
        output.alarms.append(
            _alarm("wrong_result", ", ".join(bad or wrong), evidence, "The GPU computed wrong answers; training on it is silently wrong.")
        )
    if dead:
        output.alarms.append(
            _alarm("gpu_died", ", ".join(dead), ["(DIED!)"], "The worker of this GPU ended: the device was lost or could not be set up.")
        )
    return [output]


def _burn_rows(reports: list[re.Match[str]]) -> list[Row]:
    if not reports:
        return []
    last = reports[-1]
    speeds = [[float(speed) for _, speed in SPEED.findall(report[2])] for report in reports]
    errors = [ERRORS.findall(report[3].replace(" - ", "  ").replace(")-", ") ")) for report in reports]
    temps = [re.findall(r"(\d+) C", report[4]) for report in reports]
    rows = []
    for gpu, (_, speed) in enumerate(SPEED.findall(last[2])):
        seen = [report[gpu] for report in errors if gpu < len(report)]
        worst = max((abs(int(count)) for count, _ in seen), default=0)
        hottest = max((int(report[gpu]) for report in temps if gpu < len(report)), default=None)
        # the first report mixes the start into the rate, so speeds are the median of the later half
        late = [report[gpu] for report in speeds[len(speeds) // 2 :] if gpu < len(report)] or [float(speed)]
        facts = {"hottest_c": hottest, "died": any(mark == "DIED" for _, mark in seen) or None}
        rows.append(
            Row("burn", subject=f"GPU {gpu}", tflops=median(late) / 1e3, wrong=worst, facts={k: v for k, v in facts.items() if v is not None})
        )
    return rows


def _alarm(code: str, subject: str, evidence: list[str], reason: str) -> Finding:
    action = "drain_rma: repeat it once, run the vendor's field diagnostics, and keep jobs off until it is clean"
    return Finding(code=code, severity="critical", subject=subject, evidence=evidence, reason=reason, action=action)


def read_fryer(lines: list[str]) -> list[Output]:
    """gpu-fryer: mean, lowest and highest speed of each GPU, throttling, and its own verdict."""
    text = "\n".join(lines)
    rows: list[Row] = []
    for line in lines:
        if found := FRYER_GPU.search(line):
            facts = {"lowest_tflops": float(found[3]) / 1e3, "highest_tflops": float(found[4]) / 1e3}
            rows.append(Row("burn", subject=f"GPU {found[1]}", tflops=float(found[2]) / 1e3, facts=facts))
        elif rows and (found := FRYER_HEAT.search(line)):
            names = ("hardware slowdown", "software thermal", "hardware thermal")
            held = [name for name, value in zip(names, found.groups(), strict=True) if value == "true"]
            rows[-1].facts |= {"throttled": held} if held else {}
    if not rows:
        return []
    output = Output("gpu-fryer", rows, device=next((name.strip() for _, name in FRYER_NAMED.findall(text)), ""))
    precision = re.search(r"Using precision\(s\):\s*(FP32|BF16|FP8)", text)
    output.dtype = precision[1].lower() if precision else ""
    output.facts = {"finished": True, "computed": True}
    hot = [row for row in rows if row.facts.get("throttled")]
    if hot:
        evidence = [f"{row.subject}: {', '.join(row.facts['throttled'])}" for row in hot[:4]]
        output.alarms.append(Finding(code="throttled", severity="warning", subject=", ".join(row.subject for row in hot), evidence=evidence,
                                     reason="The GPU slowed itself down; it will do so in training as well.",
                                     action="observe: call check_gpu_health, look at cooling and power"))  # fmt: skip
    sick = [found[0].strip() for found in FRYER_SICK.finditer(text)]
    if sick and not hot:
        output.alarms.append(Finding(code="unhealthy", severity="warning", subject="GPU", evidence=sick[:3],
                                     reason="gpu-fryer found it slower than its peers.", action="observe: call check_gpu_health"))  # fmt: skip
    return [output]
