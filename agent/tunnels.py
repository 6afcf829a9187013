"""The server agent's ends of tunnels: made when a client's agent asks, gone when it falls silent.

The clients' rows say what is wanted and change every two seconds while it is. A row that stays the
same for :data:`SILENT_S` of successful reads is of a client that died: a table that is away lets
every tunnel stand.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from agent.tools import Tools
from agent.tunnel import TunnelEnd, TunnelFailed
from exchange.messages import Tunnel
from exchange.ports import ExchangeError

POLL_S: Final = 1.0
SILENT_S: Final = 8.0
TUNNELS_MAX_COUNT: Final = 64  # at once
READ_TIMEOUT_S: Final = 5.0

Bind = Callable[[Sequence[int], str | None], None]

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Standing:
    """One end that stands, and what its client last said."""

    end: TunnelEnd
    tunnel: Tunnel
    unchanged_s: float = 0.0  # of successful reads


@dataclass(slots=True, kw_only=True)
class TunnelKeeper:
    """Keeps the tunnels that end at one server agent."""

    tools: Tools
    bind: Bind  # has the servers of some ports listen at an inner address; None: as usual
    _standing: dict[int, Standing] = field(default_factory=dict)  # by VNI
    _failed: dict[int, str] = field(default_factory=dict)  # by VNI: the row that could not be had
    _read_at_s: float = 0.0  # monotonic s of the last successful read

    async def keep_forever(self) -> None:
        """Until cancelled; then no device of ours is left."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(POLL_S)
        finally:
            for standing in list(self._standing.values()):
                await self._close(standing)

    async def look(self) -> None:
        """Make what is newly asked for, and take away what nobody holds any more."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                rows = await self.tools.records.read_tunnels(self.tools.settings.agent_id)
        except (ExchangeError, TimeoutError):
            self._read_at_s = 0.0
            return
        now_s = time.monotonic()
        passed_s = min(now_s - self._read_at_s, 2 * POLL_S) if self._read_at_s else 0.0
        self._read_at_s = now_s
        asked = {tunnel.vni: tunnel for tunnel in rows}
        for vni, standing in list(self._standing.items()):
            row = asked.get(vni)
            if row is None or row.opened_by != standing.tunnel.opened_by:
                await self._close(standing)
            elif row.beat != standing.tunnel.beat:
                standing.tunnel, standing.unchanged_s = row, 0.0
            else:
                standing.unchanged_s += passed_s
                if standing.unchanged_s >= SILENT_S:
                    log.warning("tunnel %d: its client fell silent", vni)
                    self._failed[vni] = row.opened_by
                    await self._close(standing)
                    await self._drop(row)
        for vni, row in asked.items():
            if vni not in self._standing and self._failed.get(vni) != row.opened_by:
                await self._open(row)

    async def _open(self, tunnel: Tunnel) -> None:
        settings, host = self.tools.settings, self.tools.host
        try:
            if len(self._standing) >= TUNNELS_MAX_COUNT:
                raise TunnelFailed(f"{TUNNELS_MAX_COUNT} tunnels stand already")
            if not settings.is_allowed(tunnel.client_address):
                raise TunnelFailed(
                    f"{tunnel.client_address} lies outside this agent's allowed networks"
                )
            end = await TunnelEnd.open(
                tunnel,
                local=host.address,
                remote=tunnel.client_address,
                inner=tunnel.inner_server_address,
                nic=host.nic or "",
                agent_id=settings.agent_id,
            )
        except (TunnelFailed, ValueError) as error:
            self._failed[tunnel.vni] = tunnel.opened_by
            log.warning("no tunnel %d: %s", tunnel.vni, error, extra={"action": "tunnel_failed"})
            await self._answer(tunnel, str(error)[:300])
            return
        self._standing[tunnel.vni] = Standing(end=end, tunnel=tunnel)
        self.bind(tunnel.ports, tunnel.inner_server_address)
        await self._answer(tunnel, "")
        log.info("tunnel %d to %s", tunnel.vni, tunnel.client_address, extra={"action": "tunnel"})

    async def _close(self, standing: Standing) -> None:
        self._standing.pop(standing.tunnel.vni, None)
        self.bind(standing.tunnel.ports, None)
        await standing.end.close()
        log.info("tunnel %d is gone", standing.tunnel.vni, extra={"action": "tunnel_gone"})

    async def _drop(self, tunnel: Tunnel) -> None:
        """Take away what a dead client asked for, so that our successor does not do it."""
        with contextlib.suppress(ExchangeError, TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.tools.records.drop_tunnel(self.tools.settings.agent_id, tunnel)

    async def _answer(self, tunnel: Tunnel, problem: str) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.tools.records.answer_tunnel(
                    self.tools.settings.agent_id, tunnel, problem
                )
        except (ExchangeError, TimeoutError) as error:  # its client gives up in time
            log.warning("tunnel %d: no answer: %s", tunnel.vni, error)
