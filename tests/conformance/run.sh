#!/usr/bin/env bash
# MCP conformance of our HTTP server on both wire revisions, the skills extension, and Inspector's strict tools/list over stdio.
# The harness in ../shared/conformance installs node 24 and the checkers from npm; without that folder this says so and stops.
# The baselines beside this script hold only scenarios that call fixtures of the reference server; a stale entry fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
harness=$root/../shared/conformance/run.sh
[ -f "$harness" ] || { echo "skipped: no ../shared/conformance beside this checkout"; exit 0; }
python=$root/.venv/bin/python
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$work"' EXIT
export SKILLSERVER_HOME=$work/home CONFORMANCE_DIR=${CONFORMANCE_DIR:-$work/node} PY=$python
eval "$(bash "$harness" setup)"

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port/mcp
"$python" -m skillserver serve --http --port "$port" 2>"$work/server.log" &
server=$!
for _ in $(seq 150); do
  (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
  kill -0 "$server" 2>/dev/null || { cat "$work/server.log" >&2; exit 1; }
  sleep 0.2
done

conform() { conformance server --url "$url" --timeout 15000 -o "$work/results" "$@" >"$work/log" 2>&1 </dev/null; }
plain() { sed 's/\x1b\[[0-9;]*m//g' "$work/log"; }

for revision in 2025-11-25 2026-07-28; do
  if ! conform --suite all --spec-version "$revision" --expected-failures "$here/baseline-$revision.yml"; then
    plain | sed -n '/=== SUMMARY/,$p'
    exit 1
  fi
  echo "ok wire $revision: $(plain | grep '^Total:')"
done
for scenario in sep-2640-skills-directory sep-2640-skills-enumeration sep-2640-skills-manifest; do
  conform --scenario "$scenario" || { plain | tail -n 20; exit 1; }
  echo "ok $scenario: $(plain | grep -m1 '^Passed:')"
done
cat >"$work/serve" <<END
#!/bin/sh
exec "$python" -m skillserver serve --toolsets all
END
chmod +x "$work/serve"
mcp-inspector --cli "$work/serve" --method tools/list --strict -q >"$work/tools.json"
grep -q search_knowledge "$work/tools.json"
echo "ok Inspector: tools/list is portable"
