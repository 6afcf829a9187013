#!/bin/sh
# Bring an iperf3 that streams its JSON (3.17 or newer) into the checkout, where the system's is
# older and the machine's own Debian mirror has one. Needs no root and installs nothing.
#
# A newer suite's packages are unpacked under .tools/iperf3/root, signatures checked by apt, and run
# through their own loader by the wrapper .tools/iperf3/bin/iperf3. Says in one line which iperf3
# will be used. Exits 0 when there is one that Broadside can use, old or new, else 1.
#
#   iperf3.sh                    as said above
#   iperf3.sh unpack DEBS HOME   unpack the packages of one folder into HOME, for deploy/hosts/archive.py
set -eu

minimum=309 # 3.9: the oldest that Broadside reads
wanted=317  # 3.17: --json-stream
suites="trixie forky sid"
needed="libc6 libiperf0 iperf3"
helpful="libssl3t64 libsctp1 libzstd1 zlib1g" # by suite; the wrapper's --version is the proof

tools=$(cd "$(dirname "$0")/.." && pwd)/.tools
home=$tools/iperf3

# "iperf 3.12 (cJSON 1.7.15)" -> 312; nothing when it does not run
release() {
    "$1" --version 2>/dev/null | sed -n 's/^iperf \([0-9]*\)\.\([0-9]*\).*/\1 \2/p' |
        awk '{ print $1 * 100 + $2 }'
}

spell() { echo "$(($1 / 100)).$(($1 % 100))"; }

# Unpack the packages of one folder into another, with a wrapper bin/iperf3 that runs them through
# their own loader. Says why not on standard output.
unpack() {
    mkdir -p "$2/root" "$2/bin"
    for deb in "$1"/*.deb; do
        dpkg-deb -x "$deb" "$2/root" || { echo "cannot unpack ${deb##*/}"; return 1; }
    done
    loader=$(cd "$2/root" && find usr/lib* lib* -name 'ld-linux*.so.*' ! -type d 2>/dev/null | head -n 1)
    libraries=$(cd "$2/root" && find usr/lib* lib* -name 'libc.so.6' 2>/dev/null | head -n 1)
    cat >"$2/bin/iperf3" <<EOF
#!/bin/sh
root=\${0%/*}/../root
exec "\$root/$loader" --library-path "\$root/${libraries%/*}" "\$root/usr/bin/iperf3" "\$@"
EOF
    chmod 0755 "$2/bin/iperf3"
    brought=$(release "$2/bin/iperf3")
    [ "${brought:-0}" -ge "$wanted" ] || { echo "has ${brought:+only }${brought:-no runnable one}"; return 1; }
    # What is not needed to run: documentation, character sets, other programs.
    rm -rf "$2/root/usr/share" "$2/root/usr/lib/"*/gconv "$2/root/etc" "$2/root/sbin" "$2/root/usr/sbin"
    [ "$(release "$2/bin/iperf3")" = "$brought" ] || { echo "stopped running"; return 1; }
}

if [ "${1:-}" = unpack ]; then
    if unpack "$2" "$3"; then exit 0; else exit 1; fi
fi

system=$(release iperf3)

# Make do with the system's, and say why.
settle() {
    if [ "${system:-0}" -ge "$minimum" ]; then
        echo "iperf3: using the system's $(spell "$system"): $1"
        exit 0
    fi
    echo "iperf3: no usable one: $1; run: apt-get install iperf3 (3.9 or newer)" >&2
    exit 1
}

if [ "${system:-0}" -ge "$wanted" ]; then
    echo "iperf3: using the system's $(spell "$system")"
    exit 0
fi
present=$(release "$home/bin/iperf3")
if [ "${present:-0}" -ge "$wanted" ]; then
    echo "iperf3: using $(spell "$present") in .tools/iperf3"
    exit 0
fi

distribution=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown}")
[ "$distribution" = debian ] || settle "a newer one is only brought on Debian, and this is $distribution"
for tool in apt-get dpkg-deb; do
    command -v $tool >/dev/null || settle "no $tool here to bring a newer one"
done

# The machine's own archive, as "<options>|<URI>": first one-line sources, then deb822. Security and
# update archives do not have the newer suites.
archive=$(
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | awk '
        $1 == "deb" {
            options = ""; i = 2
            if ($2 ~ /^\[/) { while ($i !~ /\]$/) options = options " " $(i++); options = options " " $(i++) }
            gsub(/[][]/, "", options)
            if ($i !~ /^cdrom:/ && $(i + 1) !~ /[-\/]/ && / main/) { print options "|" $i; exit }
        }'
)
[ -n "$archive" ] || archive=$(
    for file in /etc/apt/sources.list.d/*.sources; do
        cat "$file" 2>/dev/null && echo
    done | awk -v RS= -F'\n' '
        {
            split("", field)
            for (i = 1; i <= NF; i++) if ($i !~ /^#/ && (at = index($i, ":"))) {
                value = substr($i, at + 1); gsub(/^[ \t]+|[ \t]+$/, "", value)
                field[tolower(substr($i, 1, at - 1))] = value
            }
            if (field["types"] !~ /deb( |$)/ || tolower(field["enabled"]) == "no") next
            if (field["components"] !~ /main/ || field["suites"] !~ /^[a-z]+( |$)/) next
            options = ""
            if (field["signed-by"] ~ /^\//) options = options " signed-by=" field["signed-by"]
            if (tolower(field["check-valid-until"]) == "no") options = options " check-valid-until=no"
            split(field["uris"], uri, /[ \t]+/)
            print options "|" uri[1]; exit
        }'
)
[ -n "$archive" ] || settle "no Debian archive in this machine's apt sources"
options=${archive%%|*}
uri=${archive#*|}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
case $options in
*signed-by=*) ;;
*) [ ! -f $keyring ] || options="$options signed-by=$keyring" ;;
esac

mkdir -p "$tools"
work=$(mktemp -d "$tools/iperf3.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# apt with lists and cache of its own
own_apt() {
    command=$1
    shift
    apt-get -qq -oDir::Etc::sourcelist="$work/sources.list" -oDir::Etc::sourceparts=/dev/null \
        -oDir::State::lists="$work/lists" -oDir::Cache="$work/cache" \
        -oAPT::Sandbox::User="$(id -un)" -oAcquire::Languages=none "$command" "$@"
}

# Unpack one suite's iperf3 under $work/new; says why not on standard output.
bring() {
    rm -rf "$work/lists" "$work/cache" "$work/debs" "$work/new"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs"
    echo "deb [$options ] $uri $1 main" >"$work/sources.list"
    own_apt update >"$work/log" 2>&1 || { echo "$1: $(grep -m1 '^[EW]:' "$work/log")"; return 1; }
    # shellcheck disable=SC2086 # several packages
    (cd "$work/debs" && own_apt download $needed) >"$work/log" 2>&1 ||
        { echo "$1: $(grep -m1 '^[EW]:' "$work/log")"; return 1; }
    for package in $helpful; do
        (cd "$work/debs" && own_apt download "$package") >/dev/null 2>&1 || true
    done
    unpack "$work/debs" "$work/new" >"$work/problem" || { echo "$1: $(cat "$work/problem")"; return 1; }
}

why=
for suite in $suites; do
    if bring "$suite" >"$work/why"; then
        rm -rf "$home"
        mv "$work/new" "$home"
        echo "iperf3: brought $(spell "$brought") from $suite into .tools/iperf3"
        exit 0
    fi
    why="$why${why:+; }$(cat "$work/why")"
done
settle "the mirror $uri gave no newer one ($why)"
