"""The lab's stand-in where no namespaces are to be had: every agent on this machine's loopback.

Hosts have addresses of their own in 127.0.0.0/8, so agents and ports are told apart as in the
lab; all else is missing, and :attr:`~broadside.lab.topology.Lab.limits` says so. It is taken down
by :func:`broadside.lab.network.down`, like a lab.
"""

import contextlib
import dataclasses
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from broadside.exchange.messages import Role
from broadside.lab.errors import LabBroken, ToolMissing
from broadside.lab.lab_programs import find_tool
from broadside.lab.network import DEFAULT_PATH, lab_path
from broadside.lab.offspring import die_with_parent
from broadside.lab.topology import Host, Lab, LabSpec, host_names

CLOCK_START_S: Final = 10.0  # s

CLIENT_NETWORK: Final = IPv4Address("127.1.1.0")
SERVER_NETWORK: Final = IPv4Address("127.2.1.0")
LIMITS: Final = (
    "plain loopback: there is no firewall, so no device ledger to hold the fleet's bytes against",
    "plain loopback: nothing is shaped; the rates are those of this machine's memory and CPU",
    "plain loopback: one clock and one network serve all agents; so these tell nothing",
)


def up(spec: LabSpec, base_path: Path = DEFAULT_PATH) -> Lab:
    """Hosts of a lab of this size, on the loopback; its rates are not applied."""
    path = lab_path(spec.prefix, base_path)
    path.mkdir(parents=True, exist_ok=True)

    def hosts(role: Role, network: IPv4Address) -> tuple[Host, ...]:
        return tuple(
            Host(
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
    """The lab with a clock that all its agents share, so among them it is right by definition.

    A machine whose kernel knows no time source (most containers) would otherwise fail every clock
    gate. Without chronyd the lab is yielded as it is: its agents then ask the kernel.
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
    """A chronyd that calls this machine's clock the truth, and never touches it; its socket.

    It dies with the thread that started it. Raises ``ToolMissing``, ``LabBroken``.
    """
    chronyd = find_tool("chronyd")
    user = pwd.getpwuid(os.getuid()).pw_name
    # Private, as chronyd demands.
    with tempfile.TemporaryDirectory(prefix="broadside-clock-") as folder:
        address = Path(folder) / "chronyd.sock"
        directives = [
            *("local stratum 3", "port 0", "cmdport 0"),
            *(f"bindcmdaddress {address}", f"pidfile {folder}/pid"),
        ]
        process = subprocess.Popen(
            [chronyd, "-d", "-x", "-U", "-u", user, *directives],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            end_s = time.monotonic() + CLOCK_START_S
            while not address.exists():
                if process.poll() is not None or time.monotonic() > end_s:
                    raise LabBroken("chronyd does not start: it made no command socket")
                time.sleep(0.02)
            yield str(address)
        finally:
            process.kill()
            process.wait()
