"""Attacks on listeners: endless headers and connections without a request.

See Slowloris (R. Hansen, 2009), Slow HTTP POST (OWASP, 2010), Slow Read (S. Shekyan, 2012) and
CVE-2024-27316 with related cases: headers and trailers without end.
"""

import asyncio
import contextlib
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import httpx
import uvicorn

from broadside.coordinator import bounded_listener
from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.auth_middleware import AuthConfig
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.outage_log import utc_now
from tests.attack import Attack, attack_variants
from tests.attack.between import unproven_wire
from tests.attack.on_requests import site

PORTS: Final = "stranger to listeners"
ASK: Final = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
# Size of an answer that the client will not read. It must be larger than any socket buffer.
LARGE_BYTES: Final = 20_000_000
# Time limit that ends a hang.
PATIENCE_S: Final = 30.0
MANY_COUNT: Final = 60
# Limit on the accepted bytes. Most of them are in the kernel's buffers.
TAKEN_MAX_BYTES: Final = 12_000_000


@contextlib.contextmanager
def _standing(*, tls: bool = False, **bounds: float) -> Iterator[tuple[str, int]]:
    """Serve the API behind its listener with the given limits."""
    api = create_app(Coordinator(site().fabric), tick_s=None, guard=AuthConfig(loopback_only=True))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/large":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(LARGE_BYTES)})
            return
        await api(scope, receive, send)

    with contextlib.ExitStack() as stack:
        for name, bound in bounds.items():
            stack.enter_context(mock.patch.object(bounded_listener, name, bound))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shown = load_authority(folder, utc_now()) if tls else None
        taking = stack.enter_context(bounded_listener.Listener("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            http=taking.protocol,
            ws="none",
            log_config=None,
            lifespan="off",
            timeout_graceful_shutdown=1,
            ssl_certfile=None if shown is None else shown.certificate_file,
            ssl_keyfile=None if shown is None else shown.key_file,
        )
        server = uvicorn.Server(config)
        serving = threading.Thread(
            target=asyncio.run, args=(server.serve(sockets=[taking]),), daemon=True
        )
        serving.start()
        end_s = time.monotonic() + PATIENCE_S
        while not server.started and time.monotonic() < end_s:
            time.sleep(0.01)
        try:
            yield taking.getsockname()
        finally:
            server.should_exit = True
            serving.join(PATIENCE_S)


def _ended(wire: socket.socket) -> bytes:
    """Return all bytes until the connection is closed, or raise ``TimeoutError``."""
    text = b""
    wire.settimeout(PATIENCE_S)
    try:
        while part := wire.recv(65_536):
            text += part
    except ConnectionError:
        pass
    return text


def _served(at: tuple[str, int], scheme: str = "http") -> None:
    """Check that another client can be served in the meantime."""
    url = f"{scheme}://127.0.0.1:{at[1]}/healthz"
    assert httpx.get(url, verify=False, timeout=PATIENCE_S).status_code == 200  # noqa: S501


def _endless(wire: socket.socket, begin: bytes, part: bytes) -> str:
    """Send without end and return the bytes accepted until the connection was closed."""
    sent_bytes = 0
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        wire.sendall(begin)
        while sent_bytes < 100_000_000:
            wire.sendall(part)
            sent_bytes += len(part)
    assert sent_bytes < TAKEN_MAX_BYTES, f"{sent_bytes} bytes were taken"
    return f"closed after {sent_bytes} bytes"


_FLOODS: Final = {
    "a header without end": (ASK + b"X: ", b"a" * 65_536),
    "a header's name without end": (ASK, b"a" * 65_536),
    "an address without end": (b"GET /", b"a" * 65_536),
    "a method without end": (b"", b"A" * 65_536),
    "blanks without end": (b"GET", b" " * 65_536),
    "lines before a request, without end": (b"", b"\r\n" * 32_768),
    "trailers without end": (
        b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X: " + b"a" * 65_536,
    ),
    "a chunk's extension without end": (
        b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5;a=",
        b"a" * 65_536,
    ),
}


def _flood(begin: bytes, part: bytes) -> str:
    with _standing() as at:
        with socket.create_connection(at, PATIENCE_S) as wire:
            text = _endless(wire, begin, part)
        _served(at)
    return text


def _flood_a_process() -> str:
    """Flood the agents' port of a coordinator process, which must use bounded memory."""
    with unproven_wire(PATIENCE_S) as wire:
        return _endless(wire, ASK + b"X: ", b"a" * 65_536)


_SLOW: Final = {
    "no bytes": b"",
    "half a head": ASK + b"X: a",
    "an empty line": b"\r\n",
    "an answer, then half a head": ASK + b"\r\n" + b"GET / HTTP/1.1\r\n",
    "an answer, then a byte": ASK + b"\r\n" + b"G",
}


@contextlib.contextmanager
def _connected(at: tuple[str, int]) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(at, PATIENCE_S)) for _ in range(MANY_COUNT)
        ]


def _send_until_closed(wire: socket.socket, part: bytes, pause_s: float) -> None:
    """Send a part at intervals, and raise AssertionError if the connection is still open."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        time.sleep(pause_s)
        try:
            wire.sendall(part)
        except ConnectionError:
            return
    raise AssertionError("it is still open")


def _slow(opening: bytes, *, drip: bool = False) -> str:
    """Open many connections that will never be complete. Use ``drip`` to send single bytes."""
    with _standing(HEAD_S=0.5) as at, _connected(at) as wires:
        for wire in wires:
            wire.sendall(opening)
        if drip:
            _send_until_closed(wires[0], b"x", 0.05)
        for wire in wires:
            _ended(wire)
        _served(at)
    return f"{MANY_COUNT} connections were closed"


def _slow_body() -> str:
    with _standing(BODY_S=0.3) as at, socket.create_connection(at, PATIENCE_S) as wire:
        wire.sendall(
            b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9\r\n\r\n{"
        )
        text = _ended(wire)
        assert b" 408 " in text, text[:200]
    return text.partition(b"\r\n")[0].decode()


def _many(*, tls: bool) -> str:
    """Open more incomplete connections than allowed. With TLS no handshake has begun."""
    scheme = "https" if tls else "http"
    with (
        _standing(tls=tls, WAITING_MAX_COUNT=MANY_COUNT // 2) as at,
        _connected(at) as wires,
    ):
        _served(at, scheme)
        for wire in wires[: MANY_COUNT // 2]:
            assert _ended(wire) == b""
        _served(at, scheme)
    return f"of {MANY_COUNT} idle longest were closed; others are served"


def _unread() -> str:
    """Do not read an answer.

    The server should close the connection and free the memory used for it.
    """
    with _standing(UNREAD_S=1.0) as at, socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(at)
        wire.sendall(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        _send_until_closed(wire, b"\r\n", 0.2)
        _served(at)
    return "the kernel gave the connection up"


_DRIP: Final = partial(_slow, drip=True)
ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants("{}", PORTS, "memory", _flood, _FLOODS),
    Attack("a header without end, to a process", PORTS, "its memory", _flood_a_process),
    *attack_variants("slow: {}", PORTS, "every connection there is", _slow, _SLOW),
    Attack("slow: a byte at a time", PORTS, "the same, and patience", partial(_DRIP, ASK)),
    Attack(
        "slow: an answer, then a byte at a time", PORTS, "the same", partial(_DRIP, ASK + b"\r\n")
    ),
    Attack("slow: a body", PORTS, "the same", _slow_body),
    Attack("many without data", PORTS, "the next one's turn", partial(_many, tls=False)),
    Attack("many that begin no TLS", PORTS, "the next one's turn", partial(_many, tls=True)),
    Attack("an unread answer", PORTS, "memory", _unread),
)
