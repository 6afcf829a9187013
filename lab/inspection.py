"""A firewall whose CPU does real work: a process through which all that it forwards goes.

In a firewall's namespace what comes in at either side is routed into a tun, and the kernel routes
on what comes out of the other one. The process between them (``delay.c``, without a delay) reads
every byte so many times; what of a core that takes is counted by the kernel and by nobody else.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

from broadside.lab.delay import IFF_TUN, start_between
from broadside.lab.errors import LabBroken
from broadside.lab.namespaces import inside, run_ip, write_sysctls
from broadside.lab.topology import TWIN_LETTERS, Lab, twin_namespaces

TUNS: Final = {"c0": "clients", "s0": "servers"}  # by the side whose packets go into it
_FIRST_TABLE: Final = 77


def inspector_argv(lab: Lab, letter: str) -> tuple[str, ...]:
    """How the process of one firewall is started; its first word is that firewall's own."""
    return (str(lab.path / f"inspector-{letter}"),)


def start_inspection(lab: Lab, times: Mapping[str, int]) -> None:
    """Let each of the lab's two firewalls read what it forwards so many times, by its letter.

    Raises :class:`broadside.lab.errors.LabBroken`, :class:`broadside.lab.errors.ToolMissing`
    without a C compiler."""
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
            with contextlib.suppress(LabBroken):  # the inspection before has laid it
                run_ip(namespaces[letter], f"rule add iif {side} lookup {table}")
        unchecked = {f"ipv4/conf/{name}/rp_filter": "0" for name in ("all", *TUNS.values())}
        write_sysctls(namespaces[letter], unchecked)
