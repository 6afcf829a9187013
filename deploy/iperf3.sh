#!/bin/sh
# Add an iperf3 that can stream its JSON (3.17 or newer) to the checkout, if the one on this system
# is older and the Debian mirror of this machine has a newer one. You do not need root, and no
# package will be installed.
#
# The packages of a newer suite are checked by apt and unpacked to .tools/iperf3/root. The wrapper
# .tools/iperf3/bin/iperf3 runs them with their own loader. The script prints a line with the iperf3
# that will be used. It exits with 0 if Broadside can use it, whether it is old or new, and with 1 if
# not.
#
#   iperf3.sh                    as described above
#   iperf3.sh unpack DEBS HOME   unpack the packages in a folder to HOME (deploy/hosts/archive.py)
set -eu

minimum=309 # 3.9, the oldest version supported by Broadside
wanted=317  # 3.17, with support for --json-stream
suites="trixie forky sid"
needed="libc6 libiperf0 iperf3"
# The names depend on the suite. The wrapper is tested with --version.
helpful="libssl3t64 libsctp1 libzstd1 zlib1g"

tools=$(cd "$(dirname "$0")/.." && pwd)/.tools
home=$tools/iperf3

# Convert "iperf 3.12 (cJSON 1.7.15)" to 312, or to nothing if the program does not run.
release() {
    "$1" --version 2>/dev/null | sed -n 's/^iperf \([0-9]*\)\.\([0-9]*\).*/\1 \2/p' |
        awk '{ print $1 * 100 + $2 }'
}

spell() { echo "$(($1 / 100)).$(($1 % 100))"; }

# Unpack the packages in a folder to another one, with a wrapper bin/iperf3 that runs them using
# their own loader. If this fails, the reason is printed to standard output.
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
    # Delete files that are not needed to run, such as documentation, character sets and other
    # programs.
    rm -rf "$2/root/usr/share" "$2/root/usr/lib/"*/gconv "$2/root/etc" "$2/root/sbin" "$2/root/usr/sbin"
    [ "$(release "$2/bin/iperf3")" = "$brought" ] || { echo "stopped running"; return 1; }
}

if [ "${1:-}" = unpack ]; then
    if unpack "$2" "$3"; then exit 0; else exit 1; fi
fi

system=$(release iperf3)

# Use the system's iperf3 and print the reason.
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

# Get the archive of this machine as "<options>|<URI>", first from one-line sources and then from
# deb822 ones. Security and update archives do not have the newer suites.
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

# Run apt with its own lists and cache.
own_apt() {
    command=$1
    shift
    apt-get -qq -oDir::Etc::sourcelist="$work/sources.list" -oDir::Etc::sourceparts=/dev/null \
        -oDir::State::lists="$work/lists" -oDir::Cache="$work/cache" \
        -oAPT::Sandbox::User="$(id -un)" -oAcquire::Languages=none "$command" "$@"
}

# Unpack iperf3 from a suite to $work/new. If this fails, the reason is printed to standard output.
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
