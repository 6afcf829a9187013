"""Which services a server agent is told to run, and what it says of them."""

from typing import Any

import pytest
from pydantic import ValidationError

from agent.daemon import DaemonPort, service_states
from agent.kits import Kit, unknown_kit
from agent.settings import parse_services
from agent.sockets import PortView
from exchange.engines import engines
from exchange.engines.port import Tool
from exchange.records import Records
from tests.unit.agent.doubles import MemoryTable, make_tools
from tests.unit.agent.jobs import make_settings

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
    tools = make_tools(Records(MemoryTable()))
    kit = Kit(engine=engines()["https"], tools=NGINX)
    ports = [DaemonPort(port=port, kit=kit, tools=tools) for port in (8443, 8444)]
    broken = DaemonPort(
        port=2121,
        kit=Kit(engine=engines()["ftp"], tools={}, problem="vsftpd: none here"),
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
        kit=Kit(engine=engines()["http"], tools=NGINX),
        tools=make_tools(Records(MemoryTable())),
    )
    port.look(PortView(listening=True, tcp_count=3, left_count=0, udp_count=0), 100.0)
    assert (port.free, port.busy) == (False, False)


def test_an_engine_that_nobody_looked_for_is_refused_with_its_name() -> None:
    for name in ("http", "trex"):
        kit = unknown_kit(name)
        assert kit.problem is not None
        assert kit.problem.startswith(f"{name}: this agent has no such engine")
