"""Test canaries and their service over real sockets on loopback."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from broadside.agent.canary_sender import CanaryMessage, CanarySender, send
from broadside.agent.canary_service import CanaryService
from broadside.exchange.messages import CanaryOutcome, CanaryRequest
from broadside.lab.namespaces import inside, run
from tests.live.free_ports import free_port
from tests.live.wired_path import wire
from tests.unit.agent.jobs import make_job, make_settings

pytestmark = pytest.mark.live

LOOPBACK = "127.0.0.1"
UDP = ["port-udp", "et-id-check-udp"]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def sender(port: int, forbidden_port: int, **fields: Any) -> CanarySender:
    canary = {
        "consent": "Test",
        "signatures": ["azure-idps"],
        "port": port,
        "forbidden_port": forbidden_port,
        "every_s": 0.2,
        "before_s": 0.4,
        "after_s": 0.2,
        "hold_s": 0.2,
        **fields,
    }
    at = datetime.fromtimestamp(time.time() + 1, UTC)
    job = make_job(
        planned_start_at=at,
        duration_s=1,
        traffic={"canary": canary},
        endpoint={"agent_id": "s", "address": LOOPBACK, "port": 5201},
    )
    return CanarySender(job, None)


@contextlib.asynccontextmanager
async def service(**fields: Any) -> AsyncIterator[tuple[CanaryService, int, int]]:
    ports = free_port(), free_port()
    settings = make_settings(role="server", canary_ports=",".join(map(str, ports)), **fields)
    served = CanaryService(settings)
    await served.open(LOOPBACK)
    assert served.ports == ports
    yield served, *ports
    served.close()


@contextlib.asynccontextmanager
async def device(server_port: int, act: Callable[[bytes], str]) -> AsyncIterator[int]:
    """Run a device that reads each request, and drops, resets, answers, or passes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        action = act(request)
        if action == "replace":
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\nDenied")
            await writer.drain()
        elif action == "drop":
            await reader.read()
        elif action != "reset":
            server_reader, server = await asyncio.open_connection(LOOPBACK, server_port)
            server.write(request)
            if action == "cut":
                writer.write(await server_reader.readuntil(b"\r\n\r\n"))
                await writer.drain()
                await asyncio.sleep(0.05)
            elif action == "no answer":
                await server_reader.readuntil(b"\r\n\r\n")
            else:
                writer.write(await server_reader.read())
                await writer.drain()
                writer.write(await server_reader.read())
            server.close()
        writer.transport.abort() if action == "reset" else writer.close()

    server = await asyncio.start_server(handle, LOOPBACK, 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize("signatures", [["port", "azure-idps", "et-id-check"], UDP])
async def test_all_requests_arrive_without_a_device(signatures: list[str]) -> None:
    async with service() as (_, port, forbidden_port):
        sending = sender(port, forbidden_port, signatures=signatures)
        await sending.run()
    rounds = sending.rounds
    assert len(rounds.forbidden.outcomes) == 2 + 6
    for requests in (rounds.forbidden, rounds.allowed):
        sent = [o for o in requests.outcomes if o is not CanaryOutcome.NOT_SENT]
        # If the host is busy, it may have skipped some rounds, which will not be sent.
        assert len(sent) > 4
        assert set(sent) == {CanaryOutcome.ANSWERED}
        assert all(r for r, o in zip(requests.received, requests.outcomes, strict=True) if o)


@pytest.mark.parametrize(
    ("action", "outcome", "received"),
    [
        ("drop", CanaryOutcome.SILENT, False),
        ("reset", CanaryOutcome.RESET, False),
        ("replace", CanaryOutcome.REPLACED, False),
        # The device blocked it too late.
        ("cut", CanaryOutcome.CUT, True),
        ("no answer", CanaryOutcome.RESET, True),
    ],
)
async def test_a_forbidden_request_is_blocked(
    action: str, outcome: CanaryOutcome, received: bool
) -> None:
    async with (
        service() as (_, port, forbidden_port),
        device(port, lambda request: action if b"HaxerMen" in request else "pass") as there,
    ):
        sending = sender(there, forbidden_port)
        # The device's port is not among the ports of the service.
        await sending.run()
        sending._ports = {"tcp": (there,)}
    rounds = sending.rounds
    sent = [n for n, o in enumerate(rounds.allowed.outcomes) if o is not CanaryOutcome.NOT_SENT]
    assert len(sent) > 3
    assert {rounds.allowed.outcomes[n] for n in sent} == {CanaryOutcome.ANSWERED}
    assert {rounds.forbidden.outcomes[n] for n in sent} == {outcome}
    assert {rounds.forbidden.received[n] for n in sent} == {received}


class Datagrams(asyncio.DatagramProtocol):
    """Device that passes datagrams, and for forbidden ones a number of answers."""

    def __init__(self, server_port: int, blocked: bytes, answers_count: int) -> None:
        self._server_port, self._blocked, self._answers = server_port, blocked, answers_count
        self._flows: dict[Any, socket.socket] = {}
        self.received_count = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.received_count += 1
        if self._blocked in data and not self._answers:
            return
        if addr not in self._flows:
            flow = self._flows[addr] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            flow.setblocking(False)
            flow.connect((LOOPBACK, self._server_port))
            limit = self._answers if self._blocked in data else 2
            asyncio.get_running_loop().add_reader(flow, self._pass_back, flow, addr, [limit])
        self._flows[addr].send(data)

    def _pass_back(self, flow: socket.socket, addr: Any, left: list[int]) -> None:
        data = flow.recv(2000)
        if left[0]:
            left[0] -= 1
            self._transport.sendto(data, addr)

    def close(self) -> None:
        for flow in self._flows.values():
            asyncio.get_running_loop().remove_reader(flow)
            flow.close()
        self._transport.close()


@pytest.mark.parametrize(
    ("answers_count", "outcome", "received"),
    [(0, CanaryOutcome.SILENT, False), (1, CanaryOutcome.CUT, True)],
)
async def test_a_forbidden_datagram_is_blocked(
    answers_count: int, outcome: CanaryOutcome, received: bool
) -> None:
    async with service() as (served, port, forbidden_port):
        loop = asyncio.get_running_loop()
        passing = Datagrams(port, b"uid=0(root)", answers_count)
        # Questions use TCP, so the device has the same port for both.
        there = free_port()
        await loop.create_datagram_endpoint(lambda: passing, local_addr=(LOOPBACK, there))
        sending = sender(there, forbidden_port, signatures=["et-id-check-udp"], after_s=0)
        await sending.run()
        sending._ports = {"udp": (there,)}
        sending._received = {**next(iter(served._received.values()))}
        passing.close()
    rounds = sending.rounds
    sent = [n for n, o in enumerate(rounds.allowed.outcomes) if o is not CanaryOutcome.NOT_SENT]
    assert len(sent) > 3
    assert {rounds.allowed.outcomes[n] for n in sent} == {CanaryOutcome.ANSWERED}
    assert {rounds.forbidden.outcomes[n] for n in sent} == {outcome}
    assert {rounds.forbidden.received[n] for n in sent} == {received}
    # A datagram without an answer is sent again.
    assert passing.received_count > 2 * len(sent)


@pytest.mark.parametrize("signature", ["port", "port-udp"])
async def test_a_port_without_a_service_answers_nothing(signature: str) -> None:
    async with service() as (_, port, _forbidden_port):
        sending = sender(port, free_port(), signatures=[signature])
        await sending.run()
    rounds = sending.rounds
    refused = [n for n, o in enumerate(rounds.forbidden.outcomes) if o is CanaryOutcome.REFUSED]
    assert refused
    assert {rounds.forbidden.received[n] for n in refused} == {None}


async def test_the_service_answers_only_canaries_of_allowed_networks() -> None:
    async with service(allowed_networks="10.9.0.0/16") as (_, port, forbidden_port):
        sending = sender(port, forbidden_port)
        await sending.run()
    assert set(sending.rounds.allowed.received) == {None}
    async with service() as (_, port, _forbidden_port):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.read() == b""
        writer.close()


@pytest.mark.needs_root
async def test_a_request_that_was_given_up_does_not_arrive_later() -> None:
    """TCP would send it again, and a device that starts to pass traffic would let it through."""
    message = CanaryMessage(request=CanaryRequest(), tag="t.0.f.0")
    with wire() as path:
        client, server = path.client[-1], path.server[-1]
        drop = "type filter hook input priority 0; tcp dport 5198 ip length > 60 drop\n"
        table = f"table inet dropping {{ chain input {{ {drop} }}\n}}\n"
        run(["nft", "-f", "-"], namespace=server, text=table)
        with inside(server):
            listener = socket.create_server((path.address, 5198))
        listener.settimeout(5)
        with inside(client):
            observed = await send(message, path.address, 5198, None, 1.0)
        # The loop closes the socket.
        await asyncio.sleep(0.1)
        assert observed.outcome is CanaryOutcome.SILENT
        run(["nft", "delete table inet dropping"], namespace=server)
        with listener, listener.accept()[0] as connection:
            # In this time, the kernel would send the request again several times.
            connection.settimeout(4)
            with pytest.raises(ConnectionResetError):
                connection.recv(1)


async def test_a_burst_that_ends_early_has_no_further_rounds() -> None:
    async with service() as (_, port, forbidden_port):
        sending = sender(port, forbidden_port, after_s=30)
        asyncio.get_running_loop().call_later(1, sending.finish)
        await sending.run()
    outcomes = sending.rounds.allowed.outcomes
    assert set(outcomes[20:]) == {CanaryOutcome.NOT_SENT}
    assert True in sending.rounds.allowed.received
