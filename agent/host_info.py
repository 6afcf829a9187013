"""Hardware and kernel settings of this host that can limit the throughput of its NIC.

They are collected while no test is running. Driver data is requested by ioctl
(``linux/ethtool.h``). It does not need a program and works in the network namespace of the agent.
All other data is in ``/proc`` and ``/sys``. Values that are not available are unknown.
"""

import array
import contextlib
import fcntl
import platform
import re
import resource
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broadside.agent.interfaces import addresses_count
from broadside.exchange.messages import HostInfo

SIOCETHTOOL: Final = 0x8946
GET_DRIVER, GET_RINGS, GET_CHANNELS = 0x03, 0x10, 0x3C
# Name used by ethtool, and the command to get the value.
OFFLOADS: Final = {
    "rx-checksumming": 0x14,
    "tx-checksumming": 0x16,
    "scatter-gather": 0x18,
    "tcp-segmentation-offload": 0x1E,
    "generic-segmentation-offload": 0x23,
    "generic-receive-offload": 0x2B,
}
GET_FLAGS: Final = 0x25
FLAGS: Final = {"large-receive-offload": 1 << 15, "receive-hashing": 1 << 28}
SYSCTLS: Final = (
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/default_qdisc",
    "net/core/netdev_max_backlog",
    "net/core/netdev_budget",
    "net/core/busy_poll",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_notsent_lowat",
    "net/ipv4/tcp_mtu_probing",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_sack",
    "net/ipv4/tcp_window_scaling",
    "net/ipv4/tcp_slow_start_after_idle",
    "net/ipv4/ip_local_port_range",
    "net/core/somaxconn",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_syncookies",
)
# Read only if the host tracks connections. The module can be loaded without that.
TRACKED_COUNT: Final = Path("/proc/sys/net/netfilter/nf_conntrack_count")
TRACKED_MAX: Final = "net/netfilter/nf_conntrack_max"
CPU_FLAGS: Final = frozenset(
    {"aes", "avx", "avx2", "avx512f", "pclmulqdq", "sha_ni", "vaes", "constant_tsc", "hypervisor"}
    # Flags for Arm.
    | {"pmull", "sha2", "asimd", "sve"}
)
# Azure's virtual functions.
ACCELERATED: Final = frozenset({"mlx4_en", "mlx5_core", "mana"})
READ_MAX_BYTES: Final = 1 << 16


def read_passport(nic: str | None, address: str) -> HostInfo:
    """Return all data that is available for this host.

    This takes some milliseconds and will block. The engine's build is added later.

    Args:
        nic: Name of the interface, or None if it is not known.
        address: Address of the agent.
    """
    driver = {} if nic is None else _driver(nic)
    counts = {} if nic is None else _counts(nic)
    cpu = _cpu(_read(Path("/proc/cpuinfo")))
    device = Path("/sys/class/net") / (nic or "none") / "device"
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostInfo(
        nic_driver=driver.get("driver"),
        nic_driver_version=driver.get("version"),
        nic_firmware=driver.get("firmware"),
        nic_megabits_per_second=_integer(_read(device.parent / "speed")),
        rx_ring_count=counts.get("rx_ring"),
        tx_ring_count=counts.get("tx_ring"),
        rx_queues_count=counts.get("rx_queues"),
        tx_queues_count=counts.get("tx_queues"),
        offloads={} if nic is None else _offloads(nic),
        numa_node=_integer(_read(device / "numa_node")),
        accelerated_networking=_accelerated(device.parent, driver.get("driver")),
        sysctls=_sysctls(),
        kernel_build=platform.version() or None,
        cpu_model=cpu.get("model"),
        cpu_flags=tuple(sorted(CPU_FLAGS & set(cpu.get("flags", "").split()))),
        hypervisor=_hypervisor(),
        files_max_count=None if files_max == resource.RLIM_INFINITY else files_max,
        nic_addresses_count=None if nic is None else addresses_count(nic, address),
    )


def _ask(nic: str, request: bytearray) -> bytes | None:
    """Return the driver's response to an ethtool command, or None if there is none."""
    buffer = array.array("B", request)
    name = nic.encode()[:15].ljust(16, b"\0")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            argument = struct.pack("16sP", name, buffer.buffer_info()[0])
            fcntl.ioctl(any_socket.fileno(), SIOCETHTOOL, argument)
    except OSError:
        return None
    return buffer.tobytes()


def _value(nic: str, command: int) -> int | None:
    """Return the value in ``struct ethtool_value`` for a command, or None."""
    answer = _ask(nic, bytearray(struct.pack("II", command, 0)))
    return None if answer is None else int(struct.unpack("II", answer)[1])


def _driver(nic: str) -> Mapping[str, str]:
    """Return driver, version and firmware from ``struct ethtool_drvinfo``."""
    answer = _ask(nic, bytearray(struct.pack("I", GET_DRIVER)).ljust(196, b"\0"))
    if answer is None:
        return {}
    fields = struct.unpack_from("32s32s32s", answer, 4)
    texts = (field.split(b"\0")[0].decode(errors="replace").strip() for field in fields)
    named = zip(("driver", "version", "firmware"), texts, strict=True)
    return {name: text for name, text in named if text and text != "N/A"}


def _counts(nic: str) -> Mapping[str, int]:
    """Return the current values in ``struct ethtool_ringparam`` and ``struct ethtool_channels``."""
    values_by_name: dict[str, int] = {}
    if (rings := _ask(nic, bytearray(struct.pack("I8I", GET_RINGS, *[0] * 8)))) is not None:
        values = struct.unpack("9I", rings)
        values_by_name |= {"rx_ring": values[5], "tx_ring": values[8]}
    channels = _ask(nic, bytearray(struct.pack("I8I", GET_CHANNELS, *[0] * 8)))
    if channels is not None:
        _, _, _, _, _, rx, tx, _, combined = struct.unpack("9I", channels)
        values_by_name |= {"rx_queues": rx + combined, "tx_queues": tx + combined}
    return values_by_name


def _offloads(nic: str) -> Mapping[str, bool]:
    readings = {name: _value(nic, command) for name, command in OFFLOADS.items()}
    values_by_name = {name: bool(value) for name, value in readings.items() if value is not None}
    flags = _value(nic, GET_FLAGS)
    if flags is not None:
        values_by_name |= {name: bool(flags & bit) for name, bit in FLAGS.items()}
    return values_by_name


def _accelerated(nic: Path, driver: str | None) -> bool | None:
    """Return True if a synthetic Azure NIC has a virtual function, or None on other hosts."""
    if driver in ACCELERATED:
        return True
    if driver != "hv_netvsc":
        return None
    return any(nic.glob("lower_*"))


def _sysctls() -> Mapping[str, str]:
    names = (*SYSCTLS, TRACKED_MAX) if _integer(_read(TRACKED_COUNT)) else SYSCTLS
    readings = {name.replace("/", "."): _read(Path("/proc/sys") / name) for name in names}
    return {name: " ".join(text.split()) for name, text in readings.items() if text is not None}


def _cpu(cpuinfo: str | None) -> Mapping[str, str]:
    """Return model and flags of the first core.

    For Arm, implementer and part are used as the model.
    """
    fields = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", (cpuinfo or "").split("\n\n")[0], re.M))
    model = fields.get("model name") or " ".join(
        fields[name] for name in ("CPU implementer", "CPU part") if name in fields
    )
    flags = fields.get("flags") or fields.get("Features") or ""
    return {"flags": flags, **({"model": model} if model else {})}


def _hypervisor() -> str | None:
    dmi_fields = [
        _read(path)
        for path in (
            Path("/sys/hypervisor/type"),
            Path("/sys/class/dmi/id/sys_vendor"),
            Path("/sys/class/dmi/id/product_name"),
        )
    ]
    return " ".join(text for text in dmi_fields if text) or None


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        return file.read(READ_MAX_BYTES).decode(errors="replace").strip() or None
    return None


def _integer(text: str | None) -> int | None:
    """Return a number, or None if it is unknown. Drivers use -1 for unknown."""
    return int(text) if text is not None and text.isdigit() else None
