"""One end of a VXLAN tunnel, a device that should never exist longer than its burst.

The name of the device is based on its VNI. Its alias has the id and the role of the agent. A
guardian process has a pipe to the agent. When the pipe is closed, it deletes the device. This works
no matter how the agent ends. If the agent has deleted the device, it will notify the guardian
first. The guardian is a small shell (1 MB) with its own session, and not a child of the agent. The
guardian might be killed as well. In this case the next agent with the same name and role will
delete the device. A host that lost power has no devices.
"""

import asyncio
import contextlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.agent.counters import NET_DEV, parse_net_dev
from broadside.exchange.engines.port import Unwritable, validate_argument
from broadside.exchange.messages import VXLAN_BYTES, Role, Tunnel
from broadside.exchange.programs import program_environment

IP_TIMEOUT_S: Final = 5.0
_PREFIX: Final = "bsx"
# This is higher than the VNI of any tunnel.
_TRIAL_VNI: Final = 16_000_001
# We use descriptor 3, because the input of a background job would be /dev/null. If there is a line,
# the device has been deleted. A device with the same name would then belong to another job.
_GUARD: Final = (
    'exec 3<&0; (trap "" HUP INT TERM; read -r gone <&3 || ip link delete "$0") >/dev/null 2>&1 &'
)


class TunnelFailed(Exception):
    """The device cannot be created. The message has the reason in a single line."""


def device_name(tunnel: Tunnel) -> str:
    """Return the name of the device, with up to 11 characters.

    A VNI has 24 bits, and the name of an interface is limited to 15 bytes.
    """
    return f"{_PREFIX}{tunnel.vni}"


def clash(one: Tunnel, other: Tunnel) -> bool:
    """Return True if two tunnels cannot be used on the same server agent at the same time.

    Args:
        one: First tunnel.
        other: Second tunnel.
    """
    return (
        one.vni == other.vni
        or one.inner_server_address == other.inner_server_address
        or not set(one.ports).isdisjoint(other.ports)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """Settings of one end of a tunnel.

    Attributes:
        local: Address of this host.
        remote: Address of the other host.
        inner: Address of this end inside the tunnel.
        nic: Interface to send from.
        mark: Alias of the device.
    """

    local: str
    remote: str
    inner: str
    nic: str
    mark: str


def device_commands(tunnel: Tunnel, settings: DeviceSettings, mtu: int) -> str:
    """Return the commands for ``ip -batch`` to create a device.

    The MTU is smaller than the one of the interface because of the outer headers.

    Args:
        tunnel: Tunnel to create.
        settings: Settings of this end.
        mtu: MTU of the interface in bytes.

    Raises:
        TunnelFailed: A value is not a plain argument. It could be used to add other commands.
    """
    name = device_name(tunnel)
    try:
        local, remote, inner, nic, mark = (
            validate_argument(getattr(settings, field), field)
            for field in ("local", "remote", "inner", "nic", "mark")
        )
    except Unwritable as error:
        raise TunnelFailed(str(error)) from error
    return "\n".join(
        (
            (
                f"link add {name} type vxlan id {tunnel.vni} local {local} remote {remote} "
                f"dstport {tunnel.port} dev {nic} ttl 64 tos inherit"
            ),
            f"link set {name} alias {mark}",
            f"address add {inner}/30 dev {name}",
            f"link set {name} mtu {mtu - VXLAN_BYTES} up",
            "",
        )
    )


@dataclass(slots=True, kw_only=True)
class TunnelEnd:
    """A device that is up. Always close it."""

    name: str
    _guard: subprocess.Popen[bytes]

    @classmethod
    async def open(cls, tunnel: Tunnel, settings: DeviceSettings) -> "TunnelEnd":
        """Start the guardian and create the device.

        Args:
            tunnel: Tunnel to create.
            settings: Settings of this end.

        Returns:
            The end of the tunnel with its device.

        Raises:
            TunnelFailed: The device cannot be created.
        """
        name = device_name(tunnel)
        mtu = await asyncio.to_thread(_mtu, settings.nic)
        commands = device_commands(tunnel, settings, mtu)
        devices = await asyncio.to_thread(_devices)
        # This device belongs to another job, so we should not delete it.
        if name in devices:
            raise TunnelFailed(f"{name}: the device already exists ({devices[name] or 'foreign'})")
        end = cls(name=name, _guard=await asyncio.to_thread(_guardian, name))
        making = asyncio.ensure_future(asyncio.to_thread(_ip, ["-batch", "-"], commands))
        try:
            await asyncio.shield(making)
        except BaseException:
            # Otherwise it would create the device after we have deleted it.
            await asyncio.wait({making})
            await end.close()
            raise
        return end

    @property
    def received_count(self) -> int:
        """Number of packets that were received through the tunnel so far."""
        try:
            counters = parse_net_dev(Path(NET_DEV).read_text(), self.name).get(self.name)
        except OSError:
            return 0
        return 0 if counters is None else counters.rx_packets_count

    async def close(self) -> None:
        """Delete the device and stop the guardian. If this fails, the guardian will delete it."""
        farewell = None
        with contextlib.suppress(TunnelFailed):
            await asyncio.to_thread(_ip, ["link", "delete", self.name])
            farewell = b"gone\n"
        # This also closes the pipe. The guardian itself might have been killed.
        self._guard.communicate(farewell)


def mark_of(agent_id: str, role: Role) -> str:
    """Return the alias for the devices of an agent.

    It has the role, because a client and a server on a host can have the same name.

    Args:
        agent_id: Name of the agent.
        role: Role of the agent.
    """
    return f"broadside:{agent_id}/{role}"


def sweep_tunnels(mark: str) -> None:
    """Delete the devices of a previous agent with this alias, if this is allowed.

    This call can block.
    """
    with contextlib.suppress(TunnelFailed):
        for name, borne in _devices().items():
            if borne == mark:
                with contextlib.suppress(TunnelFailed):
                    _ip(["link", "delete", name])


def can_tunnel() -> bool:
    """Return True if tunnels can be created on this host. This call can block.

    We create a device to test this, because it needs privileges, a kernel module and ``ip``.
    """
    # Multiple agents on a host might do this at the same time, so the name and the VNI are unique.
    trial, vni = f"bsxt{os.getpid()}", str(_TRIAL_VNI + os.getpid() % 700_000)
    try:
        _ip(["link", "add", trial, "type", "vxlan", "id", vni, "dstport", "4789"])
        _ip(["link", "delete", trial])
    except TunnelFailed:
        return False
    return True


def _devices() -> dict[str, str]:
    """Return the alias of each tunnel device on this host."""
    links = json.loads(_ip(["-json", "link", "show", "type", "vxlan"]) or "[]")
    return {
        link["ifname"]: link.get("ifalias", "")
        for link in links
        if link.get("ifname", "").startswith(_PREFIX)
    }


def _mtu(nic: str) -> int:
    (link,) = json.loads(_ip(["-json", "link", "show", "dev", nic]))
    return int(link["mtu"])


def _guardian(name: str) -> subprocess.Popen[bytes]:
    """Start a guardian that is not a child of the agent.

    It will not be killed together with the agent's children.
    """
    try:
        guard = subprocess.Popen(
            ["sh", "-c", _GUARD, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=program_environment(),
            start_new_session=True,
        )
        guard.wait(IP_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise TunnelFailed(f"no guardian for {name}: {error}") from error
    return guard


def _ip(arguments: list[str], commands: str | None = None) -> str:
    """Run ``ip`` and return its output, or raise :class:`TunnelFailed`."""
    try:
        done = subprocess.run(
            ["ip", *arguments],
            input=commands,
            env=program_environment(),
            capture_output=True,
            text=True,
            timeout=IP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise TunnelFailed(f"ip does not run: {error}") from error
    if done.returncode:
        error_lines = done.stderr.strip().splitlines()
        raise TunnelFailed(
            f"ip: {error_lines[0] if error_lines else f'exit code {done.returncode}'}"
        )
    return done.stdout
