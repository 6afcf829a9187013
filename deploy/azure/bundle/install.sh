#!/bin/sh
# Install an agent or the coordinator on this VM, from the unpacked package in this folder, offline.
#
#   install.sh agent|coordinator
#
# The script can be killed at any point and run again, also to replace an older package.
# fetch.py has checked the SHA-256 of the package before it was unpacked, so we use `trusted`.
set -eu
# This is needed by the Debian packages, no matter who runs this script. There are no secrets here.
umask 022
here=$(cd "$(dirname "$0")" && pwd)
service=$1
venv=/opt/broadside/venv
export DEBIAN_FRONTEND=noninteractive

# 1. Install the traffic engines and chrony, using only the package ---------------------------------
echo "deb [trusted=yes] file:$here/debs ./" >"$here/sources.list"
own_apt() {
    apt-get -q -oDPkg::Lock::Timeout=600 -oDir::Etc::sourcelist="$here/sources.list" -oDir::Etc::sourceparts=/dev/null \
        -oDir::State::lists="$here/lists" -oAPT::Sandbox::User=root -oAcquire::Languages=none \
        -oDpkg::Options::=--force-confdef -oDpkg::Options::=--force-confold "$@"
}
mkdir -p "$here/lists/partial"
own_apt update
# Do not start the services of the engines, because the agent will start an engine for a burst.
policy=/usr/sbin/policy-rc.d
trap 'rm -f $policy' EXIT
printf '#!/bin/sh\nexit 101\n' >$policy
chmod +x $policy
# Remove packages that were not completely installed if an earlier run was killed.
dpkg --configure -a --force-confdef --force-confold || true
own_apt install -y --fix-broken --no-install-recommends
own_apt install -y --no-install-recommends $(cat "$here/packages")
rm $policy
for unit in iperf3 nginx vsftpd; do systemctl disable --now --quiet $unit.service 2>/dev/null || true; done

install -m 0755 "$here"/bin/* /usr/local/bin/

install -m 0644 /etc/broadside/chrony.conf /etc/chrony/chrony.conf
systemctl enable chrony
systemctl restart chrony

# 2. Install Broadside in its own virtual environment -----------------------------------------------
id broadside >/dev/null 2>&1 ||
    useradd --system --user-group --no-create-home --home-dir /var/lib/broadside broadside
python3 -m venv --clear --without-pip $venv
pip() { $venv/bin/python "$(ls "$here"/wheels/pip-*.whl)/pip" "$@"; }
pip install -q --no-index --find-links "$here/wheels" --no-deps --only-binary :all: --require-hashes \
    -r "$here/$service.lock"
pip install -q --no-index --no-deps "$here"/wheels/broadside-*.whl

if [ "$service" = agent ]; then
    # An agent has to be able to stream its seconds, to start at a given time, and to run an engine.
    role=$(sed -n 's/^BROADSIDE_AGENT_ROLE=//p' /etc/broadside/environment)
    BROADSIDE_AGENT_ROLE=$role $venv/bin/broadside agent --check
fi

# 3. Start the service ------------------------------------------------------------------------------
systemctl daemon-reload
systemctl enable "broadside-$service.service"
systemctl restart "broadside-$service.service"
