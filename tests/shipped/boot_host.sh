#!/bin/sh
# First program of a host that tests boot (see systemd_hosts.py). It prepares the mounts and then
# executes systemd. It runs in its own namespaces for mounts, processes, control groups, host name
# and IPC.
#
#   boot_host.sh NAME ROOT FOLDER HOSTS
#
# ROOT is a Debian root, which is not changed. FOLDER stores the files that the host writes. HOSTS is
# the text of its /etc/hosts.
set -eu
name=$1 lower=$2 kept=$3 hosts=$4

mount --make-rprivate /
mkdir -p "$kept/upper" "$kept/work" "$kept/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$kept/upper,workdir=$kept/work" "$kept/root"
cd "$kept/root"

# The kernel is shared with this machine, so a host may only change its network.
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup

mount -t tmpfs -o mode=755 tmpfs dev
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/tty c 5 0
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp

if [ ! -e etc/hostname.set ]; then # the first boot
    echo "$name" >etc/hostname
    printf '%s' "$hosts" >etc/hosts
    touch etc/hostname.set
    : >etc/fstab
    # Each host creates its own file, as at the first boot of an image.
    : >etc/machine-id
    # The clock is shared with this machine, so chrony reads the time but does not set the clock.
    [ ! -e etc/default/chrony ] || echo 'DAEMON_OPTS="-F 1 -x"' >etc/default/chrony
    # These units would change this machine's kernel or wait for devices that do not exist here.
    for unit in systemd-sysctl.service systemd-modules-load.service systemd-udevd.service \
        systemd-udev-trigger.service systemd-networkd.service systemd-networkd-wait-online.service \
        systemd-resolved.service systemd-timesyncd.service getty.target console-getty.service \
        sys-kernel-debug.mount sys-kernel-tracing.mount apt-daily.timer apt-daily-upgrade.timer; do
        ln -sf /dev/null "etc/systemd/system/$unit"
    done
fi
hostname "$name"

mkdir -p mnt
pivot_root . mnt
umount -l /mnt
exec env -i container=broadside PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --show-status=no --log-target=console --log-level=notice
