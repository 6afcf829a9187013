"""The lab's stand-in where no namespaces are to be had: every agent on this machine's loopback.

Hosts have addresses of their own in 127.0.0.0/8, so agents and ports are told apart as in the
lab; all else is missing, and :attr:`~lab.topology.Lab.limits` says so. It is taken down by
:func:`lab.network.down`, like a lab.
"""

from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from exchange.messages import Role
from lab.network import DEFAULT_PATH, lab_path
from lab.topology import Host, Lab, LabSpec, host_names

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
