#!/usr/bin/env bash
# Start a real SLURM of four nodes (root, Debian, installs packages), run the tests marked `slurm` inside it, stop it.
set -euo pipefail
cd "$(dirname "$0")/../.."
export SLURM_TESTBED_DIR="${SLURM_TESTBED_DIR:-/tmp/slurm-testbed-skillserver}"
bed=tests/cluster/slurm-testbed
trap '"$bed" down --purge' EXIT
"$bed" up || { echo "skipped: no SLURM could be started here (it needs root, Debian packages and namespaces)"; exit 0; }
"$bed" on ctl .venv/bin/pytest -m slurm tests/cluster "$@"
