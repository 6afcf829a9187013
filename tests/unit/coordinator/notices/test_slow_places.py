"""Tests for the deadline of requests when the server is slow or will never finish."""

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping

from broadside.coordinator.device.telemetry.polling import (
    Answer,
    PolledDevice,
    PolledEntry,
    PolledSource,
)
from broadside.coordinator.notices.announcer import Announcer, NotDelivered, Notice
from broadside.exchange.fabric import Fabric
from tests.unit.coordinator.notices.test_announcer import ended_run

# This is larger than TOTAL_S but less than the read timeouts.
ENDS_WITHIN_S = 4.0
# Must be less than the read timeout.
PAUSE_S = 0.1

_STATUS = b"HTTP/1.1 200 OK\r\n"
# Each value has the first bytes and the bytes to repeat.
DRIPS: Mapping[str, tuple[bytes, bytes]] = {
    "silence": (b"", b""),
    "status": (b"HTTP/1.1 2", b"0"),
    "header": (_STATUS + b"X-A: ", b"a"),
    "headers": (_STATUS, b"A: b\r\n"),
    "continue": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "body": (_STATUS + b"Content-Length: 100000\r\n\r\n", b"a"),
    "chunks": (_STATUS + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "chunk size": (_STATUS + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
}


@contextlib.contextmanager
def dripping(name: str, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Start a server to send a slow response without an end. Yield the URL."""
    first, piece = DRIPS[name]
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            if tls is not None:
                connection = stack.enter_context(tls.wrap_socket(connection, server_side=True))
            connection.recv(65_536)
            connection.sendall(first)
            while not over.wait(PAUSE_S):
                connection.sendall(piece)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http{'s' * (tls is not None)}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def ends_soon() -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < ENDS_WITHIN_S


class _Stuck:
    """Receiver to block until it is released."""

    name = "stuck"

    def __init__(self) -> None:
        self.called, self.released = asyncio.Event(), asyncio.Event()

    async def deliver(self, notice: Notice) -> None:
        self.called.set()
        await self.released.wait()
        raise NotDelivered(f"{notice.header.run_id}: not delivered")


class _Quick:
    """Receiver to accept all notices."""

    name = "quick"

    def __init__(self) -> None:
        self.received: asyncio.Queue[str] = asyncio.Queue()

    async def deliver(self, notice: Notice) -> None:
        self.received.put_nowait(notice.header.run_id)


async def test_blocked_receiver_does_not_block_other_receivers(
    fabric: Fabric,
) -> None:
    run_id, now = await ended_run(fabric)
    stuck, quick = _Stuck(), _Quick()
    announcer = Announcer(fabric.records, [stuck, quick], lambda: now)
    serving = asyncio.create_task(announcer.run_forever(0.01))
    await stuck.called.wait()
    assert await asyncio.wait_for(quick.received.get(), 10) == run_id
    assert not stuck.released.is_set()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_endless_poll_is_reported_as_missing() -> None:
    """This can happen when an SNMP table has no end but each request is fast."""
    closed: list[bool] = []

    async def ask() -> Answer:
        for _ in range(10_000):
            await asyncio.sleep(0.01)
        raise AssertionError("the poll was not stopped")

    entry = PolledEntry.model_validate({"device": "fw", "type": "snmp"})
    source = PolledSource(
        entry,
        PolledDevice(request=ask, name="fw", close=lambda: closed.append(True)),
        round_max_s=0.1,
    )
    with ends_soon():
        assert not await source.poll()
    assert closed == [True]
    telemetry = await source.query(
        dt.datetime.fromtimestamp(0, dt.UTC), dt.datetime.fromtimestamp(2**33, dt.UTC)
    )
    assert [issue.text for issue in telemetry.issues] == ["no complete answer within 0.1 s"]
