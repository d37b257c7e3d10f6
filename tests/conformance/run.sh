#!/usr/bin/env bash
# MCP conformance of our HTTP server on both wire revisions, and Inspector's strict tools/list over stdio.
# Uses the harness in ../shared/conformance (node 24 comes from npm); without that folder it says so and stops.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
harness=$root/../shared/conformance/run.sh
[ -f "$harness" ] || { echo "skipped: no ../shared/conformance beside this checkout"; exit 0; }
python=$root/.venv/bin/python
work=$(mktemp -d)
export SKILLSERVER_HOME=$work/home CONFORMANCE_DIR=${CONFORMANCE_DIR:-$work/node}
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$python" -m skillserver serve --http --port "$port" 2>"$work/server.log" &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 150); do (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; kill -0 $server || { cat "$work/server.log"; exit 1; }; sleep 0.2; done
PY=$python bash "$harness" "http://127.0.0.1:$port/mcp"
eval "$(PY=$python bash "$harness" setup)"
mcp-inspector --cli "$python" -m skillserver serve --toolsets all --method tools/list --strict -q >"$work/tools.json"
grep -q search_knowledge "$work/tools.json"
echo "Inspector: tools/list is portable"
