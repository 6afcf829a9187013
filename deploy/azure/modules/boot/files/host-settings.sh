#!/bin/sh
# Applies /etc/sysctl.d/90-broadside.conf, and gives each network interface that has hardware behind
# it the default queueing discipline of that file (fq).
#
# An interface takes the default when it comes up. One that is up keeps what it has, and keeps it also
# through down and up, so its root discipline is replaced: "mq" makes one fq for each of its queues;
# an interface with a single queue has no mq, and takes fq itself.
set -eu
settings=/etc/sysctl.d/90-broadside.conf
class=${BROADSIDE_NET_CLASS:-/sys/class/net}
failed=0
sysctl -q -p "$settings" || failed=1
for link in "$class"/*; do
    [ -e "$link/device" ] || continue # loopback, tunnels, bridges
    name=${link##*/}
    tc qdisc replace dev "$name" root mq 2>/dev/null ||
        tc qdisc replace dev "$name" root fq || failed=1
done
exit $failed
