"""One port of a server agent, with an engine's server behind it: what holds whatever it serves.

:class:`broadside.agent.server.OneTestPort` has a process a test,
:class:`broadside.agent.daemon.DaemonPort` one that serves until it is stopped.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from broadside.agent.agent_context import Tools
from broadside.agent.attempt import Attempt
from broadside.agent.clock import read_clock
from broadside.agent.engine_process import Exit
from broadside.agent.installed_engines import InstalledEngine
from broadside.agent.side_tasks import pause
from broadside.agent.sockets import PortView
from broadside.exchange.engines.port import Reading
from broadside.exchange.messages import (
    ClockReading,
    Endpoint,
    EngineReport,
    ServerTest,
    peer_address,
)

HEALTHY_S: Final = 1.0  # s that a server must have lived for its end to be no failure to start
PAUSE_FIRST_S: Final = 0.25  # s before one that could not start is tried again; doubles
PAUSE_MAX_S: Final = 15.0
EDGE_S: Final = 2.0  # s of host counters kept on both sides of a test

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ServedPort(ABC):
    """Keeps one port served."""

    port: int
    installed: InstalledEngine
    tools: Tools
    problem: str | None = None
    address: str | None = None  # where it listens inside a tunnel; None: as usual
    _attempt: Attempt | None = None
    _recorders: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    @abstractmethod
    def busy(self) -> bool:
        """A test is in progress, or a client connected."""

    @property
    @abstractmethod
    def listening(self) -> bool:
        """Its server was seen to listen."""

    @abstractmethod
    def _see(self, view: PortView, now_s: float) -> None:
        """Take in what the socket tables show."""

    @abstractmethod
    async def _serve_once(self) -> bool:
        """Run one server to its end; False when it could not serve."""

    @property
    def free(self) -> bool:
        """Seen listening, with nobody connected, and not being replaced."""
        if self._attempt is None or self._attempt.process.stopping:
            return False
        return self.listening and not self.busy

    @property
    def unsettled(self) -> bool:
        """A server runs of which nothing is known yet."""
        return self._attempt is not None and not self.listening and not self.busy

    def bind(self, address: str | None) -> None:
        """Listen at another address from now on; a test under way is over."""
        self.address = address
        if self._attempt is not None:
            self._stop(self._attempt, "it is to listen elsewhere")
            self.tools.changed.set()  # it is free no more

    async def serve(self) -> None:
        """Serve until the agent is stopping; all records are then written."""
        pause_s = 0.0
        while not self.tools.stopping.is_set():
            if await self._serve_once():
                pause_s = 0.0
                continue
            pause_s = min(max(2 * pause_s, PAUSE_FIRST_S), PAUSE_MAX_S)
            await pause(self.tools.stopping, pause_s)
        await asyncio.gather(*self._recorders)

    def look(self, view: PortView, now_s: float) -> None:
        """Take in what the socket tables show."""
        before = (self.free, self.busy)
        self._see(view, now_s)
        if (self.free, self.busy) != before:
            self.tools.changed.set()

    def _stop(self, attempt: Attempt, reason: str) -> None:
        attempt.process.stop(reason)

    async def _until_over(self, attempt: Attempt) -> Exit:
        """Wait for a server's end, which comes at the agent's at the latest."""
        stop = asyncio.create_task(self.tools.stopping.wait())
        try:
            await asyncio.wait({attempt.exit, stop}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                self._stop(attempt, "the agent is stopping")
            return await attempt.exit
        finally:
            stop.cancel()

    async def _save(
        self,
        reading: Reading,
        report: EngineReport,
        *,
        started_s: float,
        ended_s: float | None,  # None: it goes on
        clock_before: ClockReading | None,
        from_s: float,
    ) -> ServerTest:
        """Write a test so far, or whole."""
        agent_id, address = self.tools.settings.agent_id, self.tools.host.address
        started_at = _utc(started_s)
        over = ended_s is not None
        if ended_s is not None:
            report = self.tools.with_host_counters(
                report,
                reading.first_data_at_s or started_s,
                ended_s,
                peer_address(reading.client_address),
            )
        test = ServerTest(
            agent_id=agent_id,
            endpoint=Endpoint(agent_id=agent_id, address=address, port=self.port),
            client_address=peer_address(reading.client_address),
            started_at=started_at,
            first_data_at=None
            if reading.first_data_at_s is None
            else _utc(reading.first_data_at_s),
            ended_at=None if ended_s is None else _utc(ended_s),
            engine=report,
            clock_before=clock_before,
            clock_after=await self._read_clock() if over else None,
            troubles=self.tools.troubles.between(started_at, _utc(time.time())) if over else (),
        )
        to_s = (ended_s or time.time()) + EDGE_S
        host = self.tools.host_seconds(started_s - EDGE_S, to_s, test.client_address)
        await self.tools.results.save_test(test, reading.tracks(), host, from_s=from_s)
        return test

    async def _read_clock(self) -> ClockReading:
        return await read_clock(self.tools.settings.chronyc_socket)

    def _set_problem(self, problem: str | None) -> None:
        if problem != self.problem:
            self.tools.changed.set()
            if problem is not None:
                self._log(logging.ERROR, "problem", problem)
        self.problem = problem

    def _log(self, level: int, action: str, message: str) -> None:
        log.log(level, "%s", message, extra={"action": action, "port": self.port})


def _utc(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
