"""A service on one port of a server agent: nginx, an FTP daemon; and each of its tests on record.

Unlike an iperf3 server a daemon serves anybody until it is stopped, and does not know what a test
is. Its own log does: each request of a test carries the token of its job
(:mod:`broadside.exchange.engines.served_log`). The kernel's socket tables say only whether the port
listens and whether it is free.
"""

import asyncio
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
    DaemonTest,
    File,
    Launch,
    ServerAsk,
    Unsupported,
    word,
)
from broadside.exchange.messages import ClockReading, EngineState
from broadside.exchange.programs import program_environment

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
            argv,
            env=program_environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCertificate(
            f"certificate: none is set, and openssl made none ({error}); install openssl, or set "
            "BROADSIDE_AGENT_CERTIFICATE and BROADSIDE_AGENT_CERTIFICATE_KEY"
        ) from error
    at = made.index("-----BEGIN CERTIFICATE-----")
    return made[at:], made[:at]


TICK_S: Final = 0.5  # s between looks at the tests
LATE_S: Final = 10.0  # s past its planned end at which a stuck client is ended
CPU_SAMPLE_S: Final = 5.0  # s between readings of the CPU time while strangers are connected
CPU_SAMPLES_COUNT: Final = 64
KEY_STEP_S: Final = 0.001  # s between the keys of two tests that began at one instant
PRIVILEGED_PORTS: Final = 1024  # below it, unless the kernel is told otherwise


@dataclass(slots=True, kw_only=True)
class SavedTest:
    """What is on record of one test. All times are epoch seconds."""

    started_s: float | None = None  # part of the record's key; None: nothing is on record
    heard_s: float = 0.0  # of the log's last line that is on record
    uploaded_s: float = 0.0
    sent_s: float = 0.0  # engine seconds that are on record
    over: bool = False  # the whole test is on record, as far as the log tells
    clock_before: ClockReading | None = None


@dataclass(slots=True, kw_only=True)
class DaemonPort(ServedPort):
    """Keeps one port served by one engine's daemon."""

    _reader: DaemonReader | None = None  # of the daemon that runs
    _saved: dict[str, SavedTest] = field(default_factory=dict)  # by cookie
    _listening: bool = False
    _connected: bool = False
    _connected_s: float = 0.0  # epoch s at which somebody was last seen connected, or had just left
    # CPU time of the daemon between tests: epoch s, s.
    _cpu: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=CPU_SAMPLES_COUNT)
    )
    _stop_cpu_s: float | None = None  # when it was told to end: afterwards nothing shows it

    @property
    def busy(self) -> bool:
        """A test is under way. Connections that belong to none leave the port free."""
        tests = () if self._reader is None else self._reader.tests.values()
        now_s = time.time()
        return any(not self._is_quiet(test, now_s) for test in tests)

    def _is_quiet(self, test: DaemonTest, now_s: float) -> bool:
        """Return whether a test counts as over.

        A log tells of a transfer at its end: while somebody is connected, one may be under way.
        Strangers who stay connected can hold a test open until its own time is over.
        """
        connected_s = min(self._connected_s, test.until_s + LATE_S)
        return now_s - max(test.heard_s, connected_s) >= test.quiet_s

    @property
    def listening(self) -> bool:
        return self._listening

    def _see(self, view: PortView, now_s: float) -> None:
        was_connected, self._connected = self._connected, view.connected
        if view.connected or was_connected:
            self._connected_s = now_s
        self._listening = view.listening
        if self._attempt is None or not view.listening or self.busy:
            return
        changed = not self._cpu or view.connected != was_connected
        due = view.connected and self._cpu and now_s - self._cpu[-1][0] >= CPU_SAMPLE_S
        if changed or due:
            self._cpu.append((now_s, group_cpu_s(self._attempt.process.pid)))

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
        self._attempt, self._reader = attempt, reader
        self._saved.clear()
        self._cpu.clear()
        self._stop_cpu_s = None
        self.tools.changed.set()
        keeper = asyncio.create_task(self._keep(attempt, reader))
        try:
            exit_ = await self._until_over(attempt)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            attempt.look(launch.processes[0].watches)
            await self._save_tests(attempt, reader, ended=True)
        finally:
            keeper.cancel()
            attempt.exit.cancel()
            await asyncio.wait({attempt.exit})
            self._attempt = self._reader = None
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

    async def _keep(self, attempt: Attempt, reader: DaemonReader) -> None:
        """Keep the record of test after test."""
        while True:
            await asyncio.sleep(TICK_S)
            await self._save_tests(attempt, reader, ended=False)

    async def _save_tests(self, attempt: Attempt, reader: DaemonReader, *, ended: bool) -> None:
        """Write what is new of every test; ``ended``: the daemon is."""
        for gone in self._saved.keys() - reader.tests.keys():
            del self._saved[gone]
        for cookie, test in list(reader.tests.items()):
            saved = self._saved.setdefault(cookie, SavedTest())
            if saved.clock_before is None:
                saved.clock_before = await self._read_clock()
            now_s = time.time()
            is_new = test.heard_s > saved.heard_s
            over = ended or self._is_quiet(test, now_s)
            due = now_s - saved.uploaded_s >= self.tools.settings.upload_s
            if test.is_told and ((over and not saved.over) or (is_new and (over or due))):
                await self._save_one(attempt, test, saved, over=over)

    async def _save_one(
        self, attempt: Attempt, test: DaemonTest, saved: SavedTest, *, over: bool
    ) -> None:
        """Write one test so far, or whole."""
        saved.heard_s, saved.uploaded_s, saved.over = test.heard_s, time.time(), over
        reading = test.finish()
        first_s = reading.first_data_at_s
        if saved.started_s is None:
            saved.started_s = self._key_s(test.opened_s if first_s is None else first_s)
        cpu_s = self._cpu_s(attempt, saved.started_s) if over else None
        report = with_cpu(reading, cpu_s).model_copy(update={"argv": attempt.argv})
        save = self._save(
            reading,
            report,
            started_s=saved.started_s,
            ended_s=(test.last_at_s or test.heard_s) if over else None,
            clock_before=saved.clock_before,
            from_s=0.0 if over else saved.sent_s,
        )
        await safely(save, "upload", {"port": self.port})
        saved.sent_s = known_until_s(reading)
        if over:
            self.tools.changed.set()

    def _key_s(self, began_s: float) -> float:
        """Return the instant under which a test is on record; no two of a port have the same."""
        taken = {saved.started_s for saved in self._saved.values()}
        while began_s in taken:
            began_s += KEY_STEP_S
        return began_s

    def _cpu_s(self, attempt: Attempt, since_s: float) -> float | None:
        """Return the CPU time that the daemon has used since; None: it ended by itself."""
        running = attempt.over is None and not attempt.process.stopping
        now_s = group_cpu_s(attempt.process.pid) if running else self._stop_cpu_s
        if now_s is None:
            return None
        before = [cpu_s for at_s, cpu_s in self._cpu if at_s <= since_s]
        first_s = self._cpu[0][1] if self._cpu else 0.0
        used_s = now_s - (before[-1] if before else first_s)
        if running:
            self._cpu.append((time.time(), now_s))
        return max(0.0, used_s)


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
