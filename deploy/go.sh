#!/bin/sh
# Build programs in Go that no package has, into .tools/NAME/bin: `go.sh NAME...`, of vegeta (the HTTP
# engine's client), kubernetes (what reads deploy/hosts/kubernetes), actionlint (what reads deploy/ci).
# deploy/go/NAME/go.mod names them, go.sum pins every module by hash. Uses the Go on PATH where that is
# new enough, else brings one from the Python package that deploy/go/go.lock pins, once for all, and
# removes it again. Quick when nothing is missing. Exits 1 with one line for each that it cannot build.
# BROADSIDE_BRING_GO=1 builds with the pinned Go in any case, as a release does: another Go gives other
# bytes. The licences of all that is linked in go into .tools/NAME/licences.
set -eu
cd "$(dirname "$0")/.."
: "${1:?vegeta, kubernetes or actionlint}"

mkdir -p .tools
work=$(mktemp -d "$PWD/.tools/go.XXXXXX")
# Go writes its modules read-only.
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -buildvcs=false"

fail() { echo "$name: $*" >&2; exit 1; }

recent() { # GO: whether it is as new as go.mod asks
    least=$(sed -n 's/^go 1\.\([0-9]*\).*/\1/p' "deploy/go/$name/go.mod")
    "$1" version 2>/dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p' |
        { read -r minor && [ "$minor" -ge "$least" ]; }
}

bring() { # a Go to build with, and its caches, for this and the next
    echo "$name: bringing Go to build with (75 MB)" >&2
    .tools/uv/bin/uv pip install -q --target "$work/brought" --no-deps --require-hashes \
        -r deploy/go/go.lock >"$work/log" 2>&1 ||
        fail "no Go on PATH, and pip could not bring one: $(tail -n 1 "$work/log")"
    go=$work/brought/go/bin/go
    export GOROOT="$work/brought/go" GOPATH="$work/path" GOCACHE="$work/cache"
    chmod -R u+x "$GOROOT/bin" "$GOROOT/pkg/tool"
}

failed() {
    fail "go build failed: $(grep -v '^go: downloading' log | head -n 1); is a Go module proxy reachable?"
}

build() ( # into .tools/NAME
    echo "$name: building, a minute" >&2
    mkdir -p "$work/$name/bin"
    cp "deploy/go/$name/go.mod" "deploy/go/$name/go.sum" "$work/$name"
    cd "$work/$name"
    "$go" list -f '{{.ImportPath}} {{.Module.Version}}' tool >packages 2>log || failed
    while read -r package version; do
        flags="-s -w -X main.Version=${version#v}"
        "$go" build -trimpath -ldflags "$flags" -o bin "$package" >log 2>&1 || failed
    done <packages
    "$go" list -deps -f '{{with .Module}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}' tool >modules 2>log || failed
    echo "go@$("$go" env GOVERSION) $("$go" env GOROOT)" >>modules
    sort -u modules | while read -r module folder; do
        mkdir -p "licences/$module"
        find -L "$folder" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'notice*' -o -iname 'copying*' \) \
            -exec install -m 0644 -t "licences/$module" {} +
    done
    printf '%s' "$key$pinned" >bin/.broadside-stamp
)

go=$(command -v go || true)
pinned=
if [ -n "${BROADSIDE_BRING_GO-}" ]; then
    go=
    pinned=" $(cksum <deploy/go/go.lock)"
fi
status=0
for name; do
    home=.tools/$name
    key=$(cat "deploy/go/$name/go.mod" "deploy/go/$name/go.sum" deploy/go.sh | cksum)
    case $(cat "$home/bin/.broadside-stamp" 2>/dev/null) in
    "$key$pinned"*) continue ;; # what the pinned Go built serves everybody
    esac
    { [ -n "$go" ] && recent "$go"; } || bring
    if build; then
        rm -rf "$home"
        mkdir "$home"
        mv "$work/$name/bin" "$work/$name/licences" "$home"
    else
        status=1
    fi
done
exit $status
