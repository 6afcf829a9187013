"""One end of a VXLAN tunnel: a device that lives as long as its burst, and never longer.

The device is named after its VNI and marked with the agent's id and role. A guardian holds a pipe
to the agent and deletes the device when that closes, however the agent ends, unless it was told
that the device is gone: it is a shell of a megabyte in a session of its own, and no child of the
agent's once it runs. What it could not do (a host that lost power has no devices; a guardian may be
killed too) the next agent of that name and role does.
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
from broadside.exchange.engines.port import Unwritable, word
from broadside.exchange.messages import VXLAN_BYTES, Role, Tunnel
from broadside.exchange.programs import program_environment

IP_TIMEOUT_S: Final = 5.0
_PREFIX: Final = "bsx"
_TRIAL_VNI: Final = 16_000_001  # beyond every tunnel's
# A background job's input would be /dev/null, hence descriptor 3. A line says that the device is
# gone: one that bears its name by then is another's.
_GUARD: Final = (
    'exec 3<&0; (trap "" HUP INT TERM; read -r gone <&3 || ip link delete "$0") >/dev/null 2>&1 &'
)


class TunnelFailed(Exception):
    """The kernel would not have the device; says why, in one line."""


def device_name(tunnel: Tunnel) -> str:
    """At most 11 characters: a VNI has 24 bits, and an interface's name 15 bytes."""
    return f"{_PREFIX}{tunnel.vni}"


def clash(one: Tunnel, other: Tunnel) -> bool:
    """Whether two tunnels cannot end at one server's agent at once."""
    return (
        one.vni == other.vni
        or one.inner_server_address == other.inner_server_address
        or not set(one.ports).isdisjoint(other.ports)
    )


def device_commands(
    tunnel: Tunnel, *, local: str, remote: str, inner: str, nic: str, mtu: int, mark: str
) -> str:
    """What ``ip -batch`` is to do; the inner packets are by the outer headers smaller.

    Raises :class:`TunnelFailed` for what is no plain word: the batch has a language of its own.
    """
    name = device_name(tunnel)
    try:
        local, remote, inner, nic, mark = (
            word(value, field)
            for field, value in (
                ("local", local),
                ("remote", remote),
                ("inner", inner),
                ("nic", nic),
                ("mark", mark),
            )
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
    """A device that is up. Close it."""

    name: str
    _guard: subprocess.Popen[bytes]

    @classmethod
    async def open(
        cls, tunnel: Tunnel, *, local: str, remote: str, inner: str, nic: str, mark: str
    ) -> "TunnelEnd":
        """Make the device, its guardian first. Raises :class:`TunnelFailed`."""
        name = device_name(tunnel)
        mtu = await asyncio.to_thread(_mtu, nic)
        commands = device_commands(
            tunnel, local=local, remote=remote, inner=inner, nic=nic, mtu=mtu, mark=mark
        )
        found = await asyncio.to_thread(_devices)
        if name in found:  # not ours to guard, nor to delete
            raise TunnelFailed(f"{name}: there is one already ({found[name] or 'foreign'})")
        end = cls(name=name, _guard=await asyncio.to_thread(_guardian, name))
        making = asyncio.ensure_future(asyncio.to_thread(_ip, ["-batch", "-"], commands))
        try:
            await asyncio.shield(making)
        except BaseException:
            await asyncio.wait({making})  # else it would make the device after we deleted it
            await end.close()
            raise
        return end

    @property
    def received_count(self) -> int:
        """Packets that came out of the tunnel so far."""
        try:
            own = parse_net_dev(Path(NET_DEV).read_text(), self.name).get(self.name)
        except OSError:
            return 0
        return 0 if own is None else own.rx_packets_count

    async def close(self) -> None:
        """Delete the device, and let the guardian go; what fails here is left to it."""
        word = None
        with contextlib.suppress(TunnelFailed):
            await asyncio.to_thread(_ip, ["link", "delete", self.name])
            word = b"gone\n"
        self._guard.communicate(word)  # and closes the pipe; it may be dead itself


def mark_of(agent_id: str, role: Role) -> str:
    """The mark of an agent's devices: a client and a server on one host may share its name."""
    return f"broadside:{agent_id}/{role}"


def sweep_tunnels(mark: str) -> None:
    """Delete what an earlier agent of this mark left, as far as that is allowed (blocking)."""
    with contextlib.suppress(TunnelFailed):
        for name, borne in _devices().items():
            if borne == mark:
                with contextlib.suppress(TunnelFailed):
                    _ip(["link", "delete", name])


def can_tunnel() -> bool:
    """Whether tunnels can be made here (blocking).

    Tried, not guessed: rights, the kernel's module and ``ip`` itself all have to be there.
    """
    # Agents of one host may try at once, hence a name and a VNI of its own for each.
    trial, vni = f"bsxt{os.getpid()}", str(_TRIAL_VNI + os.getpid() % 700_000)
    try:
        _ip(["link", "add", trial, "type", "vxlan", "id", vni, "dstport", "4789"])
        _ip(["link", "delete", trial])
    except TunnelFailed:
        return False
    return True


def _devices() -> dict[str, str]:
    """Our kind of devices here, and their marks."""
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
    """Started, and orphaned at once: a kill of the agent's children does not reach it."""
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
    """Raises :class:`TunnelFailed`."""
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
        said = done.stderr.strip().splitlines()
        raise TunnelFailed(f"ip: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout
