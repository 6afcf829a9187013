#!/bin/sh
# Apply /etc/sysctl.d/90-broadside.conf, and set the default queueing discipline (fq) on each network
# interface that has hardware.
#
# An interface gets the default when it comes up. If it is already up, it will not change, even if it
# goes down and up again. So we replace it here, which is one qdisc below "mq" for each queue of the
# interface, or a single one if the interface has only one queue and no mq.
set -eu
settings=/etc/sysctl.d/90-broadside.conf
discipline=$(sed -n 's/^net\.core\.default_qdisc *= *//p' "$settings")
class=${BROADSIDE_NET_CLASS:-/sys/class/net}
failed=0
# Settings that this kernel does not support are in the journal. An agent also reports the current
# settings.
sysctl -q -p "$settings" || true
for link in "$class"/*; do
    [ -e "$link/device" ] || continue # loopback, tunnels and bridges
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
