"""Services of a server agent that run until they are stopped, such as nginx or an FTP daemon.

Unlike an iperf3 server, a daemon serves any client and does not know about tests. We use its log
instead, where each request of a test has the token of the job (see
:mod:`broadside.exchange.engines.served_log`). The kernel's socket tables only show if the port is
listening and if it is free.
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
from broadside.agent.attempt import Attempt, AttemptLimits, known_until_s
from broadside.agent.cpu import group_cpu_s, with_cpu
from broadside.agent.engine_process import (
    EngineUnusable,
    ProcessExit,
    ProcessSetup,
    least_privileged,
)
from broadside.agent.gate import find_bodies
from broadside.agent.service_port import HEALTHY_S, ServedPort, ServedSpan
from broadside.agent.side_tasks import safely
from broadside.agent.sockets import PortView
from broadside.agent.workspace import Workspace
from broadside.exchange.engines.port import (
    Certificate,
    DaemonReader,
    DaemonTest,
    EngineFile,
    Launch,
    ServerRequest,
    Unsupported,
    validate_argument,
)
from broadside.exchange.messages import ClockReading, EngineState
from broadside.exchange.programs import program_environment

# Days for which a self-signed certificate is valid. A new one is made when a service starts.
_DAYS: Final = 30
_TIMEOUT_S: Final = 30.0


class NoCertificate(Exception):
    """There is no certificate to use. The message has the reason and the fix."""


def place_certificate(settings: AgentSettings, address: str, workspace: Workspace) -> Certificate:
    """Put certificate and key into the folder of a service, where only the service can open them.

    This call can block for some tens of milliseconds.

    Args:
        settings: Settings with the certificate to use, if any.
        address: IP address of the service, for a self-signed certificate.
        workspace: Folder of the service.

    Returns:
        The paths of both files.

    Raises:
        NoCertificate: The files cannot be loaded, or ``openssl`` failed.
        OSError: The files cannot be written.
    """
    if settings.certificate is not None and settings.certificate_key is not None:
        certificate, key = _given(settings.certificate), _given(settings.certificate_key)
    else:
        certificate, key = _self_signed(address)
    files = {"certificate.pem": certificate, "key.pem": key}
    workspace.fill(EngineFile(name=name, text=text) for name, text in files.items())
    paths = [str(workspace.path / name) for name in files]
    return Certificate(certificate=paths[0], key=paths[1])


def _given(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NoCertificate(
            f"certificate: {path}: {error.strerror}; check "
            "or set BROADSIDE_AGENT_CERTIFICATE and BROADSIDE_AGENT_CERTIFICATE_KEY"
        ) from error


def _self_signed(address: str) -> tuple[str, str]:
    """Create a certificate for an address and return it with its key, both as PEM."""
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    argv += ["-noenc", "-days", str(_DAYS), "-subj", "/CN=broadside"]
    name = f"subjectAltName=IP:{validate_argument(address, 'address')}"
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
            f"certificate: not set, and openssl could not create one ({error}); install openssl, "
            "or set BROADSIDE_AGENT_CERTIFICATE and BROADSIDE_AGENT_CERTIFICATE_KEY"
        ) from error
    at = made.index("-----BEGIN CERTIFICATE-----")
    return made[at:], made[:at]


# Seconds to wait between two checks of the tests.
TICK_S: Final = 0.5
# Seconds after its planned end at which a stuck client is ignored.
LATE_S: Final = 10.0
# Seconds between samples of the CPU time while other clients are connected.
CPU_SAMPLE_S: Final = 5.0
CPU_SAMPLES_COUNT: Final = 64
# Seconds to add to the key of a test if another test has the same key.
KEY_STEP_S: Final = 0.001
# Lower ports need privileges, unless the kernel is configured in a different way.
PRIVILEGED_PORTS: Final = 1024


@dataclass(slots=True, kw_only=True)
class SavedTest:
    """State of the records that have been written for a test. All times are Unix timestamps.

    Attributes:
        started_s: Start of the test, used in the key of the record. None if no record has been
            written.
        last_data_s: Time of the last line of the log that has been recorded.
        uploaded_s: Time of the last upload.
        sent_s: Engine time in seconds up to which data has been recorded.
        over: True if the whole test has been recorded, as far as the log is complete.
        clock_before: Clock reading taken when the test was first seen.
    """

    started_s: float | None = None
    last_data_s: float = 0.0
    uploaded_s: float = 0.0
    sent_s: float = 0.0
    over: bool = False
    clock_before: ClockReading | None = None


@dataclass(slots=True, kw_only=True)
class DaemonPort(ServedPort):
    """Port that is served by the daemon of an engine.

    Attributes:
        tls: TLS version and cipher suite that the port enforces, or an empty string.
    """

    tls: str = ""
    # Parser for the log of the daemon that is running.
    _reader: DaemonReader | None = None
    # Records by cookie of the test.
    _saved: dict[str, SavedTest] = field(default_factory=dict)
    _listening: bool = False
    _connected: bool = False
    # Unix timestamp at which a client was last connected, or had just disconnected.
    _connected_s: float = 0.0
    # CPU time of the daemon between tests, as pairs of Unix timestamp and seconds.
    _cpu: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=CPU_SAMPLES_COUNT)
    )
    # CPU time when the daemon was stopped. It cannot be measured after that.
    _stop_cpu_s: float | None = None

    @property
    def busy(self) -> bool:
        """True if a test is running. Connections that do not belong to a test are ignored."""
        tests = () if self._reader is None else self._reader.tests.values()
        now_s = time.time()
        return any(not self._is_quiet(test, now_s) for test in tests)

    def _is_quiet(self, test: DaemonTest, now_s: float) -> bool:
        """Return True if a test can be treated as done.

        A log shows a transfer when it ends, so one might be running as long as a client is
        connected. Other clients that stay connected can delay the end, but not past the time of the
        test itself.
        """
        connected_s = min(self._connected_s, test.until_s + LATE_S)
        return now_s - max(test.last_data_s, connected_s) >= test.quiet_s

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
                launch.processes[0],
                reader,
                AttemptLimits(raw_max_bytes=0),
                setup=ProcessSetup(identity=workspace.identity),
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
        keeper = asyncio.create_task(self._collect(attempt, reader))
        try:
            exit_ = await self._until_over(attempt)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            attempt.poll(launch.processes[0].watches)
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
            self._set_problem(self._early_end(exit_))
            return False
        self._set_problem(None)
        return True

    def _early_end(self, exit_: ProcessExit) -> str:
        """Return the problem of a service that ended soon after it was started."""
        error_lines = exit_.stderr.strip().splitlines()
        fix = (
            "it runs as the user nobody: lower net.ipv4.ip_unprivileged_port_start, or use a "
            "port from that number upwards"
            if self.port < PRIVILEGED_PORTS
            else "free the port, or set BROADSIDE_AGENT_SERVICES"
        )
        return (
            f"port {self.port}: {self.installed.engine.name} ended at once"
            f"{': ' + error_lines[-1] if error_lines else ''}; {fix}"
        )

    def _stop(self, attempt: Attempt, reason: str) -> None:
        """Stop the daemon, after getting the CPU time for the session that might be running."""
        if attempt.over is None and not attempt.process.stopping:
            self._stop_cpu_s = group_cpu_s(attempt.process.pid)
        attempt.process.stop(reason)

    def _prepare(self, workspace: Workspace) -> Launch:
        """Create all files for the daemon and return its command line. This call can block.

        Raises:
            Unsupported: The engine cannot be used.
            NoCertificate: There is no certificate to use.
            OSError: A file cannot be written.
        """
        settings, engine = self.tools.settings, self.installed.engine
        if self.installed.problem is not None:
            raise Unsupported(self.installed.problem)
        ask = ServerRequest(
            port=self.port,
            address=self.address or self.tools.host.address,
            tools=self.installed.tools,
            folder=str(workspace.path),
            duration_max_s=settings.duration_max_s,
            bodies=find_bodies(),
            tls=self.tls,
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

    async def _collect(self, attempt: Attempt, reader: DaemonReader) -> None:
        """Save new data of all tests, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            await self._save_tests(attempt, reader, ended=False)

    async def _save_tests(self, attempt: Attempt, reader: DaemonReader, *, ended: bool) -> None:
        """Save all new data of each test. ``ended`` is True if the daemon has ended."""
        for gone in self._saved.keys() - reader.tests.keys():
            del self._saved[gone]
        for cookie, test in list(reader.tests.items()):
            saved = self._saved.setdefault(cookie, SavedTest())
            if saved.clock_before is None:
                saved.clock_before = await self._read_clock()
            now_s = time.time()
            is_new = test.last_data_s > saved.last_data_s
            over = ended or self._is_quiet(test, now_s)
            due = now_s - saved.uploaded_s >= self.tools.settings.upload_s
            if test.is_reported and ((over and not saved.over) or (is_new and (over or due))):
                await self._save_one(attempt, test, saved, over=over)

    async def _save_one(
        self, attempt: Attempt, test: DaemonTest, saved: SavedTest, *, over: bool
    ) -> None:
        """Save the data of a test so far, or the whole test if it is over."""
        saved.last_data_s, saved.uploaded_s, saved.over = test.last_data_s, time.time(), over
        reading = test.finish()
        first_s = reading.first_data_at_s
        if saved.started_s is None:
            saved.started_s = self._key_s(test.opened_s if first_s is None else first_s)
        cpu_s = self._cpu_s(attempt, saved.started_s) if over else None
        report = with_cpu(reading, cpu_s).model_copy(update={"argv": attempt.argv})
        save = self._save(
            reading,
            report,
            ServedSpan(
                started_s=saved.started_s,
                ended_s=(test.last_at_s or test.last_data_s) if over else None,
                clock_before=saved.clock_before,
            ),
            from_s=0.0 if over else saved.sent_s,
        )
        await safely(save, "upload", {"port": self.port})
        saved.sent_s = known_until_s(reading)
        if over:
            self.tools.changed.set()

    def _key_s(self, began_s: float) -> float:
        """Return a start time for the key of a test, which is unique for this port."""
        taken = {saved.started_s for saved in self._saved.values()}
        while began_s in taken:
            began_s += KEY_STEP_S
        return began_s

    def _cpu_s(self, attempt: Attempt, since_s: float) -> float | None:
        """Return the CPU time used since a Unix timestamp.

        None if the daemon has ended by itself, because its CPU time is not available then.
        """
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


def service_states(
    ports: Sequence[DaemonPort], *, certificate_is_generated: bool
) -> list[EngineState]:
    """Return the state of each service, to be used in the presence.

    Versions before 1.1 use the first state of an engine, so those that enforce TLS are last.

    Args:
        ports: Ports of all engines.
        certificate_is_generated: True if the operator has set a certificate.
    """
    by_service: dict[tuple[str, str], list[DaemonPort]] = {}
    for served in sorted(ports, key=lambda served: served.tls != ""):
        by_service.setdefault((served.installed.engine.name, served.tls), []).append(served)
    states = []
    for (_, tls), served_ports in by_service.items():
        installed = served_ports[0].installed
        problems = [served.problem for served in served_ports if served.problem is not None]
        working = any(served.free or served.busy for served in served_ports)
        states.append(
            installed.state.model_copy(
                update={
                    "tls": tls,
                    "ports": tuple(served.port for served in served_ports if served.free),
                    "problem": None if working or not problems else problems[0][:300],
                    "self_signed": not certificate_is_generated
                    if installed.engine.needs_certificate
                    else None,
                }
            )
        )
    return states
