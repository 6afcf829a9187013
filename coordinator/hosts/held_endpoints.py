"""Reservation of endpoints, so that an address and port belong to one live agent at a time.

The agent that first announced an endpoint owns it. Ownership ends when its heartbeats stop, or when
it restarts with other endpoints. The coordinator's own observation decides which agent was first,
because an agent writes its own start time. A second agent with the same endpoint is *held back*.
Its heartbeat is stored without endpoints and with a problem that names both agents, so no plan uses
it.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from broadside.exchange.messages import Presence, Role
from broadside.exchange.records import FleetRecords

# An agent loses its endpoints after this time without a heartbeat.
SILENT_S: Final = 15.0
# Maximum age of stored heartbeats that are loaded at the start.
STORED_MAX: Final = timedelta(hours=1)
# An agent's address is removed after this time without a heartbeat.
FORGET_S: Final = 600.0
# Time between two searches for such agents.
SWEEP_S: Final = 60.0

# Address, protocol, port
_Endpoint = tuple[str, str, int]


@dataclass(slots=True, kw_only=True)
class _Beat:
    """Latest heartbeat of one agent, and the endpoints that it owns.

    Attributes:
        name: Agent as ``role.id``.
        address: Announced address.
        started_at: Start time announced by the agent.
        boot_id: Boot id of the host, if known.
        is_there: True if the agent connects from the announced address.
        heard_s: Monotonic time of the heartbeat, in seconds.
        endpoints: Endpoints that the agent owns.
    """

    name: str
    address: str
    started_at: datetime
    boot_id: str | None
    is_there: bool
    heard_s: float
    endpoints: set[_Endpoint] = field(default_factory=set)


class HeldEndpoints:
    """Owners of all endpoints, stored in memory and loaded from the stored heartbeats."""

    def __init__(self, fleet: FleetRecords, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock_s = clock_s
        # By role and agent
        self._beats: dict[str, _Beat] = {}
        self._holders: dict[_Endpoint, str] = {}
        # First server that announced each address
        self._servers: dict[str, str] = {}
        self._is_filled = False
        self._filling = asyncio.Lock()
        self._swept_s = clock_s()

    async def hold(self, presence: Presence, from_address: str = "") -> str | None:
        """Process a heartbeat.

        Args:
            presence: Heartbeat of the agent.
            from_address: Address that the agent connects from.

        Returns:
            Why the agent is held back, with the names of both agents. None if the agent owns all
            its endpoints.
        """
        await self._fill()
        return self._hold(presence, from_address)

    def _hold(self, presence: Presence, from_address: str) -> str | None:
        self._sweep()
        beat = self._beat_of(presence, is_there=from_address == presence.address)
        if presence.role is Role.SERVER:
            if (other := self._rival(beat, presence)) is not None:
                self._forget(beat.name)
                return other
            for endpoint in _endpoints(presence):
                self._give(endpoint, beat)
            self._servers[beat.address] = self._first_server(beat)
        self._beats[beat.name] = beat
        return None

    async def holder(self, address: str, port: int) -> str | None:
        """Return the live agent (``role.id``) that owns an endpoint, or None.

        Args:
            address: Address of the endpoint.
            port: TCP port of the endpoint.
        """
        await self._fill()
        beat = self._live(self._holders.get((address, "tcp", port)))
        return None if beat is None else beat.name

    async def address_of(self, role: Role, agent_id: str) -> str | None:
        """Return the address in an agent's latest heartbeat.

        Returns:
            The address. None if there is no heartbeat, or if a server on another host announced the
            same address.
        """
        await self._fill()
        beat = self._beats.get(f"{role}.{agent_id}")
        if beat is None:
            return None
        server = self._live(self._servers.get(beat.address))
        if server is not None and _other_hosts(server, beat) and not beat.is_there:
            return None
        return beat.address

    def end(self, name: str) -> None:
        """Release the endpoints of an agent that stops."""
        self._forget(name)

    async def _fill(self) -> None:
        """Load the stored heartbeats once, so that a restarted coordinator knows its fleet.

        Agents could not connect during the restart, so all heartbeats count as received now. The
        latest heartbeat of an endpoint wins, because the row of an agent that ended long ago can
        still exist.
        """
        if self._is_filled:
            return
        async with self._filling:
            await self._fill_once()

    async def _fill_once(self) -> None:
        if self._is_filled:
            return
        stored = await self._fleet.read_presences()
        self._is_filled = True
        oldest_at = datetime.now(UTC) - STORED_MAX
        for presence in sorted(stored, key=lambda each: each.beat_at, reverse=True):
            if presence.beat_at >= oldest_at and presence.problem is None:
                self._hold(presence, "")

    def _beat_of(self, presence: Presence, *, is_there: bool) -> _Beat:
        """Return the heartbeat with the endpoints that the same process already owns."""
        name = f"{presence.role}.{presence.agent_id}"
        beat = _Beat(
            name=name,
            address=presence.address,
            started_at=presence.started_at,
            boot_id=None if presence.clock is None else presence.clock.boot_id,
            is_there=is_there,
            heard_s=self._clock_s(),
        )
        before = self._beats.get(name)
        if before is not None:
            if (before.address, before.started_at) == (beat.address, beat.started_at):
                beat.endpoints = before.endpoints
            else:
                self._forget(name)
        return beat

    def _rival(self, beat: _Beat, presence: Presence) -> str | None:
        """Return the conflict with an endpoint of another agent, or None."""
        server = self._live(self._servers.get(beat.address))
        if server is not None and _other_hosts(server, beat) and not _yields(server, beat):
            return (
                f"announces the address {beat.address}, which {server.name} on another host "
                f"announced first; {_FIX}"
            )
        for endpoint in sorted(_endpoints(presence)):
            other = self._live(self._holders.get(endpoint))
            if other is not None and other.name != beat.name and not _yields(other, beat):
                address, protocol, port = endpoint
                return (
                    f"announces {address} port {port} ({protocol}), which {other.name} announced "
                    f"first; {_FIX}"
                )
        return None

    def _first_server(self, beat: _Beat) -> str:
        """Return the first live server that announced the heartbeat's address."""
        server = self._live(self._servers.get(beat.address))
        if server is None or (_other_hosts(server, beat) and _yields(server, beat)):
            return beat.name
        return server.name

    def _give(self, endpoint: _Endpoint, beat: _Beat) -> None:
        before = self._beats.get(self._holders.get(endpoint, ""))
        if before is not None and before.name != beat.name:
            before.endpoints.discard(endpoint)
        self._holders[endpoint] = beat.name
        beat.endpoints.add(endpoint)

    def _live(self, name: str | None) -> _Beat | None:
        beat = self._beats.get(name or "")
        if beat is None or self._clock_s() - beat.heard_s > SILENT_S:
            return None
        return beat

    def _forget(self, name: str) -> None:
        beat = self._beats.pop(name, None)
        if beat is None:
            return
        for endpoint in beat.endpoints:
            if self._holders.get(endpoint) == name:
                del self._holders[endpoint]
        if self._servers.get(beat.address) == name:
            del self._servers[beat.address]

    def _sweep(self) -> None:
        now_s = self._clock_s()
        if now_s - self._swept_s > SWEEP_S:
            self._swept_s = now_s
            gone = [name for name, beat in self._beats.items() if now_s - beat.heard_s > FORGET_S]
            for name in gone:
                self._forget(name)


_FIX: Final = (
    "give each agent its own address or ports (BROADSIDE_AGENT_ADDRESS, BROADSIDE_AGENT_PORTS)"
)


def _endpoints(presence: Presence) -> set[_Endpoint]:
    return set(_each_endpoint(presence))


def _each_endpoint(presence: Presence) -> Iterator[_Endpoint]:
    ports = {*presence.ports, *presence.busy_ports}.union(*(e.ports for e in presence.engines))
    for port in ports:
        yield presence.address, "tcp", port
    if presence.echo_port is not None:
        yield presence.address, "udp", presence.echo_port


def _other_hosts(one: _Beat, other: _Beat) -> bool:
    """Return True if two agents are known to run on different hosts."""
    return (
        one.name != other.name
        and one.boot_id is not None
        and other.boot_id is not None
        and one.boot_id != other.boot_id
    )


def _yields(holder: _Beat, claimant: _Beat) -> bool:
    """Return True if only the claimant connects from the announced address."""
    return claimant.is_there and not holder.is_there
