"""A service on one port of a server agent: nginx, an FTP daemon; and each of its tests on record.

Unlike an iperf3 server a daemon serves until it is stopped, and does not know what a test is. Here
a *session* is: from the first connection on its port, by the kernel's socket tables, until nobody
has been connected for :data:`IDLE_S`. Its record is joined to a pair by endpoint and time.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, cast

from agent.agent_context import Tools
from agent.attempt import Attempt, known_until_s
from agent.certificate import NoCertificate, place_certificate
from agent.clock import read_clock
from agent.cpu import group_cpu_s, with_cpu
from agent.engine_process import EngineUnusable, least_privileged
from agent.installed_engines import InstalledEngine
from agent.side_tasks import pause, safely
from agent.sockets import PortView
from agent.workspace import Workspace
from exchange.engines.port import DaemonReader, Launch, ServerAsk, Unsupported
from exchange.engines.reading import Reading
from exchange.messages import (
    ClockReading,
    Endpoint,
    EngineReport,
    EngineState,
    ServerTest,
)

IDLE_S: Final = 2.0  # s without a connection after which a session is over
TICK_S: Final = 0.5  # s between looks at a session
HEALTHY_S: Final = 1.0  # s that a daemon must have lived for its end to be no failure to start
PAUSE_FIRST_S: Final = 0.25  # s before one that could not start is tried again; doubles
PAUSE_MAX_S: Final = 15.0
EDGE_S: Final = 2.0  # s of host counters kept on both sides of a session
PRIVILEGED_PORTS: Final = 1024  # below it, unless the kernel is told otherwise

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Session:
    """Clients on one port, from the first to the last."""

    started_s: float  # epoch s, as all here
    connected_s: float  # when somebody was last seen connected
    cpu_before_s: float  # CPU time that the daemon had used when it was last seen idle
    clock_before: ClockReading | None = None
    sent_s: float = 0.0  # engine seconds that are uploaded
    uploaded_s: float = 0.0  # epoch s of the last upload


@dataclass(slots=True, kw_only=True)
class DaemonPort:
    """Keeps one port served by one engine's daemon."""

    port: int
    installed: InstalledEngine
    tools: Tools
    problem: str | None = None
    address: str | None = None  # where it listens inside a tunnel; None: as usual
    _attempt: Attempt | None = None
    _session: Session | None = None
    _listening: bool = False
    _connected: bool = False
    _idle_cpu_s: float | None = None  # CPU time of the daemon at the end of the last session
    _stop_cpu_s: float | None = None  # and when it was told to end: afterwards nothing shows it

    @property
    def busy(self) -> bool:
        """Somebody is connected, or was a moment ago."""
        return self._session is not None

    @property
    def free(self) -> bool:
        """Seen listening, with nobody connected, and not being replaced."""
        if self._attempt is None or self._attempt.process.stopping:
            return False
        return self._listening and not self.busy

    @property
    def unsettled(self) -> bool:
        """A daemon runs that is not seen to listen yet."""
        return self._attempt is not None and not self._listening

    def bind(self, address: str | None) -> None:
        """Listen at another address from now on; a session under way is over."""
        self.address = address
        if self._attempt is not None:
            self._stop(self._attempt, "it is to listen elsewhere")
            self.tools.changed.set()  # it is free no more

    async def serve(self) -> None:
        """Serve until the agent is stopping; all records are then written."""
        pause_s = 0.0
        while not self.tools.stopping.is_set():
            if await self._sit():
                pause_s = 0.0
                continue
            pause_s = min(max(2 * pause_s, PAUSE_FIRST_S), PAUSE_MAX_S)
            await pause(self.tools.stopping, pause_s)

    def look(self, view: PortView, now_s: float) -> None:
        """Take in what the socket tables show."""
        before = (self.free, self.busy)
        self._listening, self._connected = view.listening, view.connected
        if self._idle_cpu_s is None and view.listening and not view.connected and self._attempt:
            self._idle_cpu_s = group_cpu_s(self._attempt.process.pid)  # its start is no session's
        if view.connected and self._attempt is not None:
            if self._session is None:
                # A look comes up to half a second after the first connection.
                self._session = Session(
                    started_s=now_s, connected_s=now_s, cpu_before_s=self._idle_cpu_s or 0.0
                )
            self._session.connected_s = now_s
        if (self.free, self.busy) != before:
            self.tools.changed.set()

    # One daemon -------------------------------------------------------------------------------

    async def _sit(self) -> bool:
        """Run one daemon to its end; False when it could not serve."""
        try:
            workspace = Workspace(self.tools.settings.agent_id)
        except OSError as error:
            self._set_problem(f"no folder for {self.installed.engine.name}: {error}")
            return False
        reader = cast(DaemonReader, self.installed.engine.server_reader())
        try:
            launch = await asyncio.to_thread(self._prepare, workspace)
            attempt = await Attempt.spawn(
                launch.processes[0], reader, identity=workspace.identity, raw_max_bytes=0
            )
        except (EngineUnusable, NoCertificate, Unsupported, OSError) as error:
            workspace.close()
            self._set_problem(str(error))
            return False
        self._attempt = attempt
        self._idle_cpu_s = self._stop_cpu_s = None
        self.tools.changed.set()
        keeper = asyncio.create_task(self._keep(attempt, launch, reader))
        stop = asyncio.create_task(self.tools.stopping.wait())
        try:
            await asyncio.wait({attempt.exit, stop}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                self._stop(attempt, "the agent is stopping")
            exit_ = await attempt.exit
            await self._close(attempt, reader)
        finally:
            stop.cancel()
            keeper.cancel()
            attempt.exit.cancel()
            await asyncio.wait({attempt.exit})
            self._attempt = None
            self._listening = False
            workspace.close()
            self.tools.changed.set()
        if exit_.stopped is None and exit_.ended_at_s - exit_.started_at_s < HEALTHY_S:
            said = exit_.stderr.strip().splitlines()
            fix = (
                "it runs as nobody: lower net.ipv4.ip_unprivileged_port_start, or take a port "
                "from there on"
                if self.port < PRIVILEGED_PORTS
                else "free the port, or set BROADSIDE_AGENT_SERVICES"
            )
            self._set_problem(
                f"port {self.port}: {self.installed.engine.name} ended at once"
                f"{': ' + said[-1] if said else ''}; {fix}"
            )
            return False
        self._set_problem(None)
        return True

    def _stop(self, attempt: Attempt, reason: str) -> None:
        """End the daemon, its CPU time read first: a session may be under way."""
        if attempt.over is None and not attempt.process.stopping:
            self._stop_cpu_s = group_cpu_s(attempt.process.pid)
        attempt.process.stop(reason)

    def _prepare(self, workspace: Workspace) -> Launch:
        """Everything in place for the daemon (blocking). Raises what can be wrong with it."""
        settings, engine = self.tools.settings, self.installed.engine
        if self.installed.problem is not None:
            raise Unsupported(self.installed.problem)
        ask = ServerAsk(
            port=self.port,
            address=self.address or self.tools.host.address,
            tools=self.installed.tools,
            folder=str(workspace.path),
            duration_max_s=settings.duration_max_s,
        )
        first = engine.server(ask)
        if first.unprivileged:
            workspace.give_to(least_privileged(first.processes[0].argv[0]))
        if engine.needs_certificate:
            shown = place_certificate(settings, self.tools.host.address, workspace)
            ask = replace(ask, certificate=shown)
        launch = engine.server(ask)
        workspace.fill(launch.files)
        return launch

    # Records ----------------------------------------------------------------------------------

    async def _keep(self, attempt: Attempt, launch: Launch, reader: DaemonReader) -> None:
        """Keep the record of session after session."""
        while True:
            await asyncio.sleep(TICK_S)
            session = self._session
            if session is None:
                continue
            if session.clock_before is None:
                session.clock_before = await self._read_clock()
            now_s = time.time()
            over = not self._connected and now_s - session.connected_s >= IDLE_S
            if over:
                await self._close(attempt, reader)
            elif now_s - session.uploaded_s >= self.tools.settings.upload_s:
                session.uploaded_s = now_s
                await self._save(attempt, session, ended_s=None)

    async def _close(self, attempt: Attempt, reader: DaemonReader) -> None:
        """Write the session's whole record; what comes next is another."""
        session, self._session = self._session, None
        if session is None:
            return
        running = attempt.over is None and not attempt.process.stopping
        cpu_s = group_cpu_s(attempt.process.pid) if running else self._stop_cpu_s
        self._idle_cpu_s = cpu_s
        self.tools.changed.set()
        session.sent_s = 0.0
        await self._save(
            attempt, session, ended_s=reader.last_at_s or session.connected_s, cpu_s=cpu_s
        )
        reader.close()

    async def _save(
        self,
        attempt: Attempt,
        session: Session,
        *,
        ended_s: float | None,
        cpu_s: float | None = None,
    ) -> None:
        reading = attempt.read()
        if not reading.intervals:
            return  # somebody connected and asked for nothing
        agent_id, address = self.tools.settings.agent_id, self.tools.host.address
        first_s = reading.first_data_at_s
        started_s = min(session.started_s, first_s or session.started_s)
        test = ServerTest(
            agent_id=agent_id,
            endpoint=Endpoint(agent_id=agent_id, address=address, port=self.port),
            client_address=reading.client_address,
            started_at=_utc(started_s),
            first_data_at=None if first_s is None else _utc(first_s),
            ended_at=None if ended_s is None else _utc(ended_s),
            engine=reading.report
            if ended_s is None
            else self._with_cpu(reading, session, cpu_s, started_s, ended_s),
            clock_before=session.clock_before,
            clock_after=None if ended_s is None else await self._read_clock(),
        )
        host = self.tools.host_log.between(started_s - EDGE_S, (ended_s or time.time()) + EDGE_S)
        save = self.tools.results.save_test(test, reading.tracks(), host, from_s=session.sent_s)
        await safely(save, "upload", {"port": self.port})
        session.sent_s = known_until_s(reading)

    def _with_cpu(
        self,
        reading: Reading,
        session: Session,
        cpu_s: float | None,
        started_s: float,
        ended_s: float,
    ) -> EngineReport:
        """The report of a session that is over, with what it cost: unknown of a daemon that ended
        by itself."""
        cost_s = None if cpu_s is None else max(0.0, cpu_s - session.cpu_before_s)
        return self.tools.with_host_cpu(with_cpu(reading, cost_s), started_s, ended_s)

    async def _read_clock(self) -> ClockReading:
        return await read_clock(self.tools.settings.chronyc_socket)

    def _set_problem(self, problem: str | None) -> None:
        if problem != self.problem:
            self.tools.changed.set()
            if problem is not None:
                log.error("%s", problem, extra={"action": "problem", "port": self.port})
        self.problem = problem


def service_states(ports: Sequence[DaemonPort], *, own_certificate: bool) -> list[EngineState]:
    """What a presence says of each engine that is served, from its ports."""
    by_engine: dict[str, list[DaemonPort]] = {}
    for served in ports:
        by_engine.setdefault(served.installed.engine.name, []).append(served)
    states = []
    for served_ports in by_engine.values():
        installed = served_ports[0].installed
        problems = [served.problem for served in served_ports if served.problem is not None]
        working = any(served.free or served.busy for served in served_ports)
        states.append(
            installed.state.model_copy(
                update={
                    "ports": tuple(served.port for served in served_ports if served.free),
                    "problem": None if working or not problems else problems[0][:300],
                    "self_signed": not own_certificate
                    if installed.engine.needs_certificate
                    else None,
                }
            )
        )
    return states


def _utc(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
