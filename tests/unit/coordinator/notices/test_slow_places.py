"""A server that drips costs its own place only, and every outward request ends in time."""

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.device.http_client import bounded_client, get_bounded
from broadside.coordinator.device.resource_manager import (
    Kind,
    Resource,
    ResourceUnavailable,
)
from broadside.coordinator.device.telemetry.polling import Answer, PolledEntry, PolledSource
from broadside.coordinator.device.telemetry.rest import RestClient, RestEntry
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.coordinator.notices.announcer import Announcer, NotDelivered, Notice, Receiver
from broadside.coordinator.notices.otlp import Otlp
from broadside.coordinator.notices.webhook import Webhook
from broadside.exchange.fabric import Fabric
from broadside.exchange.http.bounded import SENT_BYTES_PER_S, ask, ask_now
from tests.unit.coordinator.device.test_capacity import FIREWALL
from tests.unit.coordinator.notices.test_notices import SECRET, ended_run, receiver

WHOLE_S = 0.6
ENDS_WITHIN_S = 4.0  # far from the drip's end (never) and from the old bound, each read's
PAUSE_S = 0.1  # between two bytes: no read ever waits for its own timeout

_STATUS = b"HTTP/1.1 200 OK\r\n"
DRIPS: Mapping[str, tuple[bytes, bytes]] = {  # what comes at once, and then piece by piece
    "silence": (b"", b""),
    "status": (b"HTTP/1.1 2", b"0"),
    "header": (_STATUS + b"X-A: ", b"a"),
    "headers": (_STATUS, b"A: b\r\n"),
    "continue": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "body": (_STATUS + b"Content-Length: 100000\r\n\r\n", b"a"),
    "chunks": (_STATUS + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "chunk size": (_STATUS + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
}
HEADS = [name for name in DRIPS if name not in ("body", "chunks", "chunk size")]


@contextlib.contextmanager
def dripping(name: str, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that answers so until it is closed; its URL."""
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
def soon() -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < ENDS_WITHIN_S


@pytest.mark.parametrize("name", HEADS)
async def test_an_answer_that_drips_costs_its_own_place_only(fabric: Fabric, name: str) -> None:
    _, now = await ended_run(fabric)
    with dripping(name) as slow, receiver(200) as (url, came):
        places: list[Receiver] = [Otlp(slow, WHOLE_S), Webhook(url, SECRET)]
        announcer = Announcer(fabric.records, places, lambda: now)
        looking = asyncio.create_task(announcer.deliver_due())
        with soon():
            await looking
    assert len(came) == 1
    otlp, webhook = announcer.states
    assert (otlp.waiting_count, otlp.failures_count) == (1, 1)
    assert otlp.last_error is not None
    assert otlp.last_error_at == now
    assert (webhook.waiting_count, webhook.failures_count) == (0, 0)
    assert (webhook.last_error, webhook.told_at) == (None, now)


@pytest.mark.parametrize("name", HEADS)
async def test_a_webhook_ends_in_time(fabric: Fabric, name: str) -> None:
    _, now = await ended_run(fabric)
    with dripping(name) as url:
        announcer = Announcer(fabric.records, [Webhook(url, SECRET, WHOLE_S)], lambda: now)
        with soon():
            await announcer.deliver_due()
    [state] = announcer.states
    assert state.last_error == f"no answer within {WHOLE_S:g} s"


class _Stuck:
    """A place whose try ends when the test says so."""

    name = "stuck"

    def __init__(self) -> None:
        self.asked, self.over = asyncio.Event(), asyncio.Event()

    async def deliver(self, notice: Notice) -> None:
        self.asked.set()
        await self.over.wait()
        raise NotDelivered(f"{notice.header.run_id}: it was stuck")


class _Quick:
    """A place that takes whatever it is told."""

    name = "quick"

    def __init__(self) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()

    async def deliver(self, notice: Notice) -> None:
        self.told.put_nowait(notice.header.run_id)


async def test_a_place_is_told_while_another_one_is_stuck_for_as_long_as_it_likes(
    fabric: Fabric,
) -> None:
    run_id, now = await ended_run(fabric)
    stuck, quick = _Stuck(), _Quick()
    announcer = Announcer(fabric.records, [stuck, quick], lambda: now)
    serving = asyncio.create_task(announcer.run_forever(0.01))
    await stuck.asked.wait()
    assert await asyncio.wait_for(quick.told.get(), 10) == run_id
    assert not stuck.over.is_set()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("name", DRIPS)
async def test_a_device_that_drips_is_no_answer_in_time(name: str) -> None:
    with dripping(name) as url:
        async with bounded_client({}, None, 15) as client:
            with (
                soon(),
                pytest.raises(TelemetryError, match=r"here: no whole answer within 0\.6 s"),
            ):
                await get_bounded(client, url, 1 << 20, "here", answer_s=WHOLE_S)


async def test_a_device_that_drips_over_tls_is_no_answer_in_time(tmp_path: Path) -> None:
    authority = load_authority(tmp_path, dt.datetime.now(dt.UTC))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.certificate_file, authority.key_file)
    for name in ("headers", "chunks"):
        with dripping(name, context) as url:
            async with httpx.AsyncClient(verify=False, timeout=15) as client:  # noqa: S501 # drip
                with soon(), pytest.raises(TelemetryError, match="no whole answer"):
                    await get_bounded(client, url, 1 << 20, "here", answer_s=WHOLE_S)


@pytest.mark.parametrize("name", ["headers", "chunks"])
async def test_a_rest_device_that_drips_is_asked_again_as_soon_as_one_that_is_off(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broadside.coordinator.device.telemetry.rest.ANSWER_S", WHOLE_S)
    with dripping(name) as url:
        entry = RestEntry.model_validate(
            {
                "device": "fw",
                "type": "rest",
                "url": url,
                "poll_s": 1,
                "read": [{"quantity": "cpu_ratio", "path": "cpu"}],
            }
        )
        with soon(), pytest.raises(TelemetryError, match="no whole answer"):
            await RestClient(entry).poll()


async def test_a_round_of_questions_without_end_is_silence() -> None:
    """As of an SNMP table whose every answer comes in time, and never the last one."""
    closed: list[bool] = []

    async def ask() -> Answer:
        for _ in range(10_000):
            await asyncio.sleep(0.01)
        raise AssertionError("it was asked to the end")

    entry = PolledEntry.model_validate({"device": "fw", "type": "snmp"})
    source = PolledSource(
        ask, name="fw", entry=entry, close=lambda: closed.append(True), round_max_s=0.1
    )
    with soon():
        assert not await source.poll()
    assert closed == [True]
    reported = await source.query(
        dt.datetime.fromtimestamp(0, dt.UTC), dt.datetime.fromtimestamp(2**33, dt.UTC)
    )
    assert [issue.text for issue in reported.issues] == ["no whole answer within 0.1 s"]


@pytest.mark.parametrize("name", DRIPS)
def test_a_resource_manager_that_drips_is_unavailable_in_time(name: str) -> None:
    with dripping(name) as url:
        resource = Resource(
            FIREWALL,
            Kind(name="firewall", type="azureFirewalls", rights="all"),
            token=lambda: "t",
            endpoint=url,
            patience_s=0.0,
            request_s=WHOLE_S,
        )
        with soon(), pytest.raises(ResourceUnavailable, match="no whole answer"):
            resource.read()


@pytest.mark.parametrize("name", DRIPS)
@pytest.mark.parametrize("max_bytes", [1 << 20, None])
async def test_an_answer_that_drips_ends_in_time_from_its_first_header_on(
    name: str, max_bytes: int | None
) -> None:
    if max_bytes is None and name not in HEADS:
        return  # its body is not read
    with dripping(name) as url:
        async with httpx.AsyncClient(timeout=15) as client:
            with soon(), pytest.raises(httpx.ReadTimeout, match="no whole answer within"):
                await ask(client, "GET", url, max_bytes, total_s=WHOLE_S)


async def test_a_body_that_is_sent_has_its_own_time() -> None:
    """A slow line carries an output: what it takes to send is none of the answer's time."""
    total_s, content = 0.2, bytes(SENT_BYTES_PER_S)
    with dripping("status") as url:
        async with httpx.AsyncClient(timeout=15) as client:
            began_s = time.monotonic()
            with soon(), pytest.raises(httpx.ReadTimeout):
                await ask(client, "PUT", url, None, total_s=total_s, content=content)
    assert time.monotonic() - began_s >= 1.0


@pytest.mark.parametrize("name", HEADS)
def test_a_command_that_asks_a_silent_host_ends_in_time(name: str) -> None:
    with dripping(name) as url, soon(), pytest.raises(httpx.ReadTimeout):
        ask_now(url, None, WHOLE_S)
