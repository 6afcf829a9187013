"""The server agent's ends of tunnels: made when a client's agent asks, gone when it falls silent.

Each job's row says what it wants and changes every two seconds while it does. A row that stays the
same for :data:`SILENT_S` of successful reads, while nothing comes out of its tunnel, is of a client
that died: a table that is away, or away from the client alone, lets a tunnel with traffic stand.
A tunnel that clashes with one that stands waits until that one is over: the next burst's client may
ask before this one's has ended.
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
from broadside.agent.tunnel import TunnelEnd, TunnelFailed, clash, mark_of
from broadside.exchange.messages import Tunnel
from broadside.exchange.ports import ExchangeError

POLL_S: Final = 1.0
SILENT_S: Final = 8.0
TUNNELS_MAX_COUNT: Final = 64  # at once
READ_TIMEOUT_S: Final = 5.0
OVER_COUNT: Final = 1000  # jobs whose rows are not believed again, should a late write land

Bind = Callable[[Sequence[int], str | None], None]

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Asked:
    """One job's row, and what became of it."""

    tunnel: Tunnel
    alive: bool  # the row came, or changed, before our eyes
    over: bool = False  # it had its tunnel, or cannot have one
    end: TunnelEnd | None = None  # while it stands
    received_count: int = 0  # packets that had come out of it at the last look
    silent_s: float = 0.0  # of successful reads, without a new word or packet

    def hear(self, row: Tunnel, passed_s: float) -> float:
        """Take in its row as it is now; for how long there was no sign of its client."""
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
    """Keeps the tunnels that end at one server agent."""

    tools: Tools
    bind: Bind  # has the servers of some ports listen at an inner address; None: as usual
    _asked: dict[str, Asked] = field(default_factory=dict)  # by job
    _over: deque[str] = field(default_factory=lambda: deque(maxlen=OVER_COUNT))  # jobs
    _looked: bool = False  # at least once: what stood before may be of a client long dead
    _read_at_s: float = 0.0  # monotonic s of the last successful read

    async def keep_forever(self) -> None:
        """Until cancelled; then no device of ours is left."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(POLL_S)
        finally:
            for asked in self._asked.values():
                await self._close(asked)

    async def look(self) -> None:
        """Make what is newly asked for, and take away what nobody holds any more."""
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
            asked = self._asked.get(row.opened_by)
            if asked is None:
                over = row.opened_by in self._over
                asked = Asked(tunnel=row, alive=self._looked, over=over)
                self._asked[row.opened_by] = asked
            elif asked.hear(row, passed_s) >= SILENT_S:
                log.warning("tunnel %d: its client fell silent", row.vni)
                asked.over, asked.silent_s = True, 0.0
                await self._close(asked)
                dropped.append(row)
        self._looked = True
        for asked in self._asked.values():
            if asked.alive and not asked.over and asked.end is None:
                await self._try(asked)
        await asyncio.gather(*map(self._drop, dropped))

    async def _forget(self, rows: Sequence[Tunnel]) -> list[Tunnel]:
        """Take away what is not asked for any more, and return it."""
        jobs = {row.opened_by for row in rows}
        gone = [asked for job, asked in self._asked.items() if job not in jobs]
        for asked in gone:
            del self._asked[asked.tunnel.opened_by]
            self._over.append(asked.tunnel.opened_by)
            await self._close(asked)
        return [asked.tunnel for asked in gone]

    async def _try(self, asked: Asked) -> None:
        """Open a tunnel, unless one stands in its way."""
        standing = [other.tunnel for other in self._asked.values() if other.end is not None]
        if any(clash(tunnel, asked.tunnel) for tunnel in standing):
            return  # its client waits, until its own deadline
        tunnel, settings, host = asked.tunnel, self.tools.settings, self.tools.host
        try:
            if len(standing) >= TUNNELS_MAX_COUNT:
                raise TunnelFailed(f"{TUNNELS_MAX_COUNT} tunnels stand already")
            if not settings.is_allowed(tunnel.client_address):
                raise TunnelFailed(
                    f"{tunnel.client_address} lies outside this agent's allowed networks"
                )
            asked.end = await TunnelEnd.open(
                tunnel,
                local=host.address,
                remote=tunnel.client_address,
                inner=tunnel.inner_server_address,
                nic=host.nic or "",
                mark=mark_of(settings.agent_id, settings.role),
            )
        except (TunnelFailed, ValueError) as error:
            asked.over = True
            log.warning("no tunnel %d: %s", tunnel.vni, error, extra={"action": "tunnel_failed"})
            await self._answer(tunnel, str(error)[:300])
            return
        self.bind(tunnel.ports, tunnel.inner_server_address)
        await self._answer(tunnel, "")
        log.info("tunnel %d to %s", tunnel.vni, tunnel.client_address, extra={"action": "tunnel"})

    async def _close(self, asked: Asked) -> None:
        end, asked.end = asked.end, None
        if end is None:
            return
        self.bind(asked.tunnel.ports, None)
        await end.close()
        log.info("tunnel %d is gone", asked.tunnel.vni, extra={"action": "tunnel_gone"})

    async def _drop(self, tunnel: Tunnel) -> None:
        """Take away what is left of its rows: what a dead client asked for, what came too late."""
        with contextlib.suppress(ExchangeError, TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.tools.records.fleet.drop_tunnel(self.tools.settings.agent_id, tunnel)

    async def _answer(self, tunnel: Tunnel, problem: str) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self.tools.records.fleet.answer_tunnel(
                    self.tools.settings.agent_id, tunnel, problem
                )
        except (ExchangeError, TimeoutError) as error:  # its client gives up in time
            log.warning("tunnel %d: no answer: %s", tunnel.vni, error)
