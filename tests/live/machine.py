"""Minimal VM in which systemd, as process 1 of namespaces, starts the units of a cloud-config.

Real parts: the unit files, systemd's sandbox (users, capabilities, seccomp, read-only system,
private /tmp and /dev), its restarts and stops, and the package in /opt. Simulated parts: the
kernel, the network (of this host) and the image (/usr of this host, /etc is a copy).
"""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from broadside.lab.child_processes import die_with_parent

SYSTEMD: Final = Path("/lib/systemd/systemd")
_STOP_S: Final = 10.0
# The home directory of a machine's root user.
HOME: Final = "/var/lib/root"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The numbers of the machines of this process.
_NUMBERS: Final = itertools.count()

# Set up the mounts of process 1. They are not visible outside.
_SCRIPT: Final = r"""
set -eu
echo $$ > "$cgroup/cgroup.procs"
exec $entered unshare $own_network --mount --pid --cgroup --uts --ipc --fork --kill-child \
    --mount-proc sh -euc '
    mount --make-rprivate /
    [ -z "$own_network" ] || ip link set lo up
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs "$work/etc"
    cp -a /etc/. "$work/etc/"
    mount --bind "$work/etc" /etc
    echo "broadside:x:64987:64987::/var/lib/broadside:/usr/sbin/nologin" >> /etc/passwd
    echo "broadside:x:64987:" >> /etc/group
    mkdir -p /etc/broadside /etc/systemd/system
    cp -a "$work/files/." /
    mount -t tmpfs tmpfs /opt
    [ -z "$venv" ] || mkdir -p /opt/broadside/venv
    [ -z "$venv" ] || mount --bind "$venv" /opt/broadside/venv
    [ -n "$venv" ] || mount -t tmpfs tmpfs /usr/local/bin
    mount -t tmpfs -o mode=755 tmpfs /var/lib
    mkdir -p /var/lib/broadside /var/lib/root
    mount --bind "$work/state" /var/lib/broadside
    mount -t tmpfs -o mode=1777 tmpfs /tmp
    mount -t tmpfs -o mode=1777 tmpfs /var/tmp
    umount -R /sys/fs/cgroup
    mkdir -p /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    hostname "$work_name"
    exec env -i container=broadside PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        SYSTEMD_UNIT_PATH=/etc/systemd/system \
        /lib/systemd/systemd --system --show-status=no --log-target=console --log-level=info
'
"""


def _remove(group: Path, end_s: float) -> None:
    """Remove a control group.

    Retry if killed processes in it have not ended yet.
    """
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)


class Machine:
    """A VM of this kind. Leave the context to kill all processes and to remove everything."""

    def __init__(
        self,
        folder: Path,
        venv: Path | None,
        files: Mapping[str, str],
        units: Sequence[str],
        *,
        own_network: bool = False,
        network: str | None = None,
    ):
        """Prepare a machine with ``files`` by absolute path. The ``units`` start at boot.

        Use ``own_network`` to get only loopback. Otherwise the machine will use the namespace
        ``network``, or the network of this host. Without ``venv`` no package will be installed.
        """
        self.folder = folder
        # This folder is /var/lib/broadside of the machine.
        self.state = folder / "state"
        self._log = folder / "systemd.log"
        self._venv = venv
        self._own_network = own_network
        self._entered = f"nsenter --net=/run/netns/{network}" if network else ""
        self._cgroup = _cgroup_root() / f"broadside-test-{os.getpid()}-{next(_NUMBERS)}"
        for name in ("etc", "files", "state"):
            (folder / name).mkdir()
        system = "/etc/systemd/system"
        targets = ("default", "multi-user", "network-online", "sysinit", "basic", "shutdown")
        stand_ins = {
            f"{system}/{name}.target": f"[Unit]\nDescription={name}\nDefaultDependencies=no\n"
            for name in targets
        }
        stand_ins[f"{system}/default.target"] += f"Wants={' '.join(units)}\n"
        for path, text in {**stand_ins, **files}.items():
            # The other files would be needed only for a boot.
            if path.startswith(("/etc/systemd/", "/etc/broadside/")):
                stored = folder / "files" / path.lstrip("/")
                stored.parent.mkdir(parents=True, exist_ok=True)
                stored.write_text(text)

    def __enter__(self) -> Self:
        self._cgroup.mkdir()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _SCRIPT],
                env=os.environ
                | {
                    "cgroup": str(self._cgroup),
                    "work": str(self.folder),
                    "work_name": "machine",
                    "own_network": "--net" if self._own_network else "",
                    "entered": self._entered,
                    "venv": str(self._venv or ""),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            # This also terminates process 1, and therefore all other processes.
            self._process.kill()
        self._process.wait(_STOP_S)
        end_s = time.monotonic() + _STOP_S
        while (left := self._pids()) and time.monotonic() < end_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        groups = [path for path in self._cgroup.rglob("*") if path.is_dir()]
        for path in (*sorted(groups, key=lambda path: -len(path.parts)), self._cgroup):
            _remove(path, end_s)

    def remains(self) -> list[str]:
        """Return what still exists on this host after closing.

        This can be control groups, mounts and processes.
        """
        left = [str(self._cgroup)] if self._cgroup.exists() else []
        mounts = Path("/proc/mounts").read_text().splitlines()
        return left + [line for line in mounts if str(self.folder) in line]

    def main_pid(self, unit: str) -> int | None:
        """Return the first process id of a unit, as numbered on this host."""
        procs = self._cgroup / "system.slice" / unit / "cgroup.procs"
        try:
            pids = [int(line) for line in procs.read_text().split()]
        except OSError:
            return None
        return min(pids, default=None)

    def run(self, unit: str, *argv: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of this host in the network of a unit's first process."""
        inside = ["nsenter", "--target", str(self.main_pid(unit)), "--net", *argv]
        return subprocess.run(inside, capture_output=True, text=True, timeout=120, check=False)

    def is_up(self) -> bool:
        """Return whether the machine's systemd accepts commands."""
        return self._init() is not None and not self.shell("systemctl list-units").returncode

    def put(self, path: str, content: bytes) -> None:
        """Write a file to the machine."""
        inside = Path(f"/proc/{self._init()}/root{path}")
        inside.write_bytes(content)

    def shell(self, script: str, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run a script in a login environment of the machine's root user."""
        inside = ["nsenter", "--target", str(self._init()), "--all", "env", "-i", f"PATH={_PATH}"]
        return subprocess.run(
            [*inside, f"HOME={HOME}", "sh", "-euc", f"cd; {script}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _init(self) -> int | None:
        """Return the process id of the machine's process 1, as numbered on this host."""
        try:
            return int((self._cgroup / "init.scope" / "cgroup.procs").read_text().split()[0])
        except (OSError, IndexError):
            return None

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _pids(self) -> list[int]:
        return [
            int(line)
            for procs in self._cgroup.rglob("cgroup.procs")
            for line in procs.read_text().split()
        ]


def why_not() -> str | None:
    """Return the reason if no machine can be created here."""
    if os.geteuid() != 0:
        return "makes namespaces and mounts as root"
    if not SYSTEMD.exists() or shutil.which("unshare") is None:
        return "systemd and unshare are missing; run: make tools"
    return None


def system_python() -> str:
    """Return a Python that a service can use, which must not be below /root or /home."""
    for name in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(name).exists():
            completed = subprocess.run([name, "-V"], capture_output=True, text=True, check=True)
            match = re.search(r"3\.(\d+)", completed.stdout)
            if match and int(match[1]) >= 11:
                return name
    raise AssertionError("no Python 3.11 in /usr; run: apt-get install python3")


def _cgroup_root() -> Path:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    raise AssertionError("no cgroup2 is mounted here")
