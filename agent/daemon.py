"""A service on one port of a server agent: nginx, an FTP daemon; and each of its tests on record.

Unlike an iperf3 server a daemon serves until it is stopped, and does not know what a test is. Here
a *session* is: from the first connection on its port, by the kernel's socket tables, until nobody
has been connected for :data:`IDLE_S`. Its record is joined to a pair by endpoint and time.
"""

import asyncio
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.attempt import Attempt, known_until_s
from broadside.agent.cpu import group_cpu_s, with_cpu
from broadside.agent.engine_process import EngineUnusable, least_privileged
from broadside.agent.served_port import HEALTHY_S, ServedPort
from broadside.agent.side_tasks import safely
from broadside.agent.sockets import PortView
from broadside.agent.workspace import Workspace
from broadside.exchange.engines.port import (
    Certificate,
    DaemonReader,
    File,
    Launch,
    ServerAsk,
    Unsupported,
    word,
)
from broadside.exchange.messages import ClockReading, EngineState

_DAYS: Final = 30  # a self-signed one is made anew at every start of a service
_TIMEOUT_S: Final = 30.0


class NoCertificate(Exception):
    """There is none to show; says why, and the fix."""


def place_certificate(settings: AgentSettings, address: str, workspace: Workspace) -> Certificate:
    """Put certificate and key into a service's folder, readable by it alone.

    Blocking, some tens of milliseconds. Raises :class:`NoCertificate`, ``OSError``.
    """
    if settings.certificate is not None and settings.certificate_key is not None:
        certificate, key = _given(settings.certificate), _given(settings.certificate_key)
    else:
        certificate, key = _self_signed(address)
    files = {"certificate.pem": certificate, "key.pem": key}
    workspace.fill(File(name=name, text=text) for name, text in files.items())
    paths = [str(workspace.path / name) for name in files]
    return Certificate(certificate=paths[0], key=paths[1])


def _given(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NoCertificate(
            f"certificate: {path}: {error.strerror}; mend BROADSIDE_AGENT_CERTIFICATE or its _KEY"
        ) from error


def _self_signed(address: str) -> tuple[str, str]:
    """A new certificate for an address and its key, both PEM."""
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    argv += ["-noenc", "-days", str(_DAYS), "-subj", "/CN=broadside"]
    name = f"subjectAltName=IP:{word(address, 'address')}"
    argv += ["-addext", name, "-keyout", "-", "-out", "-"]
    try:
        made = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCertificate(
            f"certificate: none is set, and openssl made none ({error}); install openssl, or set "
            "BROADSIDE_AGENT_CERTIFICATE and BROADSIDE_AGENT_CERTIFICATE_KEY"
        ) from error
    at = made.index("-----BEGIN CERTIFICATE-----")
    return made[at:], made[:at]


IDLE_S: Final = 2.0  # s without a connection after which a session is over
TICK_S: Final = 0.5  # s between looks at a session
PRIVILEGED_PORTS: Final = 1024  # below it, unless the kernel is told otherwise


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
class DaemonPort(ServedPort):
    """Keeps one port served by one engine's daemon."""

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
    def listening(self) -> bool:
        return self._listening

    def _see(self, view: PortView, now_s: float) -> None:
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

    # One daemon -------------------------------------------------------------------------------

    async def _serve_once(self) -> bool:
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
        try:
            exit_ = await self._until_over(attempt)
            await self._close(attempt, reader)
        finally:
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
                await self._save_session(attempt, session, ended_s=None)

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
        await self._save_session(
            attempt, session, ended_s=reader.last_at_s or session.connected_s, cpu_s=cpu_s
        )
        reader.close()

    async def _save_session(
        self,
        attempt: Attempt,
        session: Session,
        *,
        ended_s: float | None,
        cpu_s: float | None = None,
    ) -> None:
        """``cpu_s`` is unknown of a daemon that ended by itself."""
        reading = attempt.read()
        if not reading.intervals:
            return  # somebody connected and asked for nothing
        report = reading.report
        if ended_s is not None:
            cost_s = None if cpu_s is None else max(0.0, cpu_s - session.cpu_before_s)
            report = with_cpu(reading, cost_s)
        save = self._save(
            reading,
            report,
            started_s=min(session.started_s, reading.first_data_at_s or session.started_s),
            ended_s=ended_s,
            clock_before=session.clock_before,
            from_s=session.sent_s,
        )
        await safely(save, "upload", {"port": self.port})
        session.sent_s = known_until_s(reading)


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
