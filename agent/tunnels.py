"""Tunnel ends on a server agent, created on request of a client's agent.

The row of a job has its request and is updated every two seconds. A client is treated as dead if
its row is not updated for :data:`SILENT_S` and if no packets are received through the tunnel. Only
the time between successful requests to the table is counted. So a tunnel with traffic is not closed
if the table is not available, or not available to the client only.

A tunnel that conflicts with an open one has to wait. The client of the next burst might send its
request before this burst has ended.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from broadside.agent.agent_context import Tools
from broadside.agent.tunnel import DeviceSettings, TunnelEnd, TunnelFailed, clash, mark_of
from broadside.exchange.messages import Tunnel
from broadside.exchange.ports import ExchangeError

POLL_S: Final = 1.0
SILENT_S: Final = 8.0
# Maximum number of tunnels at the same time.
TUNNELS_MAX_COUNT: Final = 64
READ_TIMEOUT_S: Final = 5.0
# Number of jobs to remember after their end, because a row might be written late.
OVER_COUNT: Final = 1000

Bind = Callable[[Sequence[int], str | None], None]

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RequestedTunnel:
    """Request of a job and its state.

    Attributes:
        tunnel: Latest row of the request.
        alive: True if the row was created or updated while this agent was running.
        over: True if the tunnel was closed or cannot be created.
        end: End of the tunnel while it is open, or None.
        received_count: Number of packets received through the tunnel in the last check.
        silent_s: Seconds of successful requests to the table without an update or a packet.
    """

    tunnel: Tunnel
    alive: bool
    over: bool = False
    end: TunnelEnd | None = None
    received_count: int = 0
    silent_s: float = 0.0

    def hear(self, row: Tunnel, passed_s: float) -> float:
        """Update the request with its current row.

        Args:
            row: Current row.
            passed_s: Seconds since the last successful request to the table.

        Returns:
            Seconds for which there was no sign of the client.
        """
        received_count = self.end.received_count if self.end is not None else 0
        self.silent_s += passed_s
        if row.beat != self.tunnel.beat:
            self.tunnel, self.alive, self.silent_s = row, True, 0.0
        if received_count > self.received_count:
            self.silent_s = 0.0
        self.received_count = received_count
        return self.silent_s


@dataclass(slots=True, kw_only=True)
class TunnelKeeper:
    """Creates and deletes the tunnel ends of a server agent.

    Attributes:
        tools: Dependencies of the agent.
        bind: Callback to make servers listen on an inner address, or on the default with None.
    """

    tools: Tools
    bind: Bind
    # Requests by job.
    _requested: dict[str, RequestedTunnel] = field(default_factory=dict)
    # Jobs that have ended.
    _over: deque[str] = field(default_factory=lambda: deque(maxlen=OVER_COUNT))
    # True after the first check. Older requests might belong to a client that has died.
    _looked: bool = False
    # Monotonic time of the last successful request to the table.
    _read_at_s: float = 0.0

    async def run_forever(self) -> None:
        """Check for requests until cancelled, and delete all devices after that."""
        try:
            while True:
                await self.poll()
                await asyncio.sleep(POLL_S)
        finally:
            for requested in self._requested.values():
                await self._close(requested)

    async def poll(self) -> None:
        """Create tunnels for new requests, and delete tunnels that are no longer needed."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                rows = await self.tools.records.fleet.read_tunnels(self.tools.settings.agent_id)
        except (ExchangeError, TimeoutError):
            self._read_at_s = 0.0
            return
        now_s = time.monotonic()
        passed_s = min(now_s - self._read_at_s, 2 * POLL_S) if self._read_at_s else 0.0
        self._read_at_s = now_s
        dropped = await self._forget(rows)
        for row in rows:
            requested = self._requested.get(row.opened_by)
            if requested is None:
                over = row.opened_by in self._over
                requested = RequestedTunnel(tunnel=row, alive=self._looked, over=over)
                self._requested[row.opened_by] = requested
            elif requested.hear(row, passed_s) >= SILENT_S:
                log.warning("tunnel %d: its client stopped sending heartbeats", row.vni)
                requested.over, requested.silent_s = True, 0.0
                await self._close(requested)
                dropped.append(row)
        self._looked = True
        for requested in self._requested.values():
            if requested.alive and not requested.over and requested.end is None:
                await self._try(requested)
        await asyncio.gather(*map(self._drop, dropped))

    async def _forget(self, rows: Sequence[Tunnel]) -> list[Tunnel]:
        """Delete tunnels that are no longer requested, and return them."""
        jobs = {row.opened_by for row in rows}
        gone = [requested for job, requested in self._requested.items() if job not in jobs]
        for requested in gone:
            del self._requested[requested.tunnel.opened_by]
            self._over.append(requested.tunnel.opened_by)
            await self._close(requested)
        return [requested.tunnel for requested in gone]

    async def _try(self, requested: RequestedTunnel) -> None:
        """Open a tunnel, unless it conflicts with one that is open."""
        standing = [other.tunnel for other in self._requested.values() if other.end is not None]
        if any(clash(tunnel, requested.tunnel) for tunnel in standing):
            # The client will wait until its own deadline.
            return
        tunnel, settings, host = requested.tunnel, self.tools.settings, self.tools.host
        try:
            if len(standing) >= TUNNELS_MAX_COUNT:
                raise TunnelFailed(
                    f"{TUNNELS_MAX_COUNT} tunnels are already open, which is the limit"
                )
            if not settings.is_allowed(tunnel.client_address):
                raise TunnelFailed(
                    f"{tunnel.client_address} is outside this agent's allowed networks"
                )
            requested.end = await TunnelEnd.open(
                tunnel,
                DeviceSettings(
                    local=host.address,
                    remote=tunnel.client_address,
                    inner=tunnel.inner_server_address,
                    nic=host.nic or "",
                    mark=mark_of(settings.agent_id, settings.role),
                ),
            )
        except (TunnelFailed, ValueError) as error:
            requested.over = True
            log.warning("no tunnel %d: %s", tunnel.vni, error, extra={"action": "tunnel_failed"})
            await self._answer(tunnel, str(error)[:300])
            return
        self.bind(tunnel.ports, tunnel.inner_server_address)
        await self._answer(tunnel, "")
        log.info("tunnel %d to %s", tunnel.vni, tunnel.client_address, extra={"action": "tunnel"})

    async def _close(self, requested: RequestedTunnel) -> None:
        end, requested.end = requested.end, None
        if end is None:
            return
        self.bind(requested.tunnel.ports, None)
        await end.close()
        log.info("tunnel %d was removed", requested.tunnel.vni, extra={"action": "tunnel_gone"})

    async def _drop(self, tunnel: Tunnel) -> None:
        """Delete the rows that are left of a tunnel, such as the request of a dead client."""
        with contextlib.suppress(ExchangeError, TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.tools.records.fleet.drop_tunnel(self.tools.settings.agent_id, tunnel)

    async def _answer(self, tunnel: Tunnel, problem: str) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.tools.records.fleet.answer_tunnel(
                    self.tools.settings.agent_id, tunnel, problem
                )
        except (ExchangeError, TimeoutError) as error:
            # The client has a timeout.
            log.warning("tunnel %d: no answer: %s", tunnel.vni, error)
