#!/bin/sh
# Makes this VM an agent or a coordinator from the unpacked package beside this script, offline.
#
#   install.sh agent|coordinator
#
# The package's SHA-256 was checked before it was unpacked (fetch.py), hence `trusted`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
service=$1
export DEBIAN_FRONTEND=noninteractive

# 1. The traffic engines and chrony, from the package alone -----------------------------------------
echo "deb [trusted=yes] file:$here/debs ./" >"$here/sources.list"
own_apt() {
    apt-get -q -oDPkg::Lock::Timeout=600 -oDir::Etc::sourcelist="$here/sources.list" -oDir::Etc::sourceparts=/dev/null \
        -oDir::State::lists="$here/lists" -oAPT::Sandbox::User=root -oAcquire::Languages=none "$@"
}
mkdir -p "$here/lists/partial"
own_apt update
policy=/usr/sbin/policy-rc.d # no engine's own service starts: the agent runs engines, for a burst
printf '#!/bin/sh\nexit 101\n' >$policy
chmod +x $policy
own_apt install -y --no-install-recommends $(cat "$here/packages")
rm $policy
for unit in iperf3 nginx vsftpd; do systemctl disable --quiet $unit.service 2>/dev/null || true; done

install -m 0755 "$here"/bin/* /usr/local/bin/

install -m 0644 /etc/broadside/chrony.conf /etc/chrony/chrony.conf
systemctl enable --now chrony
systemctl restart chrony

# 2. Broadside, in a virtual environment of its own ------------------------------------------------
id broadside >/dev/null 2>&1 ||
    useradd --system --user-group --no-create-home --home-dir /var/lib/broadside broadside
python3 -m venv --clear --without-pip /opt/broadside/venv
pip() { /opt/broadside/venv/bin/python "$(ls "$here"/wheels/pip-*.whl)/pip" "$@"; }
pip install -q --no-index --find-links "$here/wheels" --no-deps --only-binary :all: --require-hashes \
    -r "$here/$service.lock"
pip install -q --no-index --no-deps "$here"/wheels/broadside-*.whl

if [ "$service" = agent ]; then
    # An agent that cannot stream its seconds, or start at an instant, or run an engine, is no agent.
    /opt/broadside/venv/bin/python -c '
from agent.gate import find_gate
from agent.installed_engines import find_kits
from agent.engine_process import find_iperf3
from exchange.engines.iperf3_text import streams_json
from exchange.messages import Role
assert find_gate(), "no start gate in the package"
assert streams_json(find_iperf3(None).version), "iperf3 is older than 3.17"
for role in Role:
    for kit in find_kits(role).values():
        assert kit.problem is None, kit.problem'
fi

# 3. The service -----------------------------------------------------------------------------------
systemctl daemon-reload
systemctl enable --now "broadside-$service.service"
