#!/bin/sh
# Makes this VM an agent or a coordinator from the unpacked package beside this script, offline.
#
#   install.sh agent|coordinator
#
# It may be killed at any point and run again, also over an older package.
# The package's SHA-256 was checked before it was unpacked (fetch.py), hence `trusted`.
set -eu
umask 022 # what Debian's packages expect, whoever called; nothing here is a secret
here=$(cd "$(dirname "$0")" && pwd)
service=$1
venv=/opt/broadside/venv
export DEBIAN_FRONTEND=noninteractive

# 1. The traffic engines and chrony, from the package alone -----------------------------------------
echo "deb [trusted=yes] file:$here/debs ./" >"$here/sources.list"
own_apt() {
    apt-get -q -oDPkg::Lock::Timeout=600 -oDir::Etc::sourcelist="$here/sources.list" -oDir::Etc::sourceparts=/dev/null \
        -oDir::State::lists="$here/lists" -oAPT::Sandbox::User=root -oAcquire::Languages=none \
        -oDpkg::Options::=--force-confdef -oDpkg::Options::=--force-confold "$@"
}
mkdir -p "$here/lists/partial"
own_apt update
policy=/usr/sbin/policy-rc.d # no engine's own service starts: the agent runs engines, for a burst
trap 'rm -f $policy' EXIT
printf '#!/bin/sh\nexit 101\n' >$policy
chmod +x $policy
# What an earlier run that was killed left half installed.
dpkg --configure -a --force-confdef --force-confold || true
own_apt install -y --fix-broken --no-install-recommends
own_apt install -y --no-install-recommends $(cat "$here/packages")
rm $policy
for unit in iperf3 nginx vsftpd; do systemctl disable --now --quiet $unit.service 2>/dev/null || true; done

install -m 0755 "$here"/bin/* /usr/local/bin/

install -m 0644 /etc/broadside/chrony.conf /etc/chrony/chrony.conf
systemctl enable chrony
systemctl restart chrony

# 2. Broadside, in a virtual environment of its own ------------------------------------------------
id broadside >/dev/null 2>&1 ||
    useradd --system --user-group --no-create-home --home-dir /var/lib/broadside broadside
python3 -m venv --clear --without-pip $venv
pip() { $venv/bin/python "$(ls "$here"/wheels/pip-*.whl)/pip" "$@"; }
pip install -q --no-index --find-links "$here/wheels" --no-deps --only-binary :all: --require-hashes \
    -r "$here/$service.lock"
pip install -q --no-index --no-deps "$here"/wheels/broadside-*.whl

if [ "$service" = agent ]; then
    # An agent that cannot stream its seconds, or start at an instant, or run an engine, is no agent.
    role=$(sed -n 's/^BROADSIDE_AGENT_ROLE=//p' /etc/broadside/environment)
    BROADSIDE_AGENT_ROLE=$role $venv/bin/broadside agent --check
fi

# 3. The service -----------------------------------------------------------------------------------
systemctl daemon-reload
systemctl enable "broadside-$service.service"
systemctl restart "broadside-$service.service"
