"""Reservation of endpoints, so that an address and port belong to one live agent at a time.

The agent that first announced an endpoint owns it. Ownership ends when its heartbeats stop, or when
it restarts with other endpoints. The coordinator's own observation decides which agent was first,
because an agent writes its own start time. A second agent with the same endpoint does not get it.
Its heartbeat is stored without endpoints and with a problem that names both agents, so no plan uses
it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from broadside.exchange.messages import Presence, Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.records import FleetRecords

# An agent loses its endpoints after this time without a heartbeat.
SILENT_S: Final = 15.0
# Maximum age of stored heartbeats that are loaded at the start.
STORED_MAX: Final = timedelta(hours=1)
# An agent's address is removed after this time without a heartbeat.
REMOVE_S: Final = 600.0
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
        is_local: True if the agent connects from the announced address.
        received_s: Monotonic time of the heartbeat, in seconds.
        endpoints: Endpoints that the agent owns.
    """

    name: str
    address: str
    started_at: datetime
    boot_id: str | None
    is_local: bool
    received_s: float
    endpoints: set[_Endpoint] = field(default_factory=set)


class EndpointOwners:
    """Owners of all endpoints, stored in memory and loaded from the stored heartbeats."""

    def __init__(self, fleet: FleetRecords, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock_s = clock_s
        # By role and agent
        self._beats: dict[str, _Beat] = {}
        self._owners: dict[_Endpoint, str] = {}
        # First server that announced each address
        self._servers: dict[str, str] = {}
        self._is_loaded = False
        self._loading = asyncio.Lock()
        self._swept_s = clock_s()

    async def claim(self, presence: Presence, from_address: str = "") -> str | None:
        """Process a heartbeat.

        Args:
            presence: Heartbeat of the agent.
            from_address: Address that the agent connects from.

        Returns:
            Why the agent is rejected, with the names of both agents. None if the agent owns all
            its endpoints.
        """
        await self._load()
        return self._claim(presence, from_address)

    def _claim(self, presence: Presence, from_address: str) -> str | None:
        self._sweep()
        beat = self._beat_of(presence, is_local=from_address == presence.address)
        if presence.role is Role.SERVER:
            if (other := self._conflict(beat, presence)) is not None:
                self._remove(beat.name)
                return other
            for endpoint in _endpoints(presence):
                self._assign(endpoint, beat)
            self._servers[beat.address] = self._first_server(beat)
        self._beats[beat.name] = beat
        return None

    async def owner(self, address: str, port: int) -> str | None:
        """Return the live agent that owns an endpoint.

        Args:
            address: Address of the endpoint.
            port: TCP port of the endpoint.

        Returns:
            Name as ``role.id``. None if no live agent announces the endpoint.
        """
        await self._load()
        beat = self._live(self._owners.get((address, "tcp", port)))
        return None if beat is None else beat.name

    async def address_of(self, role: Role, agent_id: str) -> str | None:
        """Return the address in an agent's latest heartbeat.

        Args:
            role: Role of the agent.
            agent_id: Id of the agent. Ids are unique within a role only.

        Returns:
            The address. None if there is no heartbeat, or if a server on another host announced the
            same address.
        """
        await self._load()
        beat = self._beats.get(f"{role}.{agent_id}")
        if beat is None:
            return None
        server = self._live(self._servers.get(beat.address))
        if server is not None and _on_other_hosts(server, beat) and not beat.is_local:
            return None
        return beat.address

    def release(self, name: str) -> None:
        """Release the endpoints of an agent that stops."""
        self._remove(name)

    async def _load(self) -> None:
        """Load the stored heartbeats once, so that a restarted coordinator knows its fleet.

        Agents could not connect during the restart, so all heartbeats count as received now. The
        latest heartbeat of an endpoint wins, because the row of an agent that ended long ago can
        still exist.
        """
        if self._is_loaded:
            return
        async with self._loading:
            await self._load_once()

    async def _load_once(self) -> None:
        if self._is_loaded:
            return
        stored = await self._fleet.read_presences()
        self._is_loaded = True
        oldest_at = utc_now() - STORED_MAX
        for presence in sorted(stored, key=lambda presence: presence.beat_at, reverse=True):
            if presence.beat_at >= oldest_at and presence.problem is None:
                self._claim(presence, "")

    def _beat_of(self, presence: Presence, *, is_local: bool) -> _Beat:
        """Return the heartbeat with the endpoints that the same process already owns."""
        name = f"{presence.role}.{presence.agent_id}"
        beat = _Beat(
            name=name,
            address=presence.address,
            started_at=presence.started_at,
            boot_id=None if presence.clock is None else presence.clock.boot_id,
            is_local=is_local,
            received_s=self._clock_s(),
        )
        before = self._beats.get(name)
        if before is not None:
            if (before.address, before.started_at) == (beat.address, beat.started_at):
                beat.endpoints = before.endpoints
            else:
                self._remove(name)
        return beat

    def _conflict(self, beat: _Beat, presence: Presence) -> str | None:
        """Return the conflict with an endpoint of another agent, or None."""
        server = self._live(self._servers.get(beat.address))
        if server is not None and _on_other_hosts(server, beat) and not _loses_to(server, beat):
            return (
                f"announces the address {beat.address}, which {server.name} on another host "
                f"announced first; {_FIX}"
            )
        for endpoint in sorted(_endpoints(presence)):
            other = self._live(self._owners.get(endpoint))
            if other is not None and other.name != beat.name and not _loses_to(other, beat):
                address, protocol, port = endpoint
                return (
                    f"announces {address} port {port} ({protocol}), which {other.name} announced "
                    f"first; {_FIX}"
                )
        return None

    def _first_server(self, beat: _Beat) -> str:
        """Return the first live server that announced the heartbeat's address."""
        server = self._live(self._servers.get(beat.address))
        if server is None or (_on_other_hosts(server, beat) and _loses_to(server, beat)):
            return beat.name
        return server.name

    def _assign(self, endpoint: _Endpoint, beat: _Beat) -> None:
        before = self._beats.get(self._owners.get(endpoint, ""))
        if before is not None and before.name != beat.name:
            before.endpoints.discard(endpoint)
        self._owners[endpoint] = beat.name
        beat.endpoints.add(endpoint)

    def _live(self, name: str | None) -> _Beat | None:
        beat = self._beats.get(name or "")
        if beat is None or self._clock_s() - beat.received_s > SILENT_S:
            return None
        return beat

    def _remove(self, name: str) -> None:
        beat = self._beats.pop(name, None)
        if beat is None:
            return
        for endpoint in beat.endpoints:
            if self._owners.get(endpoint) == name:
                del self._owners[endpoint]
        if self._servers.get(beat.address) == name:
            del self._servers[beat.address]

    def _sweep(self) -> None:
        now_s = self._clock_s()
        if now_s - self._swept_s > SWEEP_S:
            self._swept_s = now_s
            oldest_s = now_s - REMOVE_S
            for name in [n for n, beat in self._beats.items() if beat.received_s < oldest_s]:
                self._remove(name)


_FIX: Final = (
    "give each agent its own address or ports (BROADSIDE_AGENT_ADDRESS, BROADSIDE_AGENT_PORTS)"
)


def _endpoints(presence: Presence) -> set[_Endpoint]:
    ports = {*presence.ports, *presence.busy_ports, *presence.canary_ports}.union(
        *(e.ports for e in presence.engines)
    )
    endpoints = {(presence.address, "tcp", port) for port in ports}
    if presence.echo_port is not None:
        endpoints.add((presence.address, "udp", presence.echo_port))
    return endpoints


def _on_other_hosts(one: _Beat, other: _Beat) -> bool:
    """Return True if two agents are known to run on different hosts."""
    return (
        one.name != other.name
        and one.boot_id is not None
        and other.boot_id is not None
        and one.boot_id != other.boot_id
    )


def _loses_to(holder: _Beat, claimant: _Beat) -> bool:
    """Return True if only the claimant connects from the announced address."""
    return claimant.is_local and not holder.is_local
