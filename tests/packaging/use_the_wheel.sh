#!/usr/bin/env bash
# Build the wheel, install it alone into an empty environment, and use it from an empty folder with an empty home.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$root/.venv/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$work/dist" "$root"
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet "$work"/dist/*.whl
mkdir "$work/empty"
cd "$work/empty"
export SKILLSERVER_HOME=$work/home PATH=$work/venv/bin:$PATH
unset PYTHONPATH VIRTUAL_ENV
has() { grep -- "$1" >/dev/null || { echo "the wheel: no '$1' in: $2" >&2; exit 1; }; }
skillserver --version
skillserver index
skillserver search "NCCL watchdog timeout" | has "debugging/hangs" search
skillserver search "显存不足怎么办" | has "memory" "search in Chinese"
skillserver read training/memory | has "Bytes per parameter" read
skillserver tools | has run_all_reduce_bench tools
skillserver study 4 | has "Check yourself" study
skillserver doctor --json | has '"python"' doctor
skillserver call estimate_gpu_hours params_total=7B tokens=2T accelerator=H100-80GB-SXM --json | has '"gpu_hours"' call
skillserver call check_gpu_health --json --input '{"captures":[{"name":"dmesg","text":"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."}]}' \
  --fail-on critical >health.json && { echo "a GPU off the bus passed" >&2; exit 1; } || [ $? -eq 3 ]
has '"critical"' health.json <health.json
# torch is not installed here: the refusal is one sentence with the next step, exit 1
if skillserver call run_mamf 2>refusal.txt; then echo "run_mamf ran without torch" >&2; exit 1; fi
has 'Next:' refusal.txt <refusal.txt
[ -z "$(ls -A . | grep -v -e health.json -e refusal.txt || true)" ] || { echo "files were left in the user's folder: $(ls)" >&2; exit 1; }
echo "the wheel works"
