#!/bin/sh
# Create .venv/bin/broadside in this checkout. The script installs all missing packages, or prints
# the command to run if you are not root. If nothing is missing, this is fast. You need git, make,
# python3 >= 3.11 and apt.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 4; }

# 1. System packages -------------------------------------------------------------------------------
python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "python3 is missing; run: apt-get install python3"
version=$("$python" -V 2>&1) # for example Python 3.11.2
minor=${version#Python 3.}
minor=${minor%%.*}
[ "$minor" -ge 11 ] 2>/dev/null ||
    fail "python3 is $version; 3.11 or newer is needed: set PYTHON=/path/to/python3.11"

packages=
want() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || packages="$packages $2"; }
want iperf3 iperf3
want chronyd chrony
want nft nftables
want ip iproute2
want tc iproute2
want cc gcc
[ -e /usr/include/stdio.h ] || packages="$packages libc6-dev"
# In addition to the packages for the demo, install the traffic engines and the tools for the tests.
if [ "${1-}" = all ]; then
    want lftp lftp
    want vsftpd vsftpd
    want nginx nginx-light
    want openssl openssl
    want chromium chromium
    want prometheus prometheus
    want promtool prometheus
    want ethtool ethtool
    want snmpd snmpd
    want cloud-init cloud-init
    want systemd-analyze systemd
    want buildah buildah
    want mmdebstrap mmdebstrap
fi
[ -x .tools/uv/bin/uv ] || "$python" -m ensurepip --version >/dev/null 2>&1 ||
    packages="$packages python3.$minor-venv"
packages=$(printf '%s\n' $packages | sort -u | tr '\n' ' ')

if [ -n "${packages% }" ]; then
    if ! command -v apt-get >/dev/null; then
        say "missing: ${packages% }; apt-get does not exist: install them with the package manager of your system"
    elif [ "$(id -u)" = 0 ]; then
        say "installing ${packages% }"
        export DEBIAN_FRONTEND=noninteractive
        log=$(mktemp)
        trap 'rm -f "$log"' EXIT
        # Do not start any service. The lab runs its own chronyd, and the clock of the host should
        # not change.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e $policy ]; then
            trap 'rm -f "$log" $policy' EXIT
            printf '#!/bin/sh\nexit 101\n' > $policy
            chmod +x $policy
        fi
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages; } \
            >"$log" 2>&1 || { cat "$log" >&2; fail "apt-get could not install ${packages% }"; }
    else
        say "missing: ${packages% }; run: sudo apt-get install ${packages% }"
    fi
fi

# 2. uv in this checkout ---------------------------------------------------------------------------
if [ ! -x .tools/uv/bin/uv ]; then
    say "installing uv in .tools/uv"
    rm -rf .tools/uv
    "$python" -m venv .tools/uv || fail "python3 -m venv failed; run: apt-get install python3-venv"
    .tools/uv/bin/pip install -q --disable-pip-version-check --require-hashes -r deploy/uv.lock ||
        fail "pip could not install uv; is a package index reachable? see: .tools/uv/bin/pip config list"
fi

# 3. The virtual environment -----------------------------------------------------------------------
stamp=.venv/.broadside-stamp
key=$(cat requirements.lock pyproject.toml agent/*.c | cksum)
if [ ! -x .venv/bin/broadside ] || [ "$(cat $stamp 2>/dev/null)" != "$key" ]; then
    say "installing the locked packages into .venv"
    export UV_PYTHON_DOWNLOADS=never
    [ -x .venv/bin/python ] || .tools/uv/bin/uv venv -q --python "$python" .venv
    .tools/uv/bin/uv pip sync -q --python .venv/bin/python --require-hashes requirements.lock
    .tools/uv/bin/uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e .
    # This is also needed if Python is set up to write no bytecode. Otherwise about 700 modules
    # would be compiled on every start.
    env -u PYTHONDONTWRITEBYTECODE .venv/bin/python deploy/write_bytecode.py
    printf '%s' "$key" > $stamp
fi

# 4. A recent iperf3 -------------------------------------------------------------------------------
[ -x .tools/iperf3/bin/iperf3 ] || sh deploy/iperf3.sh

# 5. Programs without a package, in parallel. Print what will not work if one is missing -----------
bring() { sh "deploy/$1.sh" "$2" || say "no $2: $3"; }
if [ "${1-}" = all ]; then
    # Build vegeta with the same Go as in a release, so that the tests use the same program.
    { BROADSIDE_BRING_GO=1 sh deploy/go.sh vegeta && sh deploy/go.sh kubernetes actionlint; } ||
        say "without vegeta no http and https engine runs here, without the others deploy-check leaves files out" &
    bring npm servicebus-js "the broker of the lab is not tested with the JavaScript SDK" &
    bring npm typescript-client "the test of the TypeScript client will fail" &
fi
# Table Storage for Azure in the lab.
bring npm azurite "its tests and --fabric azure-local will not run"
wait
