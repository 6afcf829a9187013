"""Replaces the lab with plain loopback on hosts where namespaces are not available.

Each host has its own address in 127.0.0.0/8, so agents and ports are distinct as in the lab.
Everything else is missing, as :attr:`~broadside.lab.topology.Lab.limits` states. Use
:func:`broadside.lab.network.down` to remove it, as for a lab.
"""

import contextlib
import dataclasses
import os
import pwd
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from broadside.exchange.messages import Role
from broadside.lab.child_processes import die_with_parent
from broadside.lab.clocks import POLLING, is_synced
from broadside.lab.errors import LabBroken, ToolMissing
from broadside.lab.lab_programs import find_tool
from broadside.lab.network import DEFAULT_PATH, lab_path
from broadside.lab.topology import Lab, LabHost, LabSpec, host_names

CLOCK_START_S: Final = 10.0

CLIENT_NETWORK: Final = IPv4Address("127.1.1.0")
SERVER_NETWORK: Final = IPv4Address("127.2.1.0")
LIMITS: Final = (
    "plain loopback: there is no firewall, so no device counter checks the fleet's bytes",
    "plain loopback: nothing is shaped; the rates are those of this machine's memory and CPU",
    "plain loopback: all agents have the same clock and network, so the run does not test these",
)


def up(spec: LabSpec, base_path: Path = DEFAULT_PATH) -> Lab:
    """Return a lab with its hosts on the loopback interface. Rates are not applied.

    Args:
        spec: Specification of the lab.
        base_path: Folder for the state.
    """
    path = lab_path(spec.prefix, base_path)
    path.mkdir(parents=True, exist_ok=True)

    def hosts(role: Role, network: IPv4Address) -> tuple[LabHost, ...]:
        return tuple(
            LabHost(
                name=name,
                role=role,
                namespace=None,
                address=str(network + index),
                nic="lo",
            )
            for index, name in enumerate(host_names(spec, role), 1)
        )

    return Lab(
        spec=spec,
        path=path,
        clients=hosts(Role.CLIENT, CLIENT_NETWORK),
        servers=hosts(Role.SERVER, SERVER_NETWORK),
        management_address="127.0.0.1",
        limits=LIMITS,
    )


@contextlib.contextmanager
def one_clock(lab: Lab) -> Iterator[Lab]:
    """Yield the lab with a single clock for all agents, so that their clocks agree by definition.

    If the kernel has no time source (as in most containers), every clock check would fail. Without
    chronyd the lab is not changed, and its agents use the kernel.
    """
    with contextlib.ExitStack() as stack:
        try:
            clock = stack.enter_context(steady_clock())
        except (ToolMissing, LabBroken):
            yield lab
            return
        yield dataclasses.replace(
            lab,
            clients=tuple(dataclasses.replace(host, chrony=clock) for host in lab.clients),
            servers=tuple(dataclasses.replace(host, chrony=clock) for host in lab.servers),
        )


@contextlib.contextmanager
def steady_clock() -> Iterator[str]:
    """Run two chronyd processes and yield the command socket of the synchronized one.

    The second one uses the first as its time source. Neither changes the clock. We cannot use just
    a single chronyd, because it would be free-running, and this will be rejected by an agent. Both
    end with the thread that started them.

    Raises:
        ToolMissing: chronyd or chronyc is not installed.
        LabBroken: A chronyd does not start or does not synchronize.
    """
    chronyd = find_tool("chronyd")
    # chronyd needs a private folder.
    with (
        tempfile.TemporaryDirectory(prefix="broadside-clock-") as folder,
        contextlib.ExitStack() as started,
    ):
        address, port = Path(folder) / "chronyd.sock", _free_port()
        server = ("local stratum 3", f"port {port}", "bindaddress 127.0.0.1", "allow 127.0.0.1")
        client = (f"server 127.0.0.1 port {port} {POLLING}", "port 0")
        for name, directives, socket_path in (("1", server, "/"), ("2", client, address)):
            process = subprocess.Popen(
                [
                    *(chronyd, "-d", "-x", "-U", "-u", pwd.getpwuid(os.getuid()).pw_name),
                    *(*directives, "cmdport 0", f"bindcmdaddress {socket_path}"),
                    f"pidfile {folder}/{name}.pid",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            started.callback(process.wait)
            started.callback(process.kill)
        end_s = time.monotonic() + CLOCK_START_S
        while not (address.exists() and is_synced(str(address))):
            if time.monotonic() > end_s:
                raise LabBroken("chronyd does not follow the clock of this machine")
            time.sleep(0.05)
        yield str(address)


def _free_port() -> int:
    """Return a free UDP port on the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
