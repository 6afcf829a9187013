"""Hosts that boot with systemd as their first process, in namespaces of this machine.

A host has a Debian root of its own (an overlay over a cached one, see ``debian_roots``), a network,
processes, users and a systemd that starts units with their whole sandbox. It shares the kernel and
the clock with this machine. Each host has one interface, ``eth0``, cabled to one router::

    coordinator 10.77.1.2 --- 10.77.1.1 +--------+ 10.77.2.1 --- 10.77.2.2 client
                                        | router |
                                        +--------+ 10.77.3.1 --- 10.77.3.2 server

    with HostNetwork(tmp_path, ("coordinator", "client", "server")) as network:
        client = network.boot("client", debian_root("bookworm"))
        client.put("/root/file", b"...")
        client.run("systemctl start chrony")
        client.wait_for_unit("chrony.service")

Every host knows the others by name. Files of a host are stored in memory until the network is
closed, so that it can be stopped (as by a power cut) and booted again. Namespaces have no names and
belong to processes that die with the test process. After SIGKILL only empty control groups are
left, which the next network removes.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.live.waiting import wait_for

BOOT: Final = Path(__file__).with_name("boot_host.sh")
SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# This ends with the thread that started it, also if that thread was killed.
MORTAL: Final = ("setpriv", "--pdeathsig", "KILL", "--")
CGROUPS_PREFIX: Final = "broadside-shipped-"
BOOT_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
NEEDED: Final = ("unshare", "nsenter", "setpriv", "ip", "tc", "ethtool")


class HostsImpossible(RuntimeError):
    """This machine cannot run such hosts. The message contains the reason and the fix."""


def check_machine() -> None:
    """Raise :class:`HostsImpossible` if this machine cannot run hosts."""
    if os.geteuid() != 0:
        raise HostsImpossible("hosts with systemd need root; run tests/shipped as root")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise HostsImpossible(f"missing: {', '.join(missing)}; run: make tools")
    cgroups()


class HostNetwork:
    """Router with connected hosts. Leaving the context ends all of them."""

    def __init__(self, folder: Path, names: Sequence[str], *, bits_per_second: int = 200_000_000):
        """Prepare the network. Entering the context creates it.

        Args:
            folder: Empty folder for logs and the hosts' files, which are not visible outside.
            names: Names of the hosts, in the order of their addresses.
            bits_per_second: Rate at which the router sends to each host.

        Raises:
            HostsImpossible: This machine cannot run hosts (raised on entering).
        """
        self._folder = folder
        self._kept = folder / "kept"
        self._names = tuple(names)
        self._bits_per_second = bits_per_second
        self._processes: list[subprocess.Popen[bytes]] = []
        self._hosts: dict[str, Host] = {}
        self._router_pid = 0
        self._network_pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        check_machine()
        _remove_stalecgroups()
        self._kept.mkdir(parents=True)
        # The process of the router also owns the memory file system that the hosts write to.
        script = (
            f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(self._kept))};"
            " ip link set lo up; echo 1 >/proc/sys/net/ipv4/ip_forward; echo ready;"
            " exec sleep infinity"
        )
        try:
            self._router_pid = self._keeper("--mount", "--net", script=script)
            for number, name in enumerate(self._names, 1):
                self._cable(name, number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every host and the router, and remove their control groups."""
        for host in self._hosts.values():
            host.stop()
        for process in reversed(self._processes):
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        self._processes.clear()

    def address(self, name: str) -> str:
        """Return the IPv4 address of a host."""
        return f"10.77.{self._names.index(name) + 1}.2"

    def in_router(self, *argv: str) -> list[str]:
        """Return a command of this machine that runs in the router's network.

        A program that it starts listens on every ``10.77.N.1`` for the hosts.
        """
        return ["nsenter", f"--net=/proc/{self._router_pid}/ns/net", *argv]

    def counted_bytes(self, name: str, direction: str) -> int:
        """Return the bytes that the router received from (``rx``) or sent to (``tx``) a host."""
        text = self._ip("-s", "link", "show", "dev", self._port(name))
        (received, sent) = re.findall(r"^ +(\d+) +\d+", text, re.M)[:2]
        return int(received if direction == "rx" else sent)

    def boot(self, name: str, root: Path) -> "Host":
        """Boot a host, and wait until its systemd has started everything.

        Args:
            name: One of the names of the network.
            root: Root of ``debian_root``, which is not changed.

        Raises:
            AssertionError: The host does not start.
        """
        host = self._hosts.get(name) or Host(self, name, root, self._folder / f"{name}.log")
        self._hosts[name] = host
        host.boot()
        return host

    @property
    def files_path(self) -> Path:
        """Folder of the hosts' files, visible only in the router's mount namespace."""
        return self._kept

    def in_mounts(self, *argv: str) -> list[str]:
        """Return a command of this machine that can access the files of the hosts."""
        return ["nsenter", f"--mount=/proc/{self._router_pid}/ns/mnt", *argv]

    def network_pid(self, name: str) -> int:
        """Return the process id of the owner of a host's network namespace."""
        return self._network_pids[name]

    def _keeper(self, *namespaces: str, script: str) -> int:
        process = subprocess.Popen(
            [*MORTAL, "unshare", *namespaces, "sh", "-euc", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self._processes.append(process)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"ready\n", "its namespaces could not be made"
        return process.pid

    def _cable(self, name: str, number: int) -> None:
        pid = self._keeper("--net", script="ip link set lo up; echo ready; exec sleep infinity")
        self._network_pids[name] = pid
        port, subnet = self._port(name), f"10.77.{number}"
        inside = ("nsenter", f"--net=/proc/{pid}/ns/net")
        self._ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._ip("addr", "add", f"{subnet}.1/24", "dev", port)
        _call(*inside, "ip", "addr", "add", f"{subnet}.2/24", "dev", "eth0")
        # Without this, counters of offloaded segments would not include the headers of all packets.
        off = ("tso", "off", "gso", "off", "gro", "off", "tx", "off")
        _call(*self.in_router("ethtool", "-K", port, *off))
        _call(*inside, "ethtool", "-K", "eth0", *off)
        self._ip("link", "set", port, "up")
        _call(*inside, "ip", "link", "set", "eth0", "up")
        _call(*inside, "ip", "route", "add", "default", "via", f"{subnet}.1")
        shaper = ("tbf", "rate", f"{self._bits_per_second}", "burst", "64kb", "latency", "40ms")
        _call(*self.in_router("tc", "qdisc", "replace", "dev", port, "root", *shaper))

    def _port(self, name: str) -> str:
        return f"to-{name}"[:15]

    def _ip(self, *words: str) -> str:
        return _call(*self.in_router("ip", *words))

    def hosts_file(self) -> str:
        """Return the content of ``/etc/hosts`` with every host by name."""
        lines = [f"{self.address(name)} {name}" for name in self._names]
        return "\n".join(["127.0.0.1 localhost", *lines, ""])


class Host:
    """Host created by :meth:`HostNetwork.boot`."""

    def __init__(self, network: HostNetwork, name: str, root: Path, log: Path):
        self.name = name
        self.address = network.address(name)
        self._network = network
        self._root = root
        self._log = log
        self._cgroup = cgroups() / f"{CGROUPS_PREFIX}{os.getpid()}-{id(network):x}-{name}"
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Start systemd, also after :meth:`stop`, and wait until every unit has started."""
        assert self._process is None, f"{self.name} is up already"
        self._cgroup.mkdir()
        stored = self._network.files_path / self.name
        namespaces = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--fork", "--kill-child")
        entered = self._network.in_mounts(
            "nsenter", f"--net=/proc/{self._network.network_pid(self.name)}/ns/net"
        )
        first = ["sh", str(BOOT), self.name, str(self._root), str(stored)]
        first.append(self._network.hosts_file())
        joined = f'echo $$ >{shlex.quote(str(self._cgroup))}/cgroup.procs; exec "$@"'
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*MORTAL, *entered, "sh", "-euc", joined, "sh", "unshare", *namespaces, *first],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_for(f"{self.name}'s systemd", self._is_up, BOOT_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._log.read_text(errors='replace')}") from error
        state = self.run("systemctl is-system-running --wait || true").stdout.strip()
        if state != "running":
            failed = self.run("systemctl --failed --no-legend --plain").stdout
            raise AssertionError(f"{self.name} is {state}: {failed}\n{self.journal()[-4000:]}")

    def stop(self) -> None:
        """End every process of the host at once, like a power cut. Its files remain."""
        process, self._process = self._process, None
        if process is None:
            return
        # With --kill-child this also ends process 1 and all others.
        process.kill()
        process.wait(STOP_TIMEOUT_S)
        _remove_cgroup(self._cgroup)

    def run(
        self,
        script: str,
        *,
        check: bool = True,
        stdin: str = "",
        timeout_s: float = 120.0,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a shell script as root of the host in ``/root``.

        Args:
            script: Text for ``sh -eu``.
            check: Fail the test on an exit code other than 0.
            stdin: Standard input of the script.
            timeout_s: Time limit. After it the script is killed and the test fails.

        Returns:
            Exit code and outputs.
        """
        environment = (f"PATH={SEARCH_PATH}", "HOME=/root", "LANG=C.UTF-8", "COLUMNS=200")
        inside = ["nsenter", "--target", str(self._init()), "--all", "env", "-i", *environment]
        done = subprocess.run(
            [*inside, "sh", "-euc", f"cd\n{script}"],
            capture_output=True,
            text=True,
            input=stdin,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{self.name}: exit {done.returncode} of\n{script}\n{done.stdout}{done.stderr}"
            )
        return done

    def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file of the host, and create its folder if it is missing."""
        inside = self.path(path)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_bytes(content)
        inside.chmod(mode)

    def path(self, path: str) -> Path:
        """Return the path of a file of the running host on this machine.

        If a symbolic link has an absolute target, the result will be wrong, because it is resolved
        on this machine.
        """
        return Path(f"/proc/{self._init()}/root{path}")

    def wait_for_unit(self, unit: str, state: str = "active", timeout_s: float = 60.0) -> None:
        """Wait until a unit has a state, or fail with its journal."""

        def reached() -> bool:
            return self.run(f"systemctl is-active {unit}", check=False).stdout.strip() == state

        try:
            wait_for(f"{self.name}: {unit} {state}", reached, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.journal(unit)}") from error

    def journal(self, unit: str = "") -> str:
        """Return the journal since boot, of one unit or of all."""
        named = f"-u {unit}" if unit else ""
        return self.run(f"journalctl -b --no-pager -o cat {named}", check=False).stdout

    def main_pid(self, unit: str) -> int:
        """Return the main process id of a unit as numbered on the host, or 0."""
        return int(self.run(f"systemctl show -P MainPID {unit}").stdout)

    def _init(self) -> int:
        """Return the id of process 1 as numbered on this machine, or 0 before it has started."""
        assert self._process is not None, f"{self.name} is not booted"
        pid = self._process.pid
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        except (OSError, IndexError):
            return 0

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} ended while it booted"
        if not (pid := self._init()) or Path(f"/proc/{pid}/comm").read_text() != "systemd\n":
            return False
        return self.run("systemctl list-units", check=False).returncode == 0


def _call(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"{shlex.join(argv)}: {done.stderr}"
    return done.stdout


def cgroups() -> Path:
    """Return the mount point of cgroup v2."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            return Path(place)
    raise HostsImpossible("no writable cgroup2 here; run: mount -t cgroup2 cgroup2 /sys/fs/cgroup")


def _remove_cgroup(group: Path) -> None:
    """Remove a control group with its children, and retry while killed processes are ending."""
    end_s = time.monotonic() + STOP_TIMEOUT_S
    while group.exists():
        # Another test process may remove them at the same time.
        with contextlib.suppress(FileNotFoundError):
            below = [path for path in group.rglob("*") if path.is_dir()]
            for path in (*sorted(below, key=lambda path: -len(path.parts)), group):
                with contextlib.suppress(OSError):
                    path.rmdir()
        if group.exists():
            assert time.monotonic() < end_s, f"{group}: processes are left in it"
            time.sleep(0.05)


def _remove_stalecgroups() -> None:
    """Remove control groups of test processes that were killed."""
    for group in cgroups().glob(f"{CGROUPS_PREFIX}*"):
        pid = group.name.removeprefix(CGROUPS_PREFIX).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            _remove_cgroup(group)
