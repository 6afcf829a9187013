"""Server agent, which runs ``iperf3 -s -1`` on each endpoint port and records all tests.

A server runs a single test and exits. The next one is listening within milliseconds. The kernel's
socket tables are checked every few seconds. They show if a server is listening and if a client is
connected, so we know if it is free, busy or stuck. This takes some milliseconds in the kernel. It
is not done more often for a server that is known to be listening or running a test.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broadside.agent.agent_context import Tools
from broadside.agent.agent_settings import split_service
from broadside.agent.attempt import Attempt, AttemptLimits, known_until_s
from broadside.agent.canary_service import CanaryService
from broadside.agent.daemon import DaemonPort, service_states
from broadside.agent.engine_process import EngineUnusable, ProcessExit, ProcessSetup
from broadside.agent.gate import find_gate, serving_env
from broadside.agent.installed_engines import find_installed_engines
from broadside.agent.presence import AgentHealth
from broadside.agent.probe import Echo
from broadside.agent.service_port import HEALTHY_S, ServedPort, ServedSpan
from broadside.agent.side_tasks import safely
from broadside.agent.sockets import PortView, read_ports
from broadside.agent.tunnels import TunnelKeeper
from broadside.exchange.background import restart_on_error
from broadside.exchange.engines.port import EngineEvent, EngineResult, ServerRequest, Started
from broadside.exchange.messages import DEFAULT_ENGINE, ClockReading, Role, ServerTest

# Seconds to wait between checks of the socket tables.
LOOK_S: Final = 5.0
# Seconds to use instead while a new server is not known to be listening.
LOOK_SOON_S: Final = 0.5
# Seconds until a server has exited if it could not open its port. Before that, a different process
# might be listening.
YOUNG_S: Final = 0.4
# Seconds after which a server should be listening.
DEAF_S: Final = 5.0
# Seconds for which a client can be connected without streams.
SILENT_S: Final = 15.0
# Seconds that a test can take longer than requested. The client has 12 s.
OVERDUE_S: Final = 13.0


@dataclass(slots=True, kw_only=True)
class ServedTest:
    """State of a server process. All times are Unix timestamps.

    Attributes:
        spawned_at_s: Start of the process.
        seen_listening: True if it was listening in the last check.
        connected_at_s: Time since when a client has been connected, or None.
        left_at_s: Time since when all clients have been disconnected in the kernel, or None.
        started_at_s: Start of a test as reported by the engine, or None.
        requested_s: Requested time of the test in seconds, with the warm-up. None if unknown.
        replaced: True if it was stuck and is being stopped.
    """

    spawned_at_s: float
    seen_listening: bool = False
    connected_at_s: float | None = None
    left_at_s: float | None = None
    started_at_s: float | None = None
    requested_s: float | None = None
    replaced: bool = False

    @property
    def busy(self) -> bool:
        """True if a test is running or a client is connected."""
        return self.started_at_s is not None or self.connected_at_s is not None

    def see(self, view: PortView, now_s: float) -> None:
        """Update the state using the socket tables.

        Args:
            view: State of the port in the socket tables.
            now_s: Current Unix timestamp.
        """
        self.seen_listening = view.listening and now_s - self.spawned_at_s >= YOUNG_S
        self.connected_at_s = _since(self.connected_at_s, now_s, view.connected)
        self.left_at_s = _since(self.left_at_s, now_s, view.connected and not view.tcp_count)

    def stuck_reason(self, view: PortView, now_s: float, *, duration_max_s: float) -> str | None:
        """Return why this server should be replaced.

        Args:
            view: State of the port in the socket tables.
            now_s: Current Unix timestamp.
            duration_max_s: Maximum time of a test in seconds, if the requested time is not known.

        Returns:
            The reason for the log. None if the server can continue.
        """
        busy_since_s = self.connected_at_s if self.started_at_s is None else self.started_at_s
        if busy_since_s is not None:
            requested_s = duration_max_s if self.requested_s is None else self.requested_s
            if now_s - busy_since_s > requested_s + OVERDUE_S:
                return f"a test of {requested_s:g} s is not over after {now_s - busy_since_s:.0f} s"
        if self.connected_at_s is not None:
            silent_s = now_s - self.connected_at_s
            if view.tcp_count == 1 and view.udp_count == 0 and silent_s > SILENT_S:
                return f"a client has been connected for {silent_s:.0f} s and sends nothing"
            if self.left_at_s is not None and now_s - self.left_at_s > SILENT_S:
                return f"its client left {now_s - self.left_at_s:.0f} s ago and it does not end"
        elif not view.listening and now_s - self.spawned_at_s > DEAF_S:
            return f"the server runs but does not listen after {DEAF_S:g} s"
        return None


@dataclass(slots=True, kw_only=True)
class OneTestPort(ServedPort):
    """Port that is served by a new process for each test.

    ``begun`` is set if there is a new server to check.
    """

    begun: asyncio.Event
    _served: ServedTest | None = None
    # Set if a client was seen for the current server.
    _noticed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def busy(self) -> bool:
        """True if a test is running or a client is connected."""
        return self._served is not None and self._served.busy

    @property
    def listening(self) -> bool:
        return self._served is not None and self._served.seen_listening

    @property
    def _gate(self) -> Path | None:
        """Path of the library that reports when a server's clock starts, or None."""
        return find_gate() if self.tools.engine.preloadable else None

    def _see(self, view: PortView, now_s: float) -> None:
        """Update the state, and stop the server if it is stuck. It will be replaced."""
        served, attempt = self._served, self._attempt
        if served is None or attempt is None:
            return
        served.see(view, now_s)
        if served.busy:
            self._noticed.set()
        reason = served.stuck_reason(view, now_s, duration_max_s=self.tools.settings.duration_max_s)
        if reason is not None and not served.replaced:
            served.replaced = True
            self._log(logging.WARNING, "stuck", f"replacing the server: {reason}")
            attempt.process.stop(reason)

    # One server ------------------------------------------------------------------------------

    async def _serve_once(self) -> bool:
        installed, local_address = self.installed, self.tools.settings.address
        (process,) = installed.engine.server(
            ServerRequest(
                port=self.port,
                address=self.address or (str(local_address) if local_address else None),
                tools=installed.tools,
                # No folder is needed.
                folder="",
                duration_max_s=self.tools.settings.duration_max_s,
            )
        ).processes
        served = ServedTest(spawned_at_s=time.time())
        noticed = self._noticed = asyncio.Event()

        def take(event: EngineEvent, at_s: float) -> None:
            if isinstance(event, Started):
                served.started_at_s = at_s
                noticed.set()
                self.tools.changed.set()

        try:
            attempt = await Attempt.spawn(
                process,
                installed.engine.server_reader(),
                AttemptLimits(raw_max_bytes=self.tools.settings.raw_max_bytes),
                setup=ProcessSetup(env=None if self._gate is None else serving_env(self._gate)),
                on_event=take,
            )
        except EngineUnusable as error:
            self._set_problem(str(error))
            return False
        self._attempt, self._served = attempt, served
        self.begun.set()
        record = self._record(attempt, served, noticed)
        recorder = asyncio.create_task(safely(record, "record", {"port": self.port}))
        self._recorders.add(recorder)
        recorder.add_done_callback(self._recorders.discard)
        try:
            exit_ = await self._until_over(attempt)
        finally:
            attempt.exit.cancel()
            self._attempt = self._served = None
            self.tools.changed.set()
        return self._judge(attempt.read(), exit_)

    def _judge(self, reading: EngineResult, exit_: ProcessExit) -> bool:
        """Return True if a server that has ended was able to serve."""
        lived_s = exit_.ended_at_s - exit_.started_at_s
        if is_test(reading) or exit_.stopped is not None or lived_s >= HEALTHY_S:
            self._set_problem(None)
            return True
        why = reading.report.error or exit_.stderr.strip() or "it ended at once"
        fix = "; free the port or set BROADSIDE_AGENT_PORTS" if "in use" in why else ""
        self._set_problem(f"port {self.port}: {why}{fix}")
        return False

    # Records ----------------------------------------------------------------------------------

    async def _record(self, attempt: Attempt, served: ServedTest, noticed: asyncio.Event) -> None:
        """Save the test of a server, if there is one, while it is running and when it is over."""
        context = {"port": self.port}
        notice = asyncio.create_task(noticed.wait())
        try:
            await asyncio.wait({attempt.exit, notice}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            notice.cancel()
        clock = None if attempt.exit.done() else await self._read_clock()
        sent_s = 0.0
        while not attempt.exit.done():
            if served.started_at_s is not None:
                reading = attempt.read()
                served.requested_s = _requested_s(reading)
                save = self._save_test(reading, served, clock_before=clock, from_s=sent_s)
                await safely(save, "upload", context)
                sent_s = known_until_s(reading)
            await asyncio.wait({attempt.exit}, timeout=self.tools.settings.upload_s)
        reading = attempt.read()
        if is_test(reading):
            self._log(logging.INFO, "test", reading.report.error or "test served")
            saving = self._save_complete(attempt, reading, served, clock)
            await safely(saving, "upload", context)

    async def _save_complete(
        self,
        attempt: Attempt,
        reading: EngineResult,
        served: ServedTest,
        clock: ClockReading | None,
    ) -> None:
        """Save a test that is over, and its raw output if this is enabled."""
        exit_ = attempt.over
        test = await self._save_test(reading, served, clock_before=clock, exit_=exit_)
        ended_well = exit_ is not None and not exit_.exit_code and exit_.stopped is None
        failed = test.engine.error is not None or not ended_well
        if self.tools.settings.raw.keeps(failed=failed):
            await self.tools.results.save_server_raw(test, attempt.transcript.packed())

    async def _save_test(
        self,
        reading: EngineResult,
        served: ServedTest,
        *,
        clock_before: ClockReading | None,
        exit_: ProcessExit | None = None,
        from_s: float = 0.0,
    ) -> ServerTest:
        # The engine reports data only when it ends.
        if served.started_at_s is None:
            # Its timestamp might be in full seconds, but two tests on a port need different keys.
            served.started_at_s = max(reading.started_at_s or 0.0, served.spawned_at_s)
        return await self._save(
            reading,
            reading.report,
            ServedSpan(
                started_s=served.started_at_s,
                ended_s=exit_.ended_at_s if exit_ else None,
                clock_before=clock_before,
            ),
            from_s=from_s,
        )


class Supervisor:
    """Server agent with all its ports."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._begun = asyncio.Event()
        self._ports = [
            OneTestPort(
                port=port,
                installed=tools.installed(DEFAULT_ENGINE),
                tools=tools,
                begun=self._begun,
            )
            for port in tools.settings.ports
        ]
        self._echo: Echo | None = None
        self._canary = CanaryService(tools.settings)
        # Created when the search for their programs is complete.
        self._daemons: list[DaemonPort] = []

    def condition(self) -> AgentHealth:
        """Return the state of all ports for the heartbeat."""
        free = tuple(served.port for served in self._ports if served.free)
        busy = tuple(served.port for served in self._ports if served.busy)
        problems = [served.problem for served in self._ports if served.problem is not None]
        return AgentHealth(
            busy=bool(busy) or any(daemon.busy for daemon in self._daemons),
            engine=self._tools.engine,
            ports=free,
            busy_ports=busy,
            # An agent with a single working port can be used, but not if there is a problem.
            problem="; ".join(problems[:3]) if problems and not free and not busy else None,
            engines=tuple(
                service_states(self._daemons, certificate_is_generated=self._has_certificate)
            ),
            echo_port=self._echo.port if self._echo else None,
            canary_ports=self._canary.ports,
            tunnels=self._tools.tunnels,
        )

    @property
    def _has_certificate(self) -> bool:
        return self._tools.settings.certificate is not None

    async def run(self) -> None:
        """Serve all ports until the agent is stopping."""
        self._echo = await Echo.open(self._tools.settings, self._tools.host.address)
        await self._canary.open(self._tools.host.address)
        background = [asyncio.create_task(restart_on_error(self._poll_forever))]
        if self._tools.tunnels:
            keeper = TunnelKeeper(tools=self._tools, bind=self._bind)
            background.append(asyncio.create_task(restart_on_error(keeper.run_forever)))
        try:
            async with asyncio.TaskGroup() as serving:
                for served in self._ports:
                    serving.create_task(served.serve())
                await self._open_services(serving)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            if self._echo is not None:
                self._echo.close()
            self._canary.close()

    def _bind(self, ports: Sequence[int], address: str | None) -> None:
        """Make the servers of some ports listen on a tunnel's inner address, or on the default."""
        served_ports: list[ServedPort] = [*self._ports, *self._daemons]
        for served in served_ports:
            if served.port in ports:
                served.bind(address)

    async def _open_services(self, serving: asyncio.TaskGroup) -> None:
        """Search for the other engines in a thread, and start the services in the settings."""
        services = self._tools.settings.services
        if not services:
            return
        names = {split_service(service)[0] for service in services}
        installed_engines = await asyncio.to_thread(find_installed_engines, Role.SERVER, names)
        self._daemons = [
            DaemonPort(port=port, installed=installed_engines[name], tools=self._tools, tls=tls)
            for service, ports in services.items()
            for name, tls in [split_service(service)]
            for port in ports
        ]
        for daemon in self._daemons:
            serving.create_task(daemon.serve())

    async def _poll_forever(self) -> None:
        while True:
            served_ports: list[ServedPort] = [*self._ports, *self._daemons]
            views = read_ports(served.port for served in served_ports)
            for served in served_ports:
                served.update(views[served.port], time.time())
            if self._daemons or any(served.unsettled for served in served_ports):
                # The connections of a daemon are not reported anywhere else.
                await asyncio.sleep(LOOK_SOON_S)
                continue
            self._begun.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._begun.wait()
            await asyncio.sleep(LOOK_SOON_S)


def is_test(reading: EngineResult) -> bool:
    """Return True if a client has started a test."""
    return reading.started_at_s is not None or any(reading.intervals.values())


def _since(since_s: float | None, now_s: float, holds: bool) -> float | None:
    """Return the time since when a condition has been true, or None if it is false."""
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _requested_s(reading: EngineResult) -> float | None:
    """Return the requested time of a test with its warm-up, or None if it is not known."""
    report = reading.report
    return None if report.duration_s is None else float(report.duration_s + (report.omit_s or 0))
