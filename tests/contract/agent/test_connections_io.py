"""Tests for the generator of connections with real sockets: loopback and network namespaces."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from broadside.agent.connection_generator import find_library
from broadside.agent.installed_engines import find_installed_engine
from broadside.coordinator.core.measure.engine_metrics import quantiles_of
from broadside.exchange.engines import engines
from broadside.exchange.engines.connections import OUTCOMES, parse_histogram
from broadside.exchange.messages import Role
from broadside.exchange.programs import module_command
from tests.namespace_path import SERVER, add_nft_rule, path_between
from tests.self_signed import make_certificate

COMMAND = module_command("broadside.agent.connection_generator")
TOKEN = "r1.00000.00000.9"  # noqa: S105 - an id, not a password
WAIT_S = 30.0
# Time from the start of the client to the first attempt.
ARM_S = 2.0

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_library() is None, reason="the generator was not built"),
]


def may_use_real_time() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


def environment() -> dict[str, str]:
    folder = Path(__file__).parents[3] / "src"
    return {**os.environ, "PYTHONPATH": str(folder)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)


class Server:
    """Server of connections whose output is read at the end."""

    def __init__(
        self,
        port: int,
        address: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
        words: tuple[str, ...] = (),
    ) -> None:
        argv = [*prefix, *COMMAND, "server", "--address", address, "--port", str(port), *words]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment())

    def stop(self) -> list[dict[str, Any]]:
        # The last line is written a moment after the client has closed its control connection.
        time.sleep(0.5)
        self.process.terminate()
        output, _ = self.process.communicate(timeout=WAIT_S)
        return [json.loads(line) for line in output.splitlines()]


@contextmanager
def serving(port: int, **where: Any) -> Iterator[Server]:
    server = Server(port, **where)
    with server.process:
        try:
            yield server
        finally:
            server.process.kill()


@contextmanager
def inspecting(port: int, inside: int, words: tuple[str, ...]) -> Iterator[None]:
    """Run a device that ends TLS with its own certificate, and forwards what is not TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(words[1], words[3])

    def handle(client: socket.socket) -> None:
        with client, suppress(OSError):
            if client.recv(1, socket.MSG_PEEK) == b"\x16":
                with context.wrap_socket(client, server_side=True) as secured:
                    secured.recv(1)
                return
            with socket.create_connection(("127.0.0.1", inside)) as server:
                server.sendall(client.recv(500))
                client.sendall(server.recv(100))
                client.recv(1)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", port), backlog=100) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def start_client(
    port: int, address: str = "127.0.0.1", prefix: tuple[str, ...] = (), **options: object
) -> "subprocess.Popen[bytes]":
    chosen = {"at": f"{time.time() + ARM_S:.6f}", "duration": 2, "rate": 100, "limit": 1} | options
    arguments = [term for name, value in chosen.items() for term in (f"--{name}", str(value))]
    argv = [*prefix, *COMMAND, "client", "--address", address, "--port", str(port)]
    return subprocess.Popen(
        [*argv, "--token", TOKEN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def rows_of(client: "subprocess.Popen[bytes]") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the seconds and the last line of a client, after it has ended."""
    output, errors = client.communicate(timeout=WAIT_S)
    assert client.returncode == 0, errors
    first, *seconds, last = (json.loads(line) for line in output.splitlines())
    assert "started" in first
    assert "ended" in last
    return seconds, last


def total(rows: list[dict[str, Any]], name: str) -> int:
    return sum(row.get(name, 0) for row in rows)


def run(port: int, **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return rows_of(start_client(port, **options))


def test_agent_finds_the_generator() -> None:
    for role in Role:
        matches = find_installed_engine(engines()["connections"], role)
        assert matches.problem is None
        assert matches.tools["connections"].version == "1.3"


def test_client_has_real_time_priority_until_its_first_attempt() -> None:
    if not may_use_real_time():
        pytest.skip("real-time priority is not allowed here")
    port = free_port()
    with serving(port):
        wait_for_port(port)
        client = start_client(port)
        seen = []
        while client.poll() is None:
            with suppress(ProcessLookupError):
                seen.append(os.sched_getscheduler(client.pid))
            time.sleep(0.02)
        rows_of(client)
    assert [policy for policy, _ in groupby(seen)] == [
        os.SCHED_OTHER,
        os.SCHED_FIFO,
        os.SCHED_OTHER,
    ]


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"mode": "connect"}, "reset"),
        ({"mode": "connect", "close": "fin"}, "closed"),
        ({"mode": "connect", "bind": "127.0.0.2"}, "reset"),
        ({"mode": "exchange", "bytes": 3000}, "reset"),
        ({"mode": "exchange", "bytes": 8, "close": "fin"}, "closed"),
        ({"mode": "exchange", "bytes": 1_000_000, "close": "fin", "rate": 5}, "closed"),
    ],
)
def test_both_ends_count_every_connection(options: dict[str, Any], end: str) -> None:
    port = free_port()
    with serving(port) as server:
        seconds, last = run(port, **options)
        rows = server.stop()
    made = 2 * options.get("rate", 100)
    assert last["scheduled"] == made
    assert len(seconds) == 2
    for name in ("attempted", "established", "closed"):
        assert total(seconds, name) == made
    assert total(rows, "established") == total(rows, end) == made
    assert {row["test"] for row in rows} == {TOKEN}
    assert total(rows, "foreign") == 0
    carried = made * options.get("bytes", 0)
    assert total(seconds, "sent_bytes") == total(rows, "received_bytes") == carried
    assert total(seconds, "received_bytes") == total(rows, "sent_bytes") == carried
    assert sum(last["handshake"]["counts"].values()) == made
    assert sum(last["first_byte"]["counts"].values()) == (made if carried else 0)
    assert last["handshake"]["max_s"] > 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the options of a server for a self-signed certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.mark.parametrize(
    ("options", "negotiated"),
    [
        ({"tls": "any"}, "TLSv1.3 TLS_AES_256_GCM_SHA384"),
        ({"tls": "any", "resume": 1}, "TLSv1.3 TLS_AES_256_GCM_SHA384"),
        ({"tls": "1.3", "resume": 1, "close": "fin"}, "TLSv1.3 TLS_AES_256_GCM_SHA384"),
        ({"tls": "1.2", "resume": 1, "close": "fin"}, "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384"),
        ({"tls": "any", "cipher": "TLS_AES_128_GCM_SHA256"}, "TLSv1.3 TLS_AES_128_GCM_SHA256"),
        (
            {
                "tls": "any",
                "cipher": "ECDHE-ECDSA-CHACHA20-POLY1305",
                "mode": "exchange",
                "bytes": 99,
            },
            "TLSv1.2 ECDHE-ECDSA-CHACHA20-POLY1305",
        ),
    ],
)
def test_tls_is_negotiated_as_chosen(
    certificate: tuple[str, ...], options: dict[str, Any], negotiated: str
) -> None:
    port = free_port()
    chosen = {**options, "name": "a.lab.test"}
    with serving(port, words=certificate) as server:
        seconds, last = run(port, rate=50, limit=3, **chosen)
        rows = server.stop()
    made = total(seconds, "attempted")
    assert made == total(seconds, "established") == total(seconds, "secured") > 0
    assert made == total(seconds, "closed") == total(rows, "established") == total(rows, "secured")
    assert total(rows, "named") == made
    assert last["negotiated"] == {negotiated: made}
    assert last["replaced"] == 0
    assert last["resumed"] == (made if "resume" in options else 0)
    assert sum(last["tls_handshake"]["counts"].values()) == made
    assert total(rows, "foreign") == 0


def test_replaced_certificates_are_counted(certificate: tuple[str, ...], tmp_path: Path) -> None:
    """A device that inspects TLS shows its own certificate. The control connection is forwarded."""
    folder, (port, inside) = tmp_path, (free_port(), free_port())
    device = make_certificate(folder)
    with serving(inside, words=certificate), inspecting(port, inside, device):
        seconds, last = run(port, rate=20, tls="any", limit=3)
    made = total(seconds, "secured")
    assert last["replaced"] == made > 0


def test_server_without_the_version_fails_the_handshake(certificate: tuple[str, ...]) -> None:
    port = free_port()
    with serving(port, words=certificate) as server:
        seconds, last = run(port, rate=20, tls="1.2", cipher="ECDHE-RSA-AES128-GCM-SHA256")
        server.stop()
    assert (
        total(seconds, "reset") == total(seconds, "tls_failed") == total(seconds, "attempted") > 0
    )
    assert last["negotiated"] == {}


@pytest.mark.parametrize(
    ("secured", "upload", "close"),
    [(False, 0, "rst"), (False, 200_000, "fin"), (True, 0, "fin"), (True, 200_000, "rst")],
)
def test_http_transactions_are_counted_by_both_ends(
    certificate: tuple[str, ...], secured: bool, upload: int, close: str
) -> None:
    port = free_port()
    chosen = {"bodies": "0,1000,300000", "upload": upload} | ({"tls": "any"} if secured else {})
    with serving(port, words=certificate) as server:
        seconds, last = run(port, mode="http", rate=30, limit=3, close=close, **chosen)
        rows = server.stop()
    made = total(seconds, "attempted")
    assert made == total(seconds, "closed") == total(rows, "established") > 3
    assert total(rows, "secured") == (made if secured else 0)
    assert total(seconds, "sent_bytes") == total(rows, "received_bytes") > made * upload
    bodies = sum((0, 1000, 300_000)[number % 3] for number in range(made))
    assert total(seconds, "received_bytes") == total(rows, "sent_bytes") > bodies
    assert sum(last["first_byte"]["counts"].values()) == made


def _read_answer(port: int, compressible: int) -> bytes:
    """Return the answer of a server, as any HTTP client gets it."""
    with socket.create_connection(("127.0.0.1", port)) as control:
        control.sendall(f"BSCN {TOKEN} 0 0 {compressible}\n".encode())
        assert control.recv(3) == b"OK\n"
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(WAIT_S)
            request = f"GET /100000?job={TOKEN} HTTP/1.1\r\nHost: x\r\nVia: 1.1 proxy\r\n"
            for part in (request.encode(), b"\r", b"\n"):
                client.sendall(part)
                time.sleep(0.05)
            answer = b""
            while len(answer) < 100_000 or not answer.partition(b"\r\n\r\n")[2][99_999:]:
                answer += client.recv(65536)
            return answer


def test_bodies_have_the_chosen_share_of_zeros() -> None:
    port = free_port()
    with serving(port):
        wait_for_port(port)
        for percent in (0, 40):
            head, _, body = _read_answer(port, percent).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"Content-Length: 100000" in head
            ratio = len(zlib.compress(body)) / len(body)
            assert ratio == pytest.approx(1 - percent / 100, abs=0.02)


def test_answers_with_another_status_are_denied() -> None:
    """A device answers in place of the server, for example with a block page."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as listener:
        client = start_client(port, mode="http", bodies="1000", rate=10, duration=1)
        control, _ = listener.accept()
        control.recv(200)
        control.sendall(b"OK\n")
        with control:
            for _ in range(10):
                one, _ = listener.accept()
                with one:
                    one.recv(1000)
                    one.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno!")
            seconds, _ = rows_of(client)
    assert total(seconds, "denied") == total(seconds, "attempted") == 10
    assert total(seconds, "closed") == 0


def test_held_connections_have_heartbeats_until_the_end() -> None:
    port = free_port()
    options: dict[str, Any] = {
        "mode": "hold",
        "bytes": 16,
        "count": 50,
        "heartbeat": 0.5,
        "rate": 200,
    }
    with serving(port) as server:
        seconds, last = run(port, duration=3, **options)
        rows = server.stop()
    assert (last["scheduled"], total(seconds, "established")) == (50, 50)
    assert [row["open"] for row in seconds[:2]] == [50, 50]
    assert total(seconds, "closed") == 50
    assert total(seconds, "dropped") == 0
    # The first exchange, and two more for each second.
    assert total(rows, "received_bytes") >= 50 * 16 * 4
    assert max(row.get("open", 0) for row in rows) == 50


def test_attempts_of_every_second_follow_the_ramps() -> None:
    port = free_port()
    with serving(port) as server:
        options: dict[str, Any] = {"mode": "exchange", "bytes": 8, "ramp-up": 2, "ramp-down": 2}
        seconds, last = run(port, rate=200, duration=6, **options)
        rows = server.stop()
    assert [row["attempted"] for row in seconds] == [50, 150, 200, 200, 150, 50]
    assert total(seconds, "established") == total(rows, "established") == 800
    sustain = last["sustain"]
    assert (last["scheduled"], sustain["scheduled"]) == (800, 400)
    assert sustain["attempted"] == sustain["established"] == sustain["closed"] == 400
    # The times of the ramps are not in the histograms.
    assert sum(last["handshake"]["counts"].values()) == 400
    assert sum(last["first_byte"]["counts"].values()) == 400
    (span,) = {tuple(row["sustain"]) for row in rows if "sustain" in row}
    assert span[1] - span[0] == pytest.approx(2)


def test_count_of_held_connections_follows_the_ramps() -> None:
    port = free_port()
    ramps = {"ramp-up": 2, "ramp-down": 2}
    options: dict[str, Any] = {"mode": "hold", "bytes": 16, "count": 200, "heartbeat": 0.5}
    with serving(port) as server:
        # The ramp-up determines the rate.
        seconds, last = run(port, duration=6, rate=9999, **options, **ramps)
        server.stop()
    assert [row["attempted"] for row in seconds] == [100, 100, 0, 0, 0, 0]
    open_count = [row["open"] for row in seconds]
    assert open_count[1:4] == [200, 200, 200]
    assert open_count[0] == pytest.approx(100, abs=10)
    assert open_count[4] == pytest.approx(100, abs=10)
    assert open_count[5] == 0
    sustain = last["sustain"]
    assert sustain["attempted"] == sustain["established"] == sustain["closed"] == 200
    assert sustain["dropped"] == 0


def test_connections_dropped_while_held_are_counted() -> None:
    port = free_port()
    options: dict[str, Any] = {
        "mode": "hold",
        "bytes": 16,
        "count": 20,
        "heartbeat": 0.2,
        "rate": 200,
    }
    with serving(port) as server:
        client = start_client(port, duration=3, **options)
        time.sleep(ARM_S + 1.5)
        server.process.kill()
        seconds, _ = rows_of(client)
    assert total(seconds, "established") == 20
    assert total(seconds, "dropped") == total(seconds, "reset") == 20
    assert total(seconds, "closed") == 0


def test_closed_port_refuses_the_control_connection() -> None:
    client = start_client(free_port())
    output, errors = client.communicate(timeout=WAIT_S)
    assert client.returncode == 1
    assert b"connections: no control connection: Connection refused" in errors
    assert b"second" not in output


def test_port_closed_during_the_burst_refuses_attempts() -> None:
    port = free_port()
    with serving(port) as server:
        client = start_client(port, duration=3)
        time.sleep(ARM_S + 1)
        server.process.kill()
        seconds, _ = rows_of(client)
    assert total(seconds, "refused") > 50
    assert total(seconds, "attempted") == 300
    assert sum(total(seconds, name) for name in OUTCOMES) == 300


def test_foreign_connections_are_separated() -> None:
    port = free_port()
    with serving(port) as server:
        client = start_client(port, mode="exchange", bytes=8, rate=10)
        time.sleep(ARM_S + 0.5)
        with socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert other.recv(100) == b""
        seconds, _ = rows_of(client)
        rows = server.stop()
    assert total(rows, "foreign") == 1
    assert total(rows, "established") == total(seconds, "established") == 20


def test_stop_ends_the_burst_with_its_totals() -> None:
    port = free_port()
    with serving(port):
        client = start_client(port, duration=30)
        time.sleep(ARM_S + 1.5)
        client.terminate()
        seconds, last = rows_of(client)
    assert 1 <= len(seconds) <= 30
    assert last["ended"] < 29
    assert total(seconds, "attempted") == total(seconds, "established") > 0


def test_stall_of_one_second_is_in_the_percentiles() -> None:
    """The generator itself is stopped, so a closed loop or a time of sending would hide it."""
    port = free_port()
    with serving(port):
        client = start_client(port, duration=4, rate=100)
        time.sleep(ARM_S + 1)
        os.kill(client.pid, 19)
        time.sleep(1)
        os.kill(client.pid, 18)
        seconds, last = rows_of(client)
    assert total(seconds, "attempted") == 400
    (times,) = parse_histogram("handshake", last["handshake"])
    late = {bucket: count for bucket, count in times.counts.items() if 2 ** (bucket / 48) > 0.4}
    # Half of the second's attempts are more than half a second late.
    assert sum(late.values()) >= 40
    quantiles = dict(quantiles_of([times]))
    assert quantiles["p99"] > 0.8
    assert quantiles["max"] > 0.9
    # The second in which the stall ended shows it, too.
    assert max(row["handshake_us"][1] for row in seconds if "handshake_us" in row) > 800_000


# Network namespaces ----------------------------------------------------------------------------


@contextmanager
def namespaces() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the command prefixes of two namespaces with a wire between them."""
    if os.geteuid() != 0 or shutil.which("nft") is None:
        pytest.skip("network namespaces and nft need root")
    with path_between() as prefixes:
        yield prefixes


def behind(rule: str, **options: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of both ends, with a rule of the server that begins before the burst."""
    with (
        namespaces() as (client, server),
        serving(5000, address=SERVER, prefix=server) as served,
    ):
        # On a busy host, it takes some time to add the rule.
        options["at"] = f"{time.time() + 4 * ARM_S:.6f}"
        started = start_client(5000, address=SERVER, prefix=client, **options)
        assert started.stderr is not None
        assert b"armed" in started.stderr.readline()
        # The control connection is open.
        add_nft_rule(server, f"tcp dport 5000 {rule}")
        seconds, _ = rows_of(started)
        return seconds, served.stop()


def test_black_hole_times_out() -> None:
    seconds, rows = behind("tcp flags & (syn | ack) == syn drop")
    assert total(seconds, "attempted") == total(seconds, "timed_out") == 200
    assert total(seconds, "established") == total(rows, "established") == 0


def test_reset_by_the_device_is_refused() -> None:
    rule = "tcp flags & (syn | ack) == syn reject with tcp reset"
    seconds, _ = behind(rule)
    assert total(seconds, "attempted") == total(seconds, "refused") == 200


def test_rate_behind_a_limit_is_the_limit() -> None:
    """An open loop reaches the limit. SYNs that are sent again count against it, too."""
    rule = "tcp flags & (syn | ack) == syn limit rate over 400/second burst 5 packets drop"
    seconds, rows = behind(rule, rate=1000, duration=6, limit=0.9)
    assert total(seconds, "attempted") == 6000
    assert sum(total(seconds, name) for name in OUTCOMES) == 6000
    assert total(seconds, "timed_out") > 3000
    assert total(seconds, "established") == total(rows, "established")
    # The middle seconds, which do not have the burst or the end.
    middle = [row["established"] for row in seconds[1:5]]
    assert sum(middle) / len(middle) == pytest.approx(400, rel=0.03)
