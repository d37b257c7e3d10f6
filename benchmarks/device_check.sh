#!/usr/bin/env bash
# What to run when a machine with GPUs can be had: MAMF in bf16, fp8 and tf32, all-reduce over the GPUs there are, live
# health. At most six minutes. Prints a compact table and leaves one JSON file a step in the folder given.
#
#   benchmarks/device_check.sh OUT_FOLDER [PYTHON]       PYTHON has torch; health also needs skillserver in it
#
# DEVICE=cpu SECONDS_EACH=5 tries the script itself where there is no GPU. A step that fails does not stop the others.
set -u
out=${1:?usage: device_check.sh OUT_FOLDER [PYTHON]}
python=${2:-python3}
device=${DEVICE:-cuda}
each=${SECONDS_EACH:-50}
scripts=$(cd "$(dirname "$0")/../skillserver/workers/scripts" && pwd)
mkdir -p "$out"

step() { # name, limit in seconds, command ...
  local name=$1 limit=$2
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.jsonl" 2>"$out/$name.stderr"
  echo "{\"type\": \"exit\", \"status\": $?}" >>"$out/$name.jsonl"
}

for dtype in bf16 fp8 tf32; do
  step "mamf_$dtype" $((each + 25)) "$python" "$scripts/torch_matmul.py" --settings "{\"device\": \"$device\", \"dtype\": \"$dtype\", \"budget_s\": $each, \"raw_file\": \"$out/mamf_$dtype.samples.json\"}"
done

gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null || echo 0)
if [ "$gpus" -ge 2 ]; then ranks=$gpus backend=nccl; else ranks=2 backend=gloo; fi
step all_reduce $((each + 25)) "$python" "$scripts/launch.py" --nproc "$ranks" "$scripts/torch_collective.py" --settings "{\"backend\": \"$backend\", \"budget_s\": $((each / 2 + 2))}"

step health 40 "$python" -c '
import json
from skillserver.contract import document
from skillserver.tools.health import check_gpu_health
print(json.dumps({"type": "result", "payload": document(check_gpu_health())}))'

"$python" - "$out" <<'TABLE'
import json, sys
from pathlib import Path

def last(path):
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip().startswith("{")]
    return {row["type"]: row for row in rows}

for path in sorted(Path(sys.argv[1]).glob("*.jsonl")):
    told = last(path)
    payload = told.get("result", {}).get("payload")
    if payload is None:
        why = told.get("failure", {}).get("message") or "no result; see {0}".format(path.with_suffix(".stderr").name)
        print("{0:<12} status {1}: {2}".format(path.stem, told["exit"]["status"], why[:150]))
    elif "best" in payload:
        best, gpu = payload["best"], payload["conditions"].get("gpu") or {}
        print("{0:<12} {1:.4g} TFLOPS ({2:.4g}..{3:.4g}) at {4}x{5}x{6}, {7} trials, {8} s, correct {9}, clock {10}, {11} W, {12}, {13}".format(
            path.stem, best["tflops"], best["ci_low"], best["ci_high"], best["m"], best["n"], best["k"], payload["trials"],
            payload["method"]["spent_s"], payload["correct"], gpu.get("sm_clock_mhz"), gpu.get("power_w"), gpu.get("throttle_reasons"), payload["device_name"]))
    elif "rows" in payload:
        for row in payload["rows"]:
            print("{0:<12} {1} x{2}: {3:>11} B {4:>10.1f} us  busbw {5:.4g} GB/s  p5..p95 {6:.1f}..{7:.1f}  correct {8}".format(
                path.stem, payload["backend"], payload["nproc"], row["bytes"], row["time_us"], row["busbw_gb_s"], row["p5_us"], row["p95_us"], row["correct"]))
    else:
        print("{0:<12} verdict {1}, {2} GPUs, findings {3}".format(
            path.stem, payload.get("verdict"), len(payload.get("gpus", [])), [finding["code"] for finding in payload.get("findings", [])]))
TABLE
