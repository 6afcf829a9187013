#!/bin/sh
# First program of the hosts in test_wheel.py, in its own namespaces for mounts and processes. It
# mounts an overlay over a Debian root and runs wheel_user.sh in it.
#
#   wheel_host.sh ROOT FILES UV CACHE WORDS...
#
# ROOT is a Debian root, which is not changed. The folder FILES appears as /files, the program UV
# as /usr/local/bin/uv with its CACHE. WORDS go to wheel_user.sh.
set -eu
lower=$1 files=$2 uv=$3 cache=$4
shift 4

mount --make-rprivate /
kept=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$kept"
mkdir "$kept/upper" "$kept/work" "$kept/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$kept/upper,workdir=$kept/work" "$kept/root"
cd "$kept/root"

mount -t proc proc proc
mount --rbind /sys sys
mount --bind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p files cache usr/local/bin
mount --bind "$files" files
mount -o remount,bind,ro files
mount --bind "$cache" cache
touch usr/local/bin/uv
mount --bind "$uv" usr/local/bin/uv

# Settings to reach the package index of this machine.
for path in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/uv /etc/ssl "$HOME/.config/uv"; do
    [ -e "$path" ] || continue
    if [ -d "$path" ]; then mkdir -p ".$path"; else mkdir -p ".$(dirname "$path")"; : >>".$path"; fi
    mount --bind "$(readlink -f "$path")" ".$path"
done

exec chroot . /bin/sh /files/wheel_user.sh "$@"
