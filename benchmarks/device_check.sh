#!/usr/bin/env bash
# What to run when a machine with GPUs can be had: MAMF in bf16, fp8, tf32 and int8, the layouts NN and TN, products of a
# model, all GPUs at once (one process for one GPU, too), collectives, pairs and sockets over the GPUs there are,
# memory, host-device and peer copies, live health. At most thirteen minutes. Prints a compact table and leaves one JSON
# file a step in the folder given.
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
mkdir -p "$out" && out=$(cd "$out" && pwd)

step() { # name, limit in seconds, command ...
  local name=$1 limit=$2
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.jsonl" 2>"$out/$name.stderr"
  echo "{\"type\": \"exit\", \"status\": $?}" >>"$out/$name.jsonl"
}

matmul() { # name, script, seconds, settings without braces
  step "$1" $(($3 + 45)) "$python" "$scripts/$2" --settings "{\"budget_s\": $3, \"raw_file\": \"$out/$1.samples.json\", $4}"
}

short=$(((each + 1) / 2))
[ "$device" = cpu ] && several='"devices": ["cpu", "cpu"], "threads": 1' || several='"device": "all"'
matmul mamf_bf16 torch_matmul.py "$each" "\"device\": \"$device\", \"dtype\": \"bf16\""
for dtype in fp8 tf32 int8; do
  matmul "mamf_$dtype" torch_matmul.py "$short" "\"device\": \"$device\", \"dtype\": \"$dtype\""
done
for layout in NN TN; do
  matmul "mamf_$layout" torch_matmul.py "$short" "\"device\": \"$device\", \"dtype\": \"bf16\", \"layout\": \"$layout\""
  matmul "int8_$layout" torch_matmul.py 5 "\"device\": \"$device\", \"dtype\": \"int8\", \"layout\": \"$layout\", \"shapes\": [[1024, 1024, 1024]]"
done
tokens=$([ "$device" = cpu ] && echo 64 || echo 4096) # gate and up of Llama 3 8B: forward, towards the input, towards the weight
matmul products torch_matmul.py "$short" "\"device\": \"$device\", \"dtype\": \"bf16\", \"products\": [
  {\"name\": \"gate_up\", \"m\": $tokens, \"n\": 28672, \"k\": 4096, \"layout\": \"NT\"},
  {\"name\": \"gate_up\", \"m\": $tokens, \"n\": 4096, \"k\": 28672, \"layout\": \"NN\"},
  {\"name\": \"gate_up\", \"m\": 28672, \"n\": 4096, \"k\": $tokens, \"layout\": \"TN\"}]"
matmul devices matmul_devices.py "$short" "$several, \"dtype\": \"bf16\""

gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null || echo 0)
if [ "$gpus" -ge 2 ]; then ranks=$gpus backend=nccl; else ranks=2 backend=gloo; fi
step all_reduce $((each + 25)) "$python" "$scripts/launch.py" --nproc "$ranks" "$scripts/torch_collective.py" --settings "{\"backend\": \"$backend\", \"budget_s\": $((each / 2 + 2))}"
collective() { # name, script, settings without braces
  step "$1" $((short + 45)) "$python" "$scripts/launch.py" --nproc "$ranks" "$scripts/$2" --settings "{\"backend\": \"$backend\", \"budget_s\": $((short / 4 + 2)), $3}"
}
collective all_gather torch_collective.py '"collective": "all_gather", "dtype": "bf16"'
collective queued torch_collective.py '"queued": true'
collective send_recv torch_collective.py '"collective": "send_recv"'
collective barrier torch_collective.py '"collective": "barrier"'
collective fp8_sum torch_collective.py '"dtype": "fp8", "sizes": [67108864]' # NCCL from 2.24 on; refused in words elsewhere
collective pairs torch_pairs.py '"passes": 2'
step connectivity 150 "$python" "$scripts/connectivity.py" --settings "{\"ranks\": $ranks}" # its group is NCCL's where there are GPUs

step bandwidth $((short + 60)) "$python" "$scripts/torch_bandwidth.py" --settings "{\"budget_s\": $short, \"parts\": [\"memory\", \"transfers\", \"peers\"], \"raw_file\": \"$out/bandwidth.samples.json\"}"

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
    elif "runs" in payload:
        for run in payload["runs"]:
            print("{0:<12} {1} {2:.4g} TFLOPS, correct {3}, {4}".format(path.stem, run["device"], run["best"]["tflops"], run["correct"], run["device_name"]))
        for one in payload["failed"]:
            print("{0:<12} {1} {2}: {3}".format(path.stem, one["device"], one["code"], one["message"][:120]))
    elif "products" in payload:
        for row in payload["products"]:
            print("{0:<12} {1} {2} {3}x{4}x{5}: {6:.4g} TFLOPS ({7:.4g}..{8:.4g}), waves filled {9}, all correct {10}".format(
                path.stem, row["name"], row["layout"], row["m"], row["n"], row["k"], row["tflops"], row["ci_low"], row["ci_high"], row["fill"], payload["correct"]))
    elif "best" in payload:
        best, gpu = payload["best"], payload["conditions"].get("gpu") or {}
        print("{0:<12} {1:.4g} TFLOPS ({2:.4g}..{3:.4g}) at {4}x{5}x{6}, {7} trials, {8} s, correct {9}, clock {10}, {11} W, {12}, {13}".format(
            path.stem, best["tflops"], best["ci_low"], best["ci_high"], best["m"], best["n"], best["k"], payload["trials"],
            payload["method"]["spent_s"], payload["correct"], gpu.get("sm_clock_mhz"), gpu.get("power_w"), gpu.get("throttle_reasons"), payload["device_name"]))
        print("{0:<12} layout {1}, {2}, software {3}".format("", payload["method"]["layout"], payload["method"]["timer"], payload["conditions"]["software"]))
    elif "rows" in payload:
        for row in payload["rows"]:
            print("{0:<12} {1} x{2}: {3:>11} B {4:>10.1f} us  busbw {5} GB/s  p5..p95 {6:.1f}..{7:.1f}  correct {8}".format(
                path.stem, payload["backend"], payload["nproc"], row["bytes"], row["time_us"], row["busbw_gb_s"] and float("{0:.4g}".format(row["busbw_gb_s"])),
                row["p5_us"], row["p95_us"], row["correct"]))
    elif "matrix" in payload:
        rates = [rate for line in payload["matrix"] for rate in line if rate]
        print("{0:<12} {1} {2}s, {3} B: {4:.4g} to {5:.4g} GB/s one way, passes differ by {6}, correct {7}".format(path.stem, len(payload["players"]),
              payload["player"], payload["bytes"], min(rates), max(rates), payload["between_passes"], payload["correct"]))
    elif "memory" in payload:
        rates = [(kind, device, name, rate["gb_s"]) for kind in ("memory", "transfers") for device, one in (payload.get(kind) or {}).items()
                 for name, rate in one.items() if isinstance(rate, dict)]
        rates += [("peer", row["from"], row["to"], row["rate"]["gb_s"]) for row in payload.get("peers") or [] if row["rate"]]
        wrong = [one for one in (*payload["memory"].values(), *(payload.get("transfers") or {}).values(), *(payload.get("peers") or [])) if not one["correct"]]
        for row in rates:
            print("{0:<12} {1} {2} {3}: {4:.4g} GB/s".format(path.stem, *row))
        print("{0:<12} wrong {1}, left out {2}".format("", len(wrong), payload["skipped"]))
    elif "links" in payload:
        print("{0:<12} {1} connections, outcomes {2}, group {3}".format(path.stem, len(payload["links"]), sorted({link["outcome"] for link in payload["links"]}),
              payload["group"].get("skipped") or [(one["rank"], one.get("backend"), one["step"], one["words"]) for one in payload["group"]["answers"]]))
    else:
        print("{0:<12} verdict {1}, {2} GPUs, findings {3}".format(
            path.stem, payload.get("verdict"), len(payload.get("gpus", [])), [finding["code"] for finding in payload.get("findings", [])]))
TABLE
