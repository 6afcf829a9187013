#!/bin/sh
# Install an agent or the coordinator on this host, from the unpacked archive in this folder.
# You do not need access to the internet. To upgrade, run it from a newer archive. This will not
# change the settings.
#
#   install.sh coordinator [BROADSIDE_SETTING=VALUE ...]
#   install.sh agent BROADSIDE_AGENT_ROLE=client BROADSIDE_COORDINATOR=https://host:8443 [...]
#
# The join code of an agent is read from standard input, unless this host is already enrolled.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=/opt/broadside
state=/var/lib/broadside
credential=$state/credential.json
settings=/etc/broadside/environment

stop() {
    echo "install.sh: $*" >&2
    exit 2
}

# 1. Check the arguments and this host --------------------------------------------------------------
service=${1:-}
case $service in
agent | coordinator) shift ;;
*) stop "the type of this host is missing: install.sh agent|coordinator [BROADSIDE_SETTING=VALUE ...]" ;;
esac
for word in "$@"; do
    case $word in
    BROADSIDE_AGENT_JOIN=* | *_SECRET=* | *_TOKEN=* | *_CONNECTION_STRING=*)
        echo "install.sh: warning: ${word%%=*}: everybody on this host may read the arguments of a" \
            "process; a join code is read from standard input, other secrets from $settings" >&2
        ;;
    BROADSIDE_[A-Z]*=*) ;;
    *) stop "$word: not a setting; write BROADSIDE_NAME=VALUE (/docs/settings.html of the coordinator)" ;;
    esac
done
umask 077 # files for all users get their mode in a separate line
# The packages of the caller should not be used in the service.
unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX
[ "$(id -u)" = 0 ] || stop "run it as root"
[ "$(uname -m)" = x86_64 ] || stop "$(uname -m): the archive is for x86_64"
command -v systemctl >/dev/null || stop "no systemd here"
python=
for name in python3.13 python3.12 python3.11; do
    if [ -z "$python" ] && command -v "$name" >/dev/null; then python=$(command -v "$name"); fi
done
[ -n "$python" ] || stop "no Python 3.11, 3.12 or 3.13; on RHEL and the like: dnf install python3.12"
command -v chronyc >/dev/null ||
    echo "install.sh: no chrony here; without it no clock is trusted: install your distribution's" >&2

# 2. Write the settings, using the old ones and the new ones on top ---------------------------------
[ -d /etc/broadside ] || install -d -m 0755 /etc/broadside
# The file has secrets, so it is created with a safe mode. systemd will read it as root.
remove_setting() { # NAME
    rm -f "$settings.new"
    touch "$settings"
    grep -v "^$1=" "$settings" >"$settings.new" || true
    mv "$settings.new" "$settings"
}
set_to() { # NAME=VALUE: replace the old value of the name
    remove_setting "${1%%=*}"
    printf '%s\n' "$1" >>"$settings"
}
is_set() { grep -qs "^$1=." "$settings"; }
for word in "$@"; do set_to "$word"; done
if [ "$service" = agent ]; then
    for name in BROADSIDE_AGENT_ROLE BROADSIDE_COORDINATOR; do
        is_set $name || stop "$name is not set; write it behind: install.sh agent $name=..."
    done
    set_to BROADSIDE_FABRIC=http
    set_to BROADSIDE_AGENT_IPERF3=$home/iperf3/bin/iperf3
    set_to BROADSIDE_CREDENTIAL_FILE=$credential
    if [ ! -e $credential ]; then
        [ ! -t 0 ] || printf 'join code: ' >&2
        IFS= read -r code || [ -n "$code" ] || stop "no join code on standard input"
        set_to "BROADSIDE_AGENT_JOIN=$code"
    fi
else
    is_set BROADSIDE_DATA_DIR || set_to BROADSIDE_DATA_DIR=$state
    is_set BROADSIDE_HOSTS_LISTEN || set_to 'BROADSIDE_HOSTS_LISTEN=[::]:8443'
fi

# 3. Install Broadside in its own virtual environment, and iperf3 with its own libraries ------------
id broadside >/dev/null 2>&1 ||
    useradd --system --user-group --no-create-home --home-dir $state --shell /sbin/nologin broadside
systemctl stop broadside-$service.service 2>/dev/null || true
install -d -m 0755 $home
"$python" -m venv --clear --without-pip $home/venv
pip() { $home/venv/bin/python "$(ls "$here"/wheels/pip-*.whl)/pip" --disable-pip-version-check "$@"; }
pip install -q --no-index --find-links "$here/wheels" --no-deps --only-binary :all: \
    --require-hashes --no-compile -r "$here/hosts.lock"
# Compile the modules here, because the service cannot write. Skip modules that it will never use,
# because this would take the same time again.
$home/venv/bin/python -W ignore -m compileall -qq -x '/site-packages/(pip|.*/tests)/' $home/venv/lib ||
    echo "install.sh: a module was not compiled; it is read as it is, at each start" >&2
rm -rf $home/iperf3
cp -R "$here/iperf3" $home/iperf3
chmod -R go+rX $home/venv $home/iperf3
[ -d /usr/local/bin ] || install -d -m 0755 /usr/local/bin
install -m 0755 "$here/broadside" /usr/local/bin/broadside

# 4. Start the service ------------------------------------------------------------------------------
install -m 0644 "$here/broadside-$service.service" /etc/systemd/system/
if [ "$service" = agent ]; then
    install -m 0644 "$here/sysctl.conf" /etc/sysctl.d/90-broadside.conf
    sysctl -q -e -p /etc/sysctl.d/90-broadside.conf 2>/dev/null ||
        echo "install.sh: this kernel does not accept all of /etc/sysctl.d/90-broadside.conf" >&2
fi
systemctl daemon-reload
systemctl enable --now broadside-$service.service
ready=$credential
[ "$service" = agent ] || ready=$(sed -n 's/^BROADSIDE_DATA_DIR=//p' "$settings")/private.sqlite3
# The service works if the files of its first start exist and if its process does not change. After
# an error, a new process is started every 5 s.
tries=60 stays=0 before=
while [ $stays -lt 4 ] && [ $tries -gt 0 ]; do
    sleep 1
    tries=$((tries - 1))
    now=$(systemctl show -P MainPID broadside-$service.service)
    if [ -s "$ready" ] && [ "$now" != 0 ] && [ "$now" = "$before" ]; then
        stays=$((stays + 1))
    else
        stays=0
    fi
    before=$now
done
if [ $stays -lt 4 ]; then
    systemctl status --no-pager --lines 10 broadside-$service.service >&2 || true
    stop "broadside-$service does not start; see: journalctl -u broadside-$service"
fi
if [ "$service" = agent ]; then # the code is no longer needed
    remove_setting BROADSIDE_AGENT_JOIN
    echo "this host is an agent of $(sed -n 's/^BROADSIDE_COORDINATOR=//p' "$settings")"
else
    echo "the coordinator is at work; agents reach it at $(sed -n 's/^BROADSIDE_HOSTS_LISTEN=//p' "$settings")"
fi
