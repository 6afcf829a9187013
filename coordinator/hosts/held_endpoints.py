"""Endpoints of server agents: an address and port belong to one live agent at a time.

The agent that announced an endpoint first holds it until its heartbeats end, or until it was
started anew and announces others. "First" is by the coordinator's own observation, because an agent
writes its own start time. A second agent that announces the endpoint is *held back*: its heartbeat
is stored without endpoints and with a problem that names both agents, so no plan uses it.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from broadside.exchange.messages import Presence, Role
from broadside.exchange.records import FleetRecords

SILENT_S: Final = 15.0  # s after its last heartbeat at which an agent holds nothing any more
STORED_MAX: Final = timedelta(hours=1)  # age of a stored heartbeat that is taken in at the start
FORGET_S: Final = 600.0  # s after its last heartbeat at which an agent's address is forgotten
SWEEP_S: Final = 60.0  # s between looks for such agents

_Endpoint = tuple[str, str, int]  # address, protocol, port


@dataclass(slots=True, kw_only=True)
class _Beat:
    """The newest heartbeat of one agent, and the endpoints that it holds."""

    name: str
    address: str
    started_at: datetime
    boot_id: str | None
    is_there: bool  # it reaches the coordinator from the address that it announces
    heard_s: float  # monotonic
    endpoints: set[_Endpoint] = field(default_factory=set)


class HeldEndpoints:
    """The holders of all endpoints; kept in memory, and filled from the stored heartbeats."""

    def __init__(self, fleet: FleetRecords, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock_s = clock_s
        self._beats: dict[str, _Beat] = {}  # by role and agent
        self._holders: dict[_Endpoint, str] = {}
        self._servers: dict[str, str] = {}  # the server that announced an address first
        self._is_filled = False
        self._filling = asyncio.Lock()
        self._swept_s = clock_s()

    async def hold(self, presence: Presence, from_address: str = "") -> str | None:
        """Take in a heartbeat.

        Args:
            presence: The heartbeat.
            from_address: The address that its connection comes from.

        Returns:
            Why it is held back, with the names of both agents; None: its endpoints are its own.
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
        """Return the live agent (``role.id``) that holds an endpoint; None: nobody does."""
        await self._fill()
        beat = self._live(self._holders.get((address, "tcp", port)))
        return None if beat is None else beat.name

    async def address_of(self, role: Role, agent_id: str) -> str | None:
        """Return the address of an agent's newest heartbeat.

        None: there is none, or a server on another host announced that address.
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
        """Give back what an agent holds: it said goodbye."""
        self._forget(name)

    async def _fill(self) -> None:
        """Take in the stored heartbeats once, so that a coordinator that restarts knows its fleet.

        Agents could not reach it meanwhile: each counts as heard now. The newest heartbeat of an
        endpoint wins, because the row of an agent that ended long ago may still stand.
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
        """Return the heartbeat with what the same process held before."""
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
        """Return why another agent's endpoints stand against a heartbeat; None: nothing does."""
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
        """Return the server that holds the heartbeat's address: the first, while it lives."""
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
    """Return whether two agents are known to run on different hosts."""
    return (
        one.name != other.name
        and one.boot_id is not None
        and other.boot_id is not None
        and one.boot_id != other.boot_id
    )


def _yields(holder: _Beat, claimant: _Beat) -> bool:
    """Return whether a claimant has proof that a holder lacks: it connects from the address."""
    return claimant.is_there and not holder.is_there
