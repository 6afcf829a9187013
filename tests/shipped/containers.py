"""Run services of docker-compose.yml in a built image without a container engine.

A container has the properties from the compose file: user, entrypoint and environment of its image,
command, files, volumes, a read-only root, no capabilities, limits, an address on the network
``fleet``, the names of the others, and its health check. It has its own namespaces for mounts,
processes, names and (except with ``network_mode: host``) network. ``NOT_APPLIED`` lists the keys
that only an engine can apply. Any other unknown key is an error.

The *host* network is a namespace of the tests with a bridge and a loopback, so the network of the
machine is not changed. Everything ends with the test process.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from deploy.azure.wheelhouse import ROOT
from tests.live.waiting import wait_for
from tests.shipped.image_build import Image

APPLIED: Final = frozenset(
    {
        *("image", "command", "env_file", "environment", "volumes", "read_only", "tmpfs"),
        *("cap_drop", "security_opt", "networks", "network_mode", "extra_hosts", "sysctls"),
        *("ulimits", "hostname", "healthcheck"),
    }
)
# Only an engine can apply restarts, the start order and an init process.
NOT_APPLIED: Final = frozenset({"build", "restart", "depends_on", "init", "profiles"})
# This ends with the thread that started it, also if that thread was killed.
MORTAL: Final = ("setpriv", "--pdeathsig", "KILL", "--")
EXEC_TIMEOUT_S: Final = 240.0
STOP_TIMEOUT_S: Final = 30.0
DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
START: Final = """
mount --make-rprivate /
read -r ready
mount --bind "$root" "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t tmpfs -o nosuid,mode=755 tmpfs "$root/dev"
for device in $devices; do
    touch "$root/dev/$device"
    mount --bind /dev/$device "$root/dev/$device"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777 tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
"""


class Compose:
    """Services of a compose file that run in the built images."""

    def __init__(
        self,
        folder: Path,
        document: Mapping[str, Any],
        images: Mapping[str, Image],
        *,
        on_machine: bool = False,
    ):
        """Prepare the services. Entering the context creates their network.

        Args:
            folder: Empty folder for volumes, logs and small files.
            document: Compose file with resolved merges and variables.
            images: Images by their names in the file.
            on_machine: Use the network of this machine for every container, because servers of
                the test listen on its loopback.
        """
        self.folder = folder
        self.on_machine = on_machine
        self.services: Mapping[str, Mapping[str, Any]] = {
            name: service
            for name, service in document["services"].items()
            if service["image"] in images
        }
        self._images = images
        [subnet] = document["networks"]["fleet"]["ipam"]["config"]
        addresses = list(ip_network(subnet["subnet"]).hosts())
        self.gateway = str(addresses[0])
        self._prefix = ip_network(subnet["subnet"]).prefixlen
        bridged = [name for name, service in self.services.items() if "networks" in service]
        self.addresses = {
            name: str(address) for name, address in zip(bridged, addresses[1:], strict=False)
        }
        self._containers: list[Container] = []

    def __enter__(self) -> Self:
        spaces = [] if self.on_machine else ["--net"]
        script = "echo ready; exec sleep infinity"
        if not self.on_machine:
            script = f"""
            ip link set lo up
            ip link add fleet type bridge
            ip address add {self.gateway}/{self._prefix} dev fleet
            ip link set fleet up
            {script}"""
        self._host = subprocess.Popen(
            [*MORTAL, "unshare", *spaces, "sh", "-euc", script], stdout=subprocess.PIPE
        )
        assert self._host.stdout is not None
        assert self._host.stdout.readline() == b"ready\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for container in self._containers:
            container.kill()
        self._host.kill()
        self._host.wait(STOP_TIMEOUT_S)
        if self._host.stdout is not None:
            self._host.stdout.close()

    def in_host(self, *argv: str) -> list[str]:
        """Return a command of this machine that runs in the network of the containers' host."""
        return ["nsenter", f"--net=/proc/{self._host.pid}/ns/net", *argv]

    def start(self, name: str) -> "Container":
        """Start a service as defined in the compose file."""
        container = self._container(name, None, {})
        container.wait_until_started()
        return container

    def run(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a command in a new container of a service instead of the service's own command.

        Args:
            name: Service.
            command: Arguments of the image's entrypoint.
            environment: Variables that override those of the service.

        Returns:
            Exit code and output of the command.
        """
        container = self._container(name, command, environment or {})
        return container.wait(), container.tail()

    def _container(
        self, name: str, command: Sequence[str] | None, environment: Mapping[str, str]
    ) -> "Container":
        service = self.services[name]
        unknown = service.keys() - APPLIED - NOT_APPLIED
        assert not unknown, f"{name}: unsupported keys: {sorted(unknown)}"
        image = self._images[service["image"]]
        given = service.get("command", image.command) if command is None else command
        variables = {
            **image.environment,
            **_env_file(service.get("env_file")),
            **service.get("environment", {}),
            **environment,
        }
        number = len(self._containers)
        container = Container(self, name, number, image, variables, [*image.entrypoint, *given])
        self._containers.append(container)
        container.start()
        return container

    def connect(self, name: str, number: int, pid: int) -> None:
        """Assign the address of a service to the network namespace of a process."""
        port, service = f"fleet{number}", self.services[name]
        _run(
            *self.in_host("ip", "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", str(pid)),
        )
        _run(*self.in_host("ip", "link", "set", port, "master", "fleet", "up"))
        settings = [f"{key}={value}" for key, value in service.get("sysctls", {}).items()]
        script = f"""
            ip link set lo up
            ip address add {self.addresses[name]}/{self._prefix} dev eth0
            ip link set eth0 up
            ip route add default via {self.gateway}
            {f"sysctl -q -w {shlex.join(settings)}" if settings else ""}"""
        _run("nsenter", f"--net=/proc/{pid}/ns/net", "sh", "-euc", script)


class Container:
    """Running service."""

    def __init__(
        self,
        compose: Compose,
        name: str,
        number: int,
        image: Image,
        environment: Mapping[str, str],
        argv: Sequence[str],
    ):
        self._compose = compose
        self._service = compose.services[name]
        self._name = name
        self._number = number
        self._image = image
        self._environment = dict(environment)
        self._argv = argv
        self.log = compose.folder / f"{number}-{name}.log"

    def start(self) -> None:
        """Start the process in its own namespaces."""
        local_network = not self._compose.on_machine and self._service.get("network_mode") != "host"
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL"]
        unshare = ["unshare", *spaces, *(["--net"] if local_network else [])]
        entered = unshare if local_network else self._compose.in_host(*unshare)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*MORTAL, *entered, "sh", "-euc", self._script()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        first = wait_for(f"{self._name}: its first process", lambda: _child(self._process.pid))
        if local_network:
            self._compose.connect(self._name, self._number, first)
        assert self._process.stdin is not None
        self._process.stdin.write(b"ready\n")
        self._process.stdin.close()
        self._first = first

    def wait_until_started(self) -> None:
        """Wait for the process of the service."""
        self.pid: int = wait_for(f"{self._name} has started", self._started)

    def _started(self) -> int:
        """Return the service's process id when it runs as the image's user, else 0."""
        assert self._process.poll() is None, f"{self._name} ended: {self.tail()}"
        # The first process should be root and wait, so that the service will end with it.
        child = _child(self._first)
        if not child:
            return 0
        try:
            status = Path(f"/proc/{child}/status").read_text()
        # The process was a command that prepared the container.
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return child if f"\nUid:\t{self._image.uid}\t" in status else 0

    def _script(self) -> str:
        service, root = self._service, self._image.root
        names = {**self._compose.addresses, **self._extra_hosts()}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        hostname = service.get("hostname", self._name)
        files = {"hosts": lines, "hostname": [hostname]}
        script = [
            f"root={shlex.quote(str(root))} devices={shlex.quote(' '.join(DEVICES))}",
            START,
            f"hostname {shlex.quote(hostname)}",
        ]
        for file, text in files.items():
            path = self._compose.folder / f"{self._number}-{file}"
            path.write_text("\n".join(text) + "\n")
            (root / "etc" / file).touch()
            script.append(f"mount --bind {shlex.quote(str(path))} {root}/etc/{file}")
        for place in _listed(service.get("tmpfs")):
            (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
            script.append(f"mount -t tmpfs -o nosuid,nodev,noexec,mode=1777 tmpfs {root}{place}")
        for volume in service.get("volumes", ()):
            source, place = volume.split(":")
            script.append(f"mount --bind {self._volume(source, place)} {root}{place}")
        assert service["read_only"]
        script.append('mount -o remount,bind,ro "$root" "$root"')
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        # If the machine is itself a container, it may not be able to raise limits. Agents can also
        # work without them.
        script += [f"prlimit --pid $$ {limit} 2>/dev/null || :" for limit in self._limits()]
        # It has to run in the background, because `exec` would clear the setting that ends this
        # process with the test.
        script.append(
            f"{shlex.join(['chroot', str(root), *self._become(), *self._argv])} & wait $!"
        )
        return "\n".join(script)

    def _volume(self, name: str, place: str) -> str:
        """Return the folder of a named volume.

        A new one gets the owner of the folder that it covers.
        """
        folder = self._compose.folder / f"volume-{name}"
        if not folder.exists():
            folder.mkdir()
            covered = (self._image.root / place.lstrip("/")).stat()
            os.chown(folder, covered.st_uid, covered.st_gid)
        return shlex.quote(str(folder))

    def _extra_hosts(self) -> Mapping[str, str]:
        hosts: Mapping[str, str] = self._service.get("extra_hosts", {})
        return hosts

    def _limits(self) -> list[str]:
        return [f"--{name}={value}" for name, value in self._service.get("ulimits", {}).items()]

    def _become(self, environment: Mapping[str, str] | None = None) -> list[str]:
        """Return a command prefix to use the unprivileged user, folder and environment of the
        image.
        """
        variables = {**self._environment, **(environment or {})}
        return [
            *("setpriv", f"--reuid={self._image.uid}", f"--regid={self._image.gid}"),
            *("--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
            *("env", "-i", f"--chdir={self._image.folder}"),
            *(f"{name}={value}" for name, value in variables.items()),
        ]

    def execute(
        self, *argv: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the container like ``docker compose exec``."""
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", *spaces, *self._become(environment), *argv],
            capture_output=True,
            text=True,
            timeout=EXEC_TIMEOUT_S,
            check=False,
        )

    def check_health(
        self, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the service's health check once. Exit code 0 means healthy."""
        kind, *argv = self._service["healthcheck"]["test"]
        if kind == "CMD-SHELL":
            argv = ["/bin/sh", "-c", *argv]
        return self.execute(*argv, environment=environment)

    def is_healthy(self) -> bool:
        """Return the result of one health check."""
        return self.check_health().returncode == 0

    def wait_until_healthy(self) -> None:
        """Wait until the health check succeeds."""
        wait_for(f"{self._name} is healthy", self.is_healthy, 120, pause_s=0.5)

    def stop(self) -> int:
        """Stop the service as an engine does, and return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self._process.wait(STOP_TIMEOUT_S)

    def wait(self, timeout_s: float = EXEC_TIMEOUT_S) -> int:
        """Wait until the service has ended, and return its exit code."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """Kill the container."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    def tail(self) -> str:
        """Return the end of the log."""
        return self.log.read_text(errors="replace")[-2000:]


def _env_file(path: str | None) -> Mapping[str, str]:
    lines = (ROOT / path).read_text("utf-8").splitlines() if path else []
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _listed(value: str | Sequence[str] | None) -> Sequence[str]:
    return [value] if isinstance(value, str) else value or []


def _child(pid: int) -> int:
    """Return the first child of a process, or 0."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0
    return int(children[0]) if children else 0


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(argv)}: {done.stderr}"
