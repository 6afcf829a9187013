"""The server agent: an ``iperf3 -s -1`` on every endpoint port, and each of its tests on record.

A server serves one test and exits; its successor listens within milliseconds. Every few seconds the
kernel's socket tables are read, which tell what no process says of itself: whether it listens,
whether a client is connected, and so whether it is free, busy, or stuck. Reading them costs the
kernel milliseconds, so a server that was seen to listen, or said that a test started, can wait.
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
from broadside.agent.attempt import Attempt, known_until_s
from broadside.agent.daemon import DaemonPort, service_states
from broadside.agent.engine_process import EngineUnusable, Exit
from broadside.agent.gate import find_gate, serving_env
from broadside.agent.installed_engines import find_installed_engines
from broadside.agent.presence import Condition
from broadside.agent.probe import Echo
from broadside.agent.served_port import HEALTHY_S, ServedPort
from broadside.agent.side_tasks import safely
from broadside.agent.sockets import PortView, read_ports
from broadside.agent.tunnels import TunnelKeeper
from broadside.exchange.background import keep_going
from broadside.exchange.engines.port import Event, Reading, ServerAsk, Started
from broadside.exchange.messages import DEFAULT_ENGINE, ClockReading, Role, ServerTest

LOOK_S: Final = 5.0  # s between looks at the socket tables
LOOK_SOON_S: Final = 0.5  # s between them while a new server is not seen to listen yet
YOUNG_S: Final = 0.4  # s by which a server that cannot have its port is gone: until then, whoever
# listens there may be somebody else
DEAF_S: Final = 5.0  # s after its start by which a server must listen
SILENT_S: Final = 15.0  # s that a client may be connected without its streams
OVERDUE_S: Final = 13.0  # s that a test may last beyond what was asked: its client has 12


@dataclass(slots=True, kw_only=True)
class ServedTest:
    """One server process from its start, as seen from outside."""

    spawned_at_s: float  # epoch s, as all here
    seen_listening: bool = False
    connected_at_s: float | None = None  # a client has been connected since
    left_at_s: float | None = None  # every client has been gone since, by the kernel's account
    started_at_s: float | None = None  # the engine said that a test started
    asked_s: float | None = None  # how long that test is to take, warm-up included
    replaced: bool = False  # it was found stuck and is being ended

    @property
    def busy(self) -> bool:
        """A test is in progress, or a client connected."""
        return self.started_at_s is not None or self.connected_at_s is not None

    def see(self, view: PortView, now_s: float) -> None:
        """Take in what the socket tables show of its port."""
        self.seen_listening = view.listening and now_s - self.spawned_at_s >= YOUNG_S
        self.connected_at_s = _since(self.connected_at_s, now_s, view.connected)
        self.left_at_s = _since(self.left_at_s, now_s, view.connected and not view.tcp_count)

    def stuck_reason(self, view: PortView, now_s: float, *, duration_max_s: float) -> str | None:
        """Why this server should be replaced, or None.

        ``duration_max_s`` bounds a test of which the engine says nothing until it is over.
        """
        busy_since_s = self.connected_at_s if self.started_at_s is None else self.started_at_s
        if busy_since_s is not None:
            asked_s = duration_max_s if self.asked_s is None else self.asked_s
            if now_s - busy_since_s > asked_s + OVERDUE_S:
                return f"a test of {asked_s:g} s is not over after {now_s - busy_since_s:.0f} s"
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
    """Keeps one port served by a process a test."""

    begun: asyncio.Event  # set when a new server wants to be looked at
    _served: ServedTest | None = None
    _noticed: asyncio.Event = field(default_factory=asyncio.Event)  # of this served: a client

    @property
    def busy(self) -> bool:
        """A test is in progress, or a client connected."""
        return self._served is not None and self._served.busy

    @property
    def listening(self) -> bool:
        return self._served is not None and self._served.seen_listening

    @property
    def _gate(self) -> Path | None:
        """The library that says when a server's clock starts; None where it cannot be loaded."""
        return find_gate() if self.tools.engine.preloadable else None

    def _see(self, view: PortView, now_s: float) -> None:
        """A stuck server is ended, so that it is replaced."""
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

    # One served ------------------------------------------------------------------------------

    async def _serve_once(self) -> bool:
        installed, own = self.installed, self.tools.settings.address
        (process,) = installed.engine.server(
            ServerAsk(
                port=self.port,
                address=self.address or (str(own) if own else None),
                tools=installed.tools,
                folder="",  # it needs none
                duration_max_s=self.tools.settings.duration_max_s,
            )
        ).processes
        served = ServedTest(spawned_at_s=time.time())
        noticed = self._noticed = asyncio.Event()

        def take(event: Event, at_s: float) -> None:
            if isinstance(event, Started):
                served.started_at_s = at_s
                noticed.set()
                self.tools.changed.set()

        try:
            attempt = await Attempt.spawn(
                process,
                installed.engine.server_reader(),
                on_event=take,
                raw_max_bytes=self.tools.settings.raw_max_bytes,
                env=None if self._gate is None else serving_env(self._gate),
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

    def _judge(self, reading: Reading, exit_: Exit) -> bool:
        """Whether a served that is over did its work, or failed to start."""
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
        """Write one served's test, if there is one, while it runs and when it is over."""
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
                served.asked_s = _asked_s(reading)
                save = self._save_test(reading, served, clock_before=clock, from_s=sent_s)
                await safely(save, "upload", context)
                sent_s = known_until_s(reading)
            await asyncio.wait({attempt.exit}, timeout=self.tools.settings.upload_s)
        reading = attempt.read()
        if is_test(reading):
            self._log(logging.INFO, "test", reading.report.error or "test served")
            whole = self._save_whole(attempt, reading, served, clock)
            await safely(whole, "upload", context)

    async def _save_whole(
        self, attempt: Attempt, reading: Reading, served: ServedTest, clock: ClockReading | None
    ) -> None:
        """Write a test that is over, and what its engine printed where that is kept."""
        exit_ = attempt.over
        test = await self._save_test(reading, served, clock_before=clock, exit_=exit_)
        ended_well = exit_ is not None and not exit_.exit_code and exit_.stopped is None
        failed = test.engine.error is not None or not ended_well
        if self.tools.settings.raw.keeps(failed=failed):
            await self.tools.results.save_server_raw(test, attempt.transcript.packed())

    async def _save_test(
        self,
        reading: Reading,
        served: ServedTest,
        *,
        clock_before: ClockReading | None,
        exit_: Exit | None = None,
        from_s: float = 0.0,
    ) -> ServerTest:
        if served.started_at_s is None:  # an engine that speaks only at its end
            # Its stamp may be of whole seconds; two tests of one port need two keys.
            served.started_at_s = max(reading.started_at_s or 0.0, served.spawned_at_s)
        return await self._save(
            reading,
            reading.report,
            started_s=served.started_at_s,
            ended_s=exit_.ended_at_s if exit_ else None,
            clock_before=clock_before,
            from_s=from_s,
        )


class Supervisor:
    """One server agent: all its ports."""

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
        self._daemons: list[DaemonPort] = []  # once their programs were looked for

    def condition(self) -> Condition:
        free = tuple(served.port for served in self._ports if served.free)
        busy = tuple(served.port for served in self._ports if served.busy)
        problems = [served.problem for served in self._ports if served.problem is not None]
        return Condition(
            busy=bool(busy) or any(daemon.busy for daemon in self._daemons),
            engine=self._tools.engine,
            ports=free,
            busy_ports=busy,
            # One port that works makes the agent useful, and a problem would rule it out.
            problem="; ".join(problems[:3]) if problems and not free and not busy else None,
            engines=tuple(service_states(self._daemons, own_certificate=self._has_certificate)),
            echo_port=self._echo.port if self._echo else None,
            tunnels=self._tools.tunnels,
        )

    @property
    def _has_certificate(self) -> bool:
        return self._tools.settings.certificate is not None

    async def run(self) -> None:
        """Serve every port until the agent is stopping."""
        self._echo = await Echo.open(self._tools.settings, self._tools.host.address)
        background = [asyncio.create_task(keep_going(self._look_forever))]
        if self._tools.tunnels:
            keeper = TunnelKeeper(tools=self._tools, bind=self._bind)
            background.append(asyncio.create_task(keep_going(keeper.keep_forever)))
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

    def _bind(self, ports: Sequence[int], address: str | None) -> None:
        """Have the servers of some ports listen at a tunnel's inner address, or as usual."""
        served_ports: list[ServedPort] = [*self._ports, *self._daemons]
        for served in served_ports:
            if served.port in ports:
                served.bind(address)

    async def _open_services(self, serving: asyncio.TaskGroup) -> None:
        """Look for the other engines' programs, off the loop, and serve what was asked of them."""
        services = self._tools.settings.services
        if not services:
            return
        installed_engines = await asyncio.to_thread(find_installed_engines, Role.SERVER, services)
        self._daemons = [
            DaemonPort(port=port, installed=installed_engines[name], tools=self._tools)
            for name, ports in services.items()
            for port in ports
        ]
        for daemon in self._daemons:
            serving.create_task(daemon.serve())

    async def _look_forever(self) -> None:
        while True:
            served_ports: list[ServedPort] = [*self._ports, *self._daemons]
            views = read_ports(served.port for served in served_ports)
            for served in served_ports:
                served.look(views[served.port], time.time())
            if self._daemons or any(served.unsettled for served in served_ports):
                await asyncio.sleep(LOOK_SOON_S)  # a daemon's sessions show nowhere else
                continue
            self._begun.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._begun.wait()
            await asyncio.sleep(LOOK_SOON_S)


def is_test(reading: Reading) -> bool:
    """Whether a client got as far as starting a test."""
    return reading.started_at_s is not None or any(reading.intervals.values())


def _since(since_s: float | None, now_s: float, holds: bool) -> float | None:
    """Since when something holds that held since ``since_s``, if it still does."""
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _asked_s(reading: Reading) -> float | None:
    """How long the test is to take by the engine's word, warm-up included."""
    report = reading.report
    return None if report.duration_s is None else float(report.duration_s + (report.omit_s or 0))
