"""Which services a server agent is told to run, and what it says of them."""

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
from broadside.exchange.engines.port import DaemonReader, Reading, Tool
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.agent.jobs import make_reading, make_settings

NGINX = {"nginx": Tool(argv=("/usr/sbin/nginx",), version="1.22.1")}


def test_services_are_ports_by_engine() -> None:
    assert parse_services("http=8080-8082 ftp=2121") == {"http": (8080, 8081, 8082), "ftp": (2121,)}
    assert parse_services("") == {}
    assert make_settings().services == {}


@pytest.mark.parametrize(
    ("settings", "said"),
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
def test_a_wrong_service_says_what_would_be_right(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make_settings(**settings)


def test_a_presence_tells_free_ports_problems_and_whose_certificate() -> None:
    tools = make_tools(records_in(MemoryTable()))
    installed = InstalledEngine(engine=engines()["https"], tools=NGINX)
    ports = [DaemonPort(port=port, installed=installed, tools=tools) for port in (8443, 8444)]
    broken = DaemonPort(
        port=2121,
        installed=InstalledEngine(engine=engines()["ftp"], tools={}, problem="vsftpd: none here"),
        tools=tools,
        problem="vsftpd: none here; run make tools",
    )
    https, ftp = service_states([*ports, broken], own_certificate=False)
    assert (https.name, https.version, https.ports) == ("https", "nginx 1.22.1", ())
    assert https.self_signed is True
    assert (ftp.problem, ftp.self_signed) == ("vsftpd: none here; run make tools", None)


def test_connections_without_a_daemon_of_ours_are_nobodys_session() -> None:
    port = DaemonPort(
        port=8080,
        installed=InstalledEngine(engine=engines()["http"], tools=NGINX),
        tools=make_tools(records_in(MemoryTable())),
    )
    port.look(PortView(listening=True, tcp_count=3, left_count=0, udp_count=0), 100.0)
    assert (port.free, port.busy) == (False, False)


class Daemon:
    """What a port knows of its daemon's process."""

    def __init__(self) -> None:
        self.process = self
        self.pid = 77
        self.stopping = False
        self.over = None

    def stop(self, reason: str) -> None:
        self.stopping = True

    def read(self) -> Reading:
        return make_reading()


async def test_a_session_costs_from_the_last_idle_look_to_the_last_before_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used_s = 0.25
    monkeypatch.setattr("broadside.agent.daemon.group_cpu_s", lambda _: used_s)
    records = records_in(MemoryTable())
    port = DaemonPort(
        port=8080,
        installed=InstalledEngine(engine=engines()["http"], tools=NGINX),
        tools=make_tools(records),
    )
    daemon = Daemon()
    port._attempt = cast(Attempt, daemon)
    reader = cast(DaemonReader, engines()["http"].server_reader())

    async def session(at_s: float, before_s: float, at_end_s: float, *, stopped: bool) -> None:
        nonlocal used_s
        used_s = before_s + 1.0  # half a second of it has passed by the first look
        port.look(view(connected=True), at_s)
        used_s = at_end_s
        if stopped:
            port.bind("10.1.1.2")
            used_s = 0.0  # nothing runs any more
        await port._close(cast(Attempt, daemon), reader)

    port.look(view(connected=False), 99.0)
    await session(100.0, 0.25, 3.25, stopped=False)
    await session(200.0, 3.25, 7.75, stopped=True)
    told = [test async for test, _ in records.bursts.stream_tests(at(0), at(3600))]
    assert [test.engine.cpu_s for test in told] == [3.0, 4.5]


def at(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)


def view(*, connected: bool) -> PortView:
    return PortView(listening=True, tcp_count=int(connected), left_count=0, udp_count=0)


def test_an_engine_that_nobody_looked_for_is_refused_with_its_name() -> None:
    for name in ("http", "trex"):
        installed = unknown_engine(name)
        assert installed.problem is not None
        assert installed.problem.startswith(f"{name}: this agent has no such engine")
