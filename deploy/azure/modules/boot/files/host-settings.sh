#!/bin/sh
# Applies /etc/sysctl.d/90-broadside.conf, and gives each network interface that has hardware behind
# it the queueing discipline that is the default there (fq).
#
# An interface takes the default when it comes up. One that is up keeps what it has, also through down
# and up, so it is replaced here: one for each queue of the interface below an "mq", or a single one
# where the interface has a single queue and therefore no mq.
set -eu
settings=/etc/sysctl.d/90-broadside.conf
discipline=$(sed -n 's/^net\.core\.default_qdisc *= *//p' "$settings")
class=${BROADSIDE_NET_CLASS:-/sys/class/net}
failed=0
# What this kernel does not take is named in the journal; an agent also reports what holds.
sysctl -q -p "$settings" || true
for link in "$class"/*; do
    [ -e "$link/device" ] || continue # loopback, tunnels, bridges
    name=${link##*/}
    if tc qdisc replace dev "$name" root handle 1: mq 2>/dev/null; then
        number=0
        for queue in /sys/class/net/"$name"/queues/tx-*; do
            number=$((number + 1))
            tc qdisc replace dev "$name" parent "1:$(printf %x $number)" "$discipline" || failed=1
        done
    else
        tc qdisc replace dev "$name" root "$discipline" || failed=1
    fi
done
exit $failed
