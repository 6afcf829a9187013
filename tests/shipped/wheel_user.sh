#!/bin/sh
# Steps of a user of the wheel on a Debian host: create an environment, install, use the commands.
#
#   wheel_user.sh install RESOLUTION REQUIREMENT    with the network of the machine
#   wheel_user.sh use WORD                          in a separate network, with WORD demo or no-demo
#
# `install` continues with `use`. Every program that is started here ends with this script.
set -eu
export PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root XDG_STATE_HOME=/root/state LC_ALL=C.UTF-8

step() { printf '== %s\n' "$*"; }

if [ "$1" = install ]; then
    step install "$2" "$3"
    export UV_CACHE_DIR=/cache UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
    uv venv -q --python /usr/bin/python3 /opt/venv
    uv pip install -q --python /opt/venv/bin/python --resolution "$2" "$3"
    uv pip list -q --python /opt/venv/bin/python
    exec unshare --net /bin/sh /files/wheel_user.sh use "$4"
fi

# An interface with a default route, as on any laptop. The agents use it to find their address.
ip link set lo up
ip link add laptop type veth peer name laptop-far
ip link set laptop-far up
ip address add 192.0.2.2/24 dev laptop
ip link set laptop up
ip route add default dev laptop

# The current folder contains files with names of modules. They must not be imported.
mkdir -p /root/here
cd /root/here
for name in agent broadside coordinator exchange json lab sitecustomize typing; do
    cp /files/same_name.py "$name.py"
done

step version
broadside --version

step modules
/opt/venv/bin/python -P /files/import_modules.py

step serve
broadside serve --port 8080 >/root/serve.log 2>&1 &
broadside agent --role server --agent-id laptop-server --ports 5201-5202 >/root/server.log 2>&1 &
broadside agent --role client --agent-id laptop-client >/root/client.log 2>&1 &
for try in $(seq 120); do
    [ "$(broadside agents --api http://127.0.0.1:8080 2>/dev/null | grep -c laptop)" = 2 ] && break
    sleep 0.5
done

step launch
status=0
broadside launch loopback --api http://127.0.0.1:8080 --set burst=10s --set bursts_count=1 ||
    status=$?
if [ $status != 0 ]; then
    cat /root/serve.log /root/server.log /root/client.log
    exit $status
fi

step report
broadside report last --file /root/report.html
[ -s /root/report.html ]

step doctor
# The exit code depends on this host. Only the check of an agent matters here.
broadside doctor || [ $? = 4 ]

step up
broadside up --dry-run --vars examples/scale-180g.tfvars
status=0
broadside up --vars examples/scale-180g.tfvars || status=$?
[ $status = 3 ]
[ -f /root/state/broadside/azure/main.tf ]

if [ "$2" = demo ]; then
    step demo
    status=0
    BROADSIDE_DATA_DIR=/root/demo broadside demo --pairs 2 --seconds 10 --bursts 1 || status=$?
    # On a machine that is busy with other tests the verdict may be inconclusive.
    [ $status = 0 ] || [ $status = 2 ]
    broadside lab down
fi

step planted
[ ! -e /root/planted-ran ] || { cat /root/planted-ran; exit 1; }
[ -z "$(find /opt/venv/lib -path '*broadside/deploy*' -newer /root/here/json.py -type f)" ]
step done
