"""Tests for services on a server agent and their reported state."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pydantic import ValidationError

from broadside.agent.agent_settings import parse_services
from broadside.agent.attempt import Attempt
from broadside.agent.daemon import DaemonPort, service_states
from broadside.agent.installed_engines import InstalledEngine, unknown_engine
from broadside.agent.sockets import PortView
from broadside.exchange.engines import engines
from broadside.exchange.engines.port import DaemonReader, Tool
from broadside.exchange.messages import ServerTest
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.agent.jobs import make_settings

NGINX = {"nginx": Tool(argv=("/usr/sbin/nginx",), version="1.22.1")}


def test_services_are_ports_by_engine() -> None:
    assert parse_services("http=8080-8082 ftp=2121") == {"http": (8080, 8081, 8082), "ftp": (2121,)}
    assert parse_services("") == {}
    assert make_settings().services == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"services": "http"}, "'http' is not a service; use ENGINE=PORTS"),
        ({"services": "http=x"}, "'x' is not a port or a range"),
        ({"services": "smtp=25"}, "'smtp' is unknown; use one of connections, ftp, http, https"),
        ({"services": "iperf3=9000"}, "iperf3's ports are BROADSIDE_AGENT_PORTS"),
        ({"services": "http=8080 ftp=8080"}, "port 8080 is used twice"),
        ({"services": "http=5201"}, "port 5201 is used twice"),
        ({"services": "http=0"}, "greater than or equal to 1"),
        ({"certificate": "/c.pem"}, "set both certificate and certificate_key, or neither"),
    ],
)
def test_invalid_service_is_rejected_with_a_fix(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_settings(**settings)


def test_service_state_has_ports_problem_and_certificate() -> None:
    tools = make_tools(records_in(MemoryTable()))
    installed = InstalledEngine(engine=engines()["https"], tools=NGINX)
    ports = [DaemonPort(port=port, installed=installed, tools=tools) for port in (8443, 8444)]
    broken = DaemonPort(
        port=2121,
        installed=InstalledEngine(engine=engines()["ftp"], tools={}, problem="vsftpd: none here"),
        tools=tools,
        problem="vsftpd: none here; run make tools",
    )
    https, ftp = service_states([*ports, broken], certificate_is_generated=False)
    assert (https.name, https.version, https.ports) == ("https", "nginx 1.22.1", ())
    assert https.self_signed is True
    assert (ftp.problem, ftp.self_signed) == ("vsftpd: none here; run make tools", None)


def view(*, connected: bool) -> PortView:
    return PortView(listening=True, tcp_count=int(connected), left_count=0, udp_count=0)


class Daemon:
    """Daemon process to be used by a port."""

    def __init__(self) -> None:
        self.process = self
        self.pid = 77
        self.argv = ("nginx",)
        self.stopping = False
        self.over = None

    def stop(self, reason: str) -> None:
        self.stopping = True


class Served:
    """Port with nginx behind it, on a simulated clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000_000.0
        self.used_s = 0.25
        monkeypatch.setattr("broadside.agent.daemon.time.time", lambda: self.now_s)
        monkeypatch.setattr("broadside.agent.daemon.group_cpu_s", lambda _: self.used_s)
        self.records = records_in(MemoryTable())
        self.port = DaemonPort(
            port=8080,
            installed=InstalledEngine(engine=engines()["http"], tools=NGINX),
            tools=make_tools(self.records),
        )
        self.daemon = cast(Attempt, Daemon())
        self.reader = cast(DaemonReader, engines()["http"].server_reader())
        self.port._attempt, self.port._reader = self.daemon, self.reader

    def update(self, *, connected: bool, after_s: float = 0.5) -> None:
        self.now_s += after_s
        self.port.update(view(connected=connected), self.now_s)

    def request(self, job: str, sent: int = 1000, took_s: float = 0.1) -> None:
        line = f"{self.now_s:.3f} {took_s:.3f} 200 {sent} 10.9.0.1 {job}.10"
        self.reader.feed(line.encode(), self.now_s)

    async def save(self, after_s: float = 0.0, *, ended: bool = False) -> None:
        self.now_s += after_s
        await self.port._save_tests(self.daemon, self.reader, ended=ended)

    async def saved_tests(self) -> list[ServerTest]:
        stream = self.records.bursts.stream_tests(at(self.now_s - 3600), at(self.now_s))
        return [test async for test, _ in stream]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(monkeypatch)


def test_port_without_daemon_is_neither_free_nor_busy() -> None:
    port = DaemonPort(
        port=8080,
        installed=InstalledEngine(engine=engines()["http"], tools=NGINX),
        tools=make_tools(records_in(MemoryTable())),
    )
    port.update(view(connected=True), 100.0)
    assert (port.free, port.busy) == (False, False)


async def test_foreign_connections_do_not_start_a_test(served: Served) -> None:
    """Test health checks, a foreign download and a connection to be open for a day."""
    for _ in range(20):
        served.update(connected=True)
        await served.save()
        assert served.port.free and not served.port.busy
    assert await served.saved_tests() == []


def at(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)


def test_unknown_engine_is_refused_by_name() -> None:
    for name in ("http", "trex"):
        installed = unknown_engine(name)
        assert installed.problem is not None
        assert installed.problem.startswith(f"{name}: this agent does not have this engine")
