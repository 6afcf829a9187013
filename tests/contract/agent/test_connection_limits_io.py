"""Reach each limit of a host with real connections, and find it as the bottleneck."""

import errno
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from broadside.agent.connection_generator import find_library
from broadside.agent.host_info import read_passport
from broadside.agent.netlink import attribute
from broadside.coordinator.core.judge.bottleneck import find_bottleneck
from broadside.coordinator.core.summary import Bottleneck
from broadside.exchange.engines import engines, traffic_of
from broadside.lab.namespaces import inside
from tests.contract.agent.test_connections_io import (
    ARM_S,
    WAIT_S,
    Server,
    free_port,
    serving,
    start_client,
)
from tests.namespace_path import CLIENT, SERVER, path_between
from tests.unit.coordinator.core.judge.bottleneck.bottleneck_input import given, pairs
from tests.unit.exchange.engines.asks import job

CONNECTIONS = engines()["connections"]
FEW_FILES = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
PORT = 5000
# linux/netfilter/nfnetlink_conntrack.h
NETLINK_NETFILTER = 12
NEW_ENTRY = (1 << 8) | 0
REQUEST_CREATE = 0x401
TUPLE_ORIG, TUPLE_REPLY, STATUS, TIMEOUT = 1, 2, 3, 7
TUPLE_IP, TUPLE_PROTO, NESTED = 1, 2, 0x8000
SEEN_REPLY_ASSURED_CONFIRMED = 0x2 | 0x4 | 0x8

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_library() is None, reason="the generator was not built"),
]


def bottleneck_of(
    client: "subprocess.Popen[bytes]", server: Server, **options: Any
) -> tuple[Bottleneck, dict[str, float]]:
    """Return the bottleneck of a finished test and the measures of both ends."""
    output, errors = client.communicate(timeout=WAIT_S)
    assert client.returncode == 0, errors
    traffic = traffic_of(engine="connections", options=options)
    attempts, accepts = CONNECTIONS.client_reader(job(traffic)), CONNECTIONS.server_reader()
    for line in output.splitlines():
        attempts.feed(line, 0.0)
    for row in server.stop():
        accepts.feed(json.dumps(row).encode(), 0.0)
    (test,) = accepts.tests.values()  # type: ignore[attr-defined]
    measures = {
        measure.name: measure.value
        for reading in (attempts.finish(0), test.finish())
        for measure in reading.report.measures
    }
    bottleneck = given(pairs({}, rate=0), traffic, measures=measures)
    return find_bottleneck(bottleneck), measures


def sysctl(prefix: tuple[str, ...], setting: str) -> None:
    subprocess.run([*prefix, "sysctl", "-qw", setting], check=True, timeout=WAIT_S)


def test_agent_reports_the_limits() -> None:
    with path_between() as (client, _):
        sysctl(client, "net.core.somaxconn=77")
        add = ("ip", "address", "add", "10.123.0.9/24", "dev", "v0")
        subprocess.run([*client, *add], check=True, timeout=WAIT_S)
        with inside(client[-1]):
            info = read_passport("v0", CLIENT)
    assert info.sysctls["net.core.somaxconn"] == "77"
    assert {"net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_syncookies"} <= info.sysctls.keys()
    # Without a rule for it, the kernel tracks no connections.
    assert "net.netfilter.nf_conntrack_max" not in info.sysctls
    assert info.nic_addresses_count == 2
    assert info.files_max_count == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.mark.parametrize("short", ["client", "server"])
def test_file_descriptors(short: str) -> None:
    port = free_port()
    prefixes = {end: FEW_FILES if end == short else () for end in ("client", "server")}
    options: dict[str, Any] = {"mode": "hold", "bytes": 16, "count": 1000, "rate": 1000}
    with serving(port, prefix=prefixes["server"]) as server:
        client = start_client(port, prefix=prefixes["client"], duration=3, **options)
        bottleneck, measures = bottleneck_of(client, server, mode="hold")
    assert bottleneck.name == "generator"
    assert "because no file descriptor was left (limit 256)" in bottleneck.evidence[0]
    assert f"LimitNOFILE of the {short} agents" in (bottleneck.advice or "")
    lacking = measures["failed_count" if short == "client" else "server_failed_files_count"]
    assert 1000 - 256 < lacking < 1000 - 200
    # A server without descriptors does not spin, and closes the connection at once.
    assert measures["server_program_core_ratio"] < 0.9


def test_local_ports_in_time_wait() -> None:
    with path_between() as (client, server), serving(PORT, address=SERVER, prefix=server) as served:
        sysctl(client, "net.ipv4.ip_local_port_range=40000 40499")
        options: dict[str, Any] = {"close": "fin", "rate": 400, "duration": 3}
        started = start_client(PORT, address=SERVER, prefix=client, **options)
        bottleneck, measures = bottleneck_of(started, served, close="fin")
    assert bottleneck.name == "generator"
    assert "because no local port was left (limit 500)" in bottleneck.evidence[0]
    assert "sockets of a client were in TIME_WAIT" in bottleneck.evidence[1]
    assert "close=rst" in (bottleneck.advice or "")
    # One port has the control connection.
    assert measures["established_count"] == pytest.approx(499, abs=3)
    assert measures["failed_ports_count"] == pytest.approx(1200 - 499, abs=3)


def test_listen_queue_of_a_server_that_does_not_accept() -> None:
    with path_between() as (client, server):
        sysctl(server, "net.core.somaxconn=8")
        with serving(PORT, address=SERVER, prefix=server) as served:
            options: dict[str, Any] = {"rate": 500, "duration": 4, "limit": 0.9}
            started = start_client(PORT, address=SERVER, prefix=client, **options)
            time.sleep(ARM_S + 1)
            os.kill(served.process.pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(served.process.pid, signal.SIGCONT)
            bottleneck, measures = bottleneck_of(started, served)
    assert bottleneck.name == "server-backlog"
    assert "connections because their listen queue was full (limit 8)" in bottleneck.evidence[0]
    assert measures["server_backlog_dropped_count"] >= measures["server_backlog_overflowed_count"]
    assert measures["server_backlog_overflowed_count"] > 200
    assert "net.core.somaxconn" in (bottleneck.advice or "")


def test_cpu_of_the_client() -> None:
    port = free_port()
    with serving(port) as server:
        bottleneck, measures = bottleneck_of(start_client(port, rate=200_000), server)
    assert bottleneck.name == "generator"
    assert "of the planned attempts, up to" in bottleneck.evidence[0]
    assert 0 < measures["client_program_core_ratio"] <= 1.01
    assert "faster cores" in (bottleneck.advice or "")


def _nested(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | NESTED, b"".join(parts))


def _entries() -> Iterator[bytes]:
    """Yield netlink messages, each with an entry for a UDP session between unused addresses."""
    for number in range(1 << 20):
        ends = socket.inet_aton("198.18.0.1"), struct.pack(">I", 0xC6120100 + (number >> 8))
        ports = struct.pack(">H", 1 + number % 256), struct.pack(">H", 9)
        tuples = [
            _nested(
                kind,
                _nested(TUPLE_IP, attribute(1, ends[flip]), attribute(2, ends[1 - flip])),
                _nested(
                    TUPLE_PROTO,
                    attribute(1, bytes([socket.IPPROTO_UDP])),
                    attribute(2, ports[flip]),
                    attribute(3, ports[1 - flip]),
                ),
            )
            for kind, flip in ((TUPLE_ORIG, 0), (TUPLE_REPLY, 1))
        ]
        body = b"".join(tuples)
        body += attribute(STATUS, struct.pack(">I", SEEN_REPLY_ASSURED_CONFIRMED))
        body += attribute(TIMEOUT, struct.pack(">I", 600))
        content = struct.pack(">BBH", socket.AF_INET, 0, 0) + body
        yield (
            struct.pack("=IHHII", 16 + len(content), NEW_ENTRY, REQUEST_CREATE, number, 0) + content
        )


def _error(table: socket.socket) -> int | None:
    """Return the first error of a batch, or None if there is none."""
    while True:
        try:
            (error,) = struct.unpack_from("=i", table.recv(1 << 16), 16)
            return -int(error)
        except BlockingIOError:
            return None
        except OSError as failed:
            # Most errors of a full table did not fit in the buffer.
            assert failed.errno == errno.ENOBUFS


def fill_conntrack(namespace: str) -> None:
    """Fill the conntrack table of a namespace with entries that the kernel does not replace."""
    with inside(namespace):
        table = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    with table:
        table.setblocking(False)
        batch: list[bytes] = []
        for entry in _entries():
            batch.append(entry)
            if len(batch) == 400:
                table.send(b"".join(batch))
                batch.clear()
                if (error := _error(table)) is not None:
                    assert error == errno.ENOMEM, os.strerror(error)
                    return


@pytest.mark.alone
def test_conntrack_table_of_the_clients() -> None:
    with path_between() as (client, server), serving(PORT, address=SERVER, prefix=server) as served:
        # The kernel tracks connections only if a rule needs it.
        rule = "chain c { type filter hook output priority 0; ct state new accept; };"
        subprocess.run([*client, "nft", f"table ip t {{ {rule} }}"], check=True, timeout=WAIT_S)
        options: dict[str, Any] = {"rate": 100, "limit": 0.9, "at": f"{time.time() + 15:.6f}"}
        started = start_client(PORT, address=SERVER, prefix=client, **options)
        assert started.stderr is not None
        assert b"armed" in started.stderr.readline()
        with inside(client[-1]):
            info = read_passport("v0", CLIENT)
        assert int(info.sysctls["net.netfilter.nf_conntrack_max"]) > 0
        fill_conntrack(client[-1])
        bottleneck, measures = bottleneck_of(started, served)
    assert bottleneck.name == "generator"
    assert measures["conntrack_dropped_count"] >= 100
    assert "the conntrack table of the clients was full" in bottleneck.evidence[0]
    assert "nf_conntrack_max" in (bottleneck.advice or "")
