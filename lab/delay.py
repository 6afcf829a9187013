"""Adds a delay to the path with ``delay.c`` between two taps, for kernels without netem.

The switch on the server side is split into two. The firewall's port stays on ``br0`` and the
servers' ports move to ``br1``. The only connection between them is a tap on each bridge, joined by
the delay process. Nothing else in the lab changes, so its byte counter, addresses and shapers
stay the same. When the process ends, the taps will be removed with it.
:mod:`broadside.lab.profiles` then moves the ports back.
"""

import errno
import fcntl
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broadside.exchange.messages import Role
from broadside.lab import topology
from broadside.lab.errors import LabBroken
from broadside.lab.lab_programs import find_tool
from broadside.lab.namespaces import detach, inside, run, run_ip
from broadside.lab.topology import Lab

SOURCE: Final = Path(__file__).with_name("delay.c")
# The first is on br0 (the firewall's side), the second on br1.
TAPS: Final = ("delay0", "delay1")
# linux/if_tun.h
TUNSETIFF: Final = 0x400454CA
IFF_TUN: Final = 0x0001
IFF_TAP: Final = 0x0002
IFF_NO_PI: Final = 0x1000
# If a process was killed, it will take a moment until its files are closed.
FREE_WITHIN_S: Final = 5.0


def delay_argv(lab: Lab) -> tuple[str, ...]:
    """Return the command for the process, without descriptors.

    The program path is unique to the lab.
    """
    return (str(lab.path / "delay"),)


def start_delay(lab: Lab, delay_s: float) -> None:
    """Add a delay in each direction between the firewall and the servers.

    Args:
        lab: The lab.
        delay_s: Delay in seconds for each direction.

    Raises:
        LabBroken: A command failed.
        ToolMissing: There is no C compiler.
    """
    switch = topology.switch_namespace(lab.spec.prefix, Role.SERVER)
    # We need to use this namespace, so that `lab down` can find the process.
    with inside(switch):
        start_between(TAPS, IFF_TAP, *delay_argv(lab), str(round(delay_s * 1e6)))
    servers = [port for port in topology.switch_ports(lab.spec)[switch] if port != "fw"]
    _make_bridge(switch, lab.spec.mtu)
    run_ip(
        switch,
        f"link set dev {TAPS[0]} mtu {lab.spec.mtu} master br0 up",
        f"link set dev {TAPS[1]} mtu {lab.spec.mtu} master br1 up",
        *(f"link set dev {port} master br1" for port in servers),
    )


def start_between(names: Sequence[str], kind: int, program: str, *words: str) -> None:
    """Start the process between two taps or tuns in the namespace of this thread.

    The program will be compiled first when it is missing or outdated.

    Args:
        names: Names for the two interfaces.
        kind: ``IFF_TAP`` or ``IFF_TUN``.
        program: Path to the binary in the lab's folder.
        *words: More arguments to pass to the program.
    """
    binary = Path(program)
    if not binary.exists() or binary.stat().st_mtime < SOURCE.stat().st_mtime:
        new = binary.with_suffix(".new")
        run([find_tool("cc"), "-O2", "-Wall", "-o", str(new), str(SOURCE)])
        new.replace(binary)
    ends = [open_tap(name, kind) for name in names]
    try:
        detach([program, *map(str, ends), *words], pass_fds=ends)
    finally:
        for end in ends:
            os.close(end)


def _make_bridge(switch: str, mtu: int) -> None:
    try:
        run_ip(switch, f"link add br1 mtu {mtu} type bridge mcast_snooping 0")
    except LabBroken as error:
        if "File exists" not in str(error):
            raise
    run_ip(switch, "link set br1 up")


def open_tap(name: str, kind: int) -> int:
    """Open a tap or tun in the namespace of this thread. It exists until it is closed.

    Args:
        name: Name for the interface.
        kind: ``IFF_TAP`` or ``IFF_TUN``.

    Returns:
        File descriptor of the interface.

    Raises:
        LabBroken: The interface cannot be created.
    """
    try:
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        raise LabBroken(f"/dev/net/tun: {error.strerror}; load the kernel's tun module") from error
    try:
        request = struct.pack("16sH22x", name.encode(), kind | IFF_NO_PI)
        end_s = time.monotonic() + FREE_WITHIN_S
        while True:
            try:
                fcntl.ioctl(tap, TUNSETIFF, request)
                break
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > end_s:
                    raise
            time.sleep(0.02)
    except OSError as error:
        os.close(tap)
        raise LabBroken(f"tap {name}: {error.strerror}") from error
    os.set_inheritable(tap, True)
    return tap
