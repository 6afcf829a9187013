"""Base class for a port of a server agent, with the parts that are the same for all engines.

:class:`broadside.agent.server.OneTestPort` uses a process per test.
:class:`broadside.agent.daemon.DaemonPort` uses a process that runs until it is stopped.
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
from broadside.agent.engine_process import ProcessExit
from broadside.agent.installed_engines import InstalledEngine
from broadside.agent.side_tasks import pause
from broadside.agent.sockets import PortView
from broadside.exchange.engines.port import EngineResult
from broadside.exchange.messages import (
    ClockReading,
    Endpoint,
    EngineReport,
    ServerTest,
    peer_address,
)

# If a server ends before this many seconds, it has failed to start.
HEALTHY_S: Final = 1.0
# Seconds to wait before trying to start a server again. This is doubled each time.
PAUSE_FIRST_S: Final = 0.25
PAUSE_MAX_S: Final = 15.0
# Seconds of host counters to add before and after a test.
EDGE_S: Final = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSpan:
    """Time of a served test.

    Attributes:
        started_s: Unix timestamp of the start.
        ended_s: Unix timestamp of the end, or None while the test is running.
        clock_before: Reading of the clock before the test.
    """

    started_s: float
    ended_s: float | None
    clock_before: ClockReading | None


@dataclass(slots=True, kw_only=True)
class ServedPort(ABC):
    """Port that is always served.

    Attributes:
        port: Port number.
        installed: Engine to use.
        tools: Dependencies of the agent.
        problem: Reason why the port cannot be served, or None if it can.
        address: Address to use inside a tunnel, or None for the default.
    """

    port: int
    installed: InstalledEngine
    tools: Tools
    problem: str | None = None
    address: str | None = None
    _attempt: Attempt | None = None
    _recorders: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True if a test is running or a client is connected."""

    @property
    @abstractmethod
    def listening(self) -> bool:
        """True if the server was seen to be listening."""

    @abstractmethod
    def _see(self, view: PortView, now_s: float) -> None:
        """Update the state using the socket tables."""

    @abstractmethod
    async def _serve_once(self) -> bool:
        """Run a server until it ends. Return False if it could not serve."""

    @property
    def free(self) -> bool:
        """True if the server is listening without a client and is not being replaced."""
        if self._attempt is None or self._attempt.process.stopping:
            return False
        return self.listening and not self.busy

    @property
    def unsettled(self) -> bool:
        """True if a server is running, but its state is not known yet."""
        return self._attempt is not None and not self.listening and not self.busy

    def bind(self, address: str | None) -> None:
        """Listen on a different address from now on. A test that is running will be stopped."""
        self.address = address
        if self._attempt is not None:
            self._stop(self._attempt, "it is to listen elsewhere")
            # The port is no longer free.
            self.tools.changed.set()

    async def serve(self) -> None:
        """Serve the port until the agent is stopping, and wait until all records are written."""
        pause_s = 0.0
        while not self.tools.stopping.is_set():
            if await self._serve_once():
                pause_s = 0.0
                continue
            pause_s = min(max(2 * pause_s, PAUSE_FIRST_S), PAUSE_MAX_S)
            await pause(self.tools.stopping, pause_s)
        await asyncio.gather(*self._recorders)

    def update(self, view: PortView, now_s: float) -> None:
        """Update the state using the socket tables, and report a change.

        Args:
            view: State of the port in the socket tables.
            now_s: Current Unix timestamp.
        """
        before = (self.free, self.busy)
        self._see(view, now_s)
        if (self.free, self.busy) != before:
            self.tools.changed.set()

    def _stop(self, attempt: Attempt, reason: str) -> None:
        attempt.process.stop(reason)

    async def _until_over(self, attempt: Attempt) -> ProcessExit:
        """Wait for a server to end, and stop it when the agent is stopping."""
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
        reading: EngineResult,
        report: EngineReport,
        span: ServedSpan,
        *,
        from_s: float,
    ) -> ServerTest:
        """Save a test so far, or the whole test if it is over."""
        started_s, ended_s = span.started_s, span.ended_s
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
        else:
            # They grow with the test, so they are only written at its end.
            report = report.model_copy(update={"peers": ()})
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
            clock_before=span.clock_before,
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
