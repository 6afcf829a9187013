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
        ({"services": "http"}, "'http' is no service; write ENGINE=PORTS"),
        ({"services": "http=x"}, "'x' is no port or range"),
        ({"services": "smtp=25"}, "'smtp' is no service; there are ftp, http, https"),
        ({"services": "iperf3=9000"}, "iperf3's ports are BROADSIDE_AGENT_PORTS"),
        ({"services": "http=8080 ftp=8080"}, "port 8080 is named twice"),
        ({"services": "http=5201"}, "port 5201 is named twice"),
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


JOB = "r1.00000.00000"


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


async def test_requests_of_one_job_are_one_test(
    served: Served,
) -> None:
    # A foreign connection, before the burst.
    served.update(connected=True)
    for number in range(30):
        # Connections without keep-alive.
        served.update(connected=number % 2 == 0)
        served.request(JOB)
        served.reader.feed(b"1000000.000 1.000 200 9999 10.1.0.9 -", served.now_s)
        await served.save()
        assert served.port.busy and not served.port.free
    (partial,) = await served.saved_tests()
    assert partial.ended_at is None
    await served.save(after_s=2)
    (test,) = await served.saved_tests()
    assert (test.cookie, test.engine.totals[0].sent_bytes) == (JOB, 30_000)
    assert test.ended_at == at(served.now_s - 2)
    assert served.port.free


async def test_pause_does_not_split_a_test(served: Served) -> None:
    """Test a pause that is longer than any request. It can be caused by packet loss."""
    served.request(JOB)
    await served.save()
    await served.save(after_s=5)
    (first,) = await served.saved_tests()
    assert first.ended_at is not None
    served.request(JOB)
    await served.save()
    await served.save(after_s=5)
    (test,) = await served.saved_tests()
    assert test.started_at == first.started_at
    assert test.engine.totals[0].sent_bytes == 2000
    assert test.ended_at is not None and test.ended_at > first.ended_at


async def test_test_stays_open_during_a_long_transfer(served: Served) -> None:
    """Test a long transfer, which will not be in the log before it has ended."""
    served.request(JOB)
    for _ in range(16):
        served.update(connected=True)
        await served.save()
    (partial,) = await served.saved_tests()
    assert partial.ended_at is None
    # The transfer has ended, but its log line has not arrived.
    served.update(connected=False)
    await served.save()
    served.request(JOB, sent=9000, took_s=8)
    await served.save()
    served.update(connected=False, after_s=8)
    await served.save()
    (test,) = await served.saved_tests()
    assert (test.ended_at is not None, test.engine.totals[0].sent_bytes) == (True, 10_000)


async def test_endless_connection_does_not_keep_the_test_open(
    served: Served,
) -> None:
    served.request(JOB)
    for _ in range(60):
        served.update(connected=True)
        await served.save()
    (test,) = await served.saved_tests()
    assert test.ended_at is not None
    assert served.port.free


async def test_two_tests_at_once_are_two_records(served: Served) -> None:
    for job in (JOB, "r2.00000.00007"):
        served.request(job)
    await served.save(after_s=3)
    assert [test.cookie for test in await served.saved_tests()] == [JOB, "r2.00000.00007"]


async def test_request_without_known_time_is_stored_without_seconds(served: Served) -> None:
    served.request(JOB, took_s=3600)
    await served.save(after_s=3)
    (test,) = await served.saved_tests()
    assert [measure.name for measure in test.engine.measures][1] == "server_unplaced_count"
    assert test.first_data_at is None


async def test_daemon_exit_ends_its_tests(served: Served) -> None:
    served.request(JOB)
    await served.save(ended=True)
    (test,) = await served.saved_tests()
    assert test.ended_at is not None


async def test_cpu_time_is_counted_between_samples_around_the_test(
    served: Served,
) -> None:
    async def serve(job: str, before_s: float, at_end_s: float, *, stopped: bool) -> None:
        served.used_s = before_s
        served.update(connected=False)
        served.now_s += 1
        # Half a second will have passed at the next sample.
        served.used_s = before_s + 1.0
        served.request(job)
        served.update(connected=True)
        served.used_s = at_end_s
        if stopped:
            served.port.bind("10.1.1.2")
            # The process has ended.
            served.used_s = 0.0
        await served.save(after_s=5, ended=stopped)

    await serve("r1.00000.00000", 0.25, 3.25, stopped=False)
    served.update(connected=False)
    await serve("r2.00000.00000", 3.25, 7.75, stopped=True)
    assert [test.engine.cpu_s for test in await served.saved_tests()] == [3.0, 4.5]


async def test_cpu_time_excludes_an_earlier_foreign_download(served: Served) -> None:
    served.update(connected=False)
    served.update(connected=True)
    # CPU time used for the foreign download.
    served.used_s = 60.25
    served.update(connected=False, after_s=30)
    served.now_s += 1
    served.request(JOB)
    served.update(connected=True)
    served.used_s = 63.25
    await served.save(after_s=5)
    (test,) = await served.saved_tests()
    assert test.engine.cpu_s == 3.0


def at(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)


def test_unknown_engine_is_refused_by_name() -> None:
    for name in ("http", "trex"):
        installed = unknown_engine(name)
        assert installed.problem is not None
        assert installed.problem.startswith(f"{name}: this agent has no such engine")
