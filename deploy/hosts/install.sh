#!/bin/sh
# Makes this host a Broadside agent or the coordinator, from the unpacked archive beside this script.
# Needs no internet. Run again with a newer archive, it upgrades and keeps the settings.
#
#   install.sh coordinator [BROADSIDE_SETTING=VALUE ...]
#   install.sh agent BROADSIDE_AGENT_ROLE=client BROADSIDE_COORDINATOR=https://host:8443 [...]
#
# An agent's join code is read from standard input, unless this host is enrolled already.
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

# 1. What was asked, and what this host has ---------------------------------------------------------
service=${1:-}
case $service in
agent | coordinator) shift ;;
*) stop "say what this host is to be: install.sh agent|coordinator [BROADSIDE_SETTING=VALUE ...]" ;;
esac
for word in "$@"; do
    case $word in
    BROADSIDE_AGENT_JOIN=* | *_SECRET=* | *_TOKEN=* | *_CONNECTION_STRING=*)
        echo "install.sh: warning: ${word%%=*}: everybody on this host may read the arguments of a" \
            "process; a join code is read from standard input, other secrets from $settings" >&2
        ;;
    BROADSIDE_[A-Z]*=*) ;;
    *) stop "$word: not a setting; write BROADSIDE_NAME=VALUE (docs/settings.md)" ;;
    esac
done
umask 077 # what is for all users is opened to them by its own line
unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX # packages of the caller's are not the service's
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

# 2. The settings: those of before, with those of now over them -------------------------------------
[ -d /etc/broadside ] || install -d -m 0755 /etc/broadside
remove_setting() { # NAME; the file holds secrets from its first byte on, and systemd reads it as root
    rm -f "$settings.new"
    touch "$settings"
    grep -v "^$1=" "$settings" >"$settings.new" || true
    mv "$settings.new" "$settings"
}
set_to() { # NAME=VALUE: in place of what the name was set to
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

# 3. Broadside, in a virtual environment of its own, and an iperf3 with libraries of its own --------
id broadside >/dev/null 2>&1 ||
    useradd --system --user-group --no-create-home --home-dir $state --shell /sbin/nologin broadside
systemctl stop broadside-$service.service 2>/dev/null || true
install -d -m 0755 $home
"$python" -m venv --clear --without-pip $home/venv
pip() { $home/venv/bin/python "$(ls "$here"/wheels/pip-*.whl)/pip" --disable-pip-version-check "$@"; }
pip install -q --no-index --find-links "$here/wheels" --no-deps --only-binary :all: \
    --require-hashes --no-compile -r "$here/hosts.lock"
# Compiled here, for the service may not write; without what it never runs, which takes as long.
$home/venv/bin/python -W ignore -m compileall -qq -x '/site-packages/(pip|.*/tests)/' $home/venv/lib ||
    echo "install.sh: a module was not compiled; it is read as it is, at each start" >&2
rm -rf $home/iperf3
cp -R "$here/iperf3" $home/iperf3
chmod -R go+rX $home/venv $home/iperf3
[ -d /usr/local/bin ] || install -d -m 0755 /usr/local/bin
install -m 0755 "$here/broadside" /usr/local/bin/broadside

# 4. The service ------------------------------------------------------------------------------------
install -m 0644 "$here/broadside-$service.service" /etc/systemd/system/
if [ "$service" = agent ]; then
    install -m 0644 "$here/sysctl.conf" /etc/sysctl.d/90-broadside.conf
    sysctl -q -e -p /etc/sysctl.d/90-broadside.conf 2>/dev/null ||
        echo "install.sh: this kernel does not take all of /etc/sysctl.d/90-broadside.conf" >&2
fi
systemctl daemon-reload
systemctl enable --now broadside-$service.service
ready=$credential
[ "$service" = agent ] || ready=$(sed -n 's/^BROADSIDE_DATA_DIR=//p' "$settings")/private.sqlite3
# At work: it has what it makes at its first start, and one process that stays. One that ends with an
# error is started again every 5 s by another.
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
if [ "$service" = agent ]; then # the code has done its work
    remove_setting BROADSIDE_AGENT_JOIN
    echo "this host is an agent of $(sed -n 's/^BROADSIDE_COORDINATOR=//p' "$settings")"
else
    echo "the coordinator is at work; agents reach it at $(sed -n 's/^BROADSIDE_HOSTS_LISTEN=//p' "$settings")"
fi
