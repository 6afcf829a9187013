"""Simulates a firewall that inspects traffic, with a process that uses real CPU time.

In a firewall's namespace, packets from either side are routed into a tun. The kernel then routes
the packets that come out of the other tun. The process between them (``delay.c`` without a delay)
reads every byte a given number of times. The kernel measures the CPU time that this takes.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

from broadside.lab.delay import IFF_TUN, start_between
from broadside.lab.errors import LabBroken
from broadside.lab.namespaces import inside, run_ip, write_sysctls
from broadside.lab.topology import TWIN_LETTERS, Lab, twin_namespaces

# Tun by the interface from which it gets its packets.
TUNS: Final = {"c0": "clients", "s0": "servers"}
_FIRST_TABLE: Final = 77


def inspector_argv(lab: Lab, letter: str) -> tuple[str, ...]:
    """Return the command for the process of a twin firewall, with a unique program path.

    Args:
        lab: Lab of the firewall.
        letter: Letter of the twin: ``a`` or ``b``.

    Returns:
        Program and arguments.
    """
    return (str(lab.path / f"inspector-{letter}"),)


def start_inspection(lab: Lab, times: Mapping[str, int]) -> None:
    """Start the inspection on the lab's two firewalls.

    Args:
        lab: The lab.
        times: Number of times to read each byte, by the letter of the firewall.

    Raises:
        LabBroken: A command failed.
        ToolMissing: There is no C compiler.
    """
    namespaces = dict(zip(TWIN_LETTERS, twin_namespaces(lab.spec.prefix), strict=True))
    for letter, times_count in times.items():
        (program,) = inspector_argv(lab, letter)
        with inside(namespaces[letter]):
            start_between(tuple(TUNS.values()), IFF_TUN, program, "0", str(times_count))
        for table, (side, tun) in enumerate(TUNS.items(), _FIRST_TABLE):
            run_ip(
                namespaces[letter],
                f"link set {tun} mtu {lab.spec.mtu} txqueuelen 1000 up",
                f"route add default dev {tun} table {table}",
            )
            # The rule might exist, if it was added by an earlier inspection.
            with contextlib.suppress(LabBroken):
                run_ip(namespaces[letter], f"rule add iif {side} lookup {table}")
        unchecked = {f"ipv4/conf/{name}/rp_filter": "0" for name in ("all", *TUNS.values())}
        write_sysctls(namespaces[letter], unchecked)
