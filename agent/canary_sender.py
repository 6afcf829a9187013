"""Canaries: pairs of harmless requests that show if a device still inspects its traffic.

In each round the client sends a forbidden request and its allowed twin at the same time. The
server's agent (:class:`~broadside.agent.canary_service.CanaryService`) answers both and remembers
them. A datagram is sent again until it is answered, as TCP does with its segments, because the load
can drop it. At the end the client asks the server which requests it has received, in the form of
an allowed one. So a request counts as arrived also if the device dropped only the answer.
"""

import asyncio
import hashlib
import math
import socket
import struct
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from broadside.exchange.canary_rows import CanaryRequests, CanaryRounds
from broadside.exchange.messages import CanaryOutcome, CanaryRequest, CanarySignature, Job
from broadside.exchange.strict_json import read_json

# Header with the token of the job, the number of the round, the kind of the request and the time
# over which the server sends its answer in ms.
HEADER: Final = "X-Broadside-Canary"
FORBIDDEN, ALLOWED, QUESTION = "f", "a", "q"
# Answer to a canary. It is sent byte by byte.
ANSWER: Final = b"...."
# Seconds until a request without an answer is silent, in addition to the time of the answer.
WAIT_S: Final = 2.0
# Seconds by which a round can be late, limited to half a step.
LATE_S: Final = 0.1
# Seconds for each question to the server, and how often it is asked.
QUESTION_S: Final = 2.0
QUESTIONS_COUNT: Final = 3
# Seconds after which a datagram without an answer is sent again.
AGAIN_S: Final = 0.5
# Answers to a datagram: at once, and at the end of the time of the answer.
DATAGRAM_ANSWERS: Final = (b"0", b"1")
_HEAD_MAX_BYTES: Final = 8192
_ANSWER_MAX_BYTES: Final = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryMessage:
    """One request to be sent.

    Attributes:
        request: Its harmless content.
        tag: Value of the header.
    """

    request: CanaryRequest
    tag: str

    def to_bytes(self, address: str, port: int) -> bytes:
        """Return the HTTP request to an address and port.

        Args:
            address: IP address of the server, for the ``Host`` header if the request has no host
                name.
            port: TCP port of the server, used like the address.
        """
        request, body = self.request, self.request.body.encode()
        host = request.host or (f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
        lines = [
            f"{'POST' if body else 'GET'} {request.path} HTTP/1.1",
            f"Host: {host}",
            f"User-Agent: {request.user_agent}",
            f"{HEADER}: {self.tag}",
            *([f"Content-Length: {len(body)}"] if body else []),
            "Connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def to_datagram(self) -> bytes:
        """Return the datagram: the body, and then the tag."""
        return f"{self.request.body}\r\n{HEADER}: {self.tag}\r\n".encode()


@dataclass(frozen=True, slots=True)
class CanaryReply:
    """Outcome of a request, the seconds until then, and the body of the answer."""

    outcome: CanaryOutcome
    took_s: float | None
    body: bytes = b""


def canary_token(job: Job) -> str:
    """Return the token of a job, which all of its canaries have."""
    return hashlib.sha256(f"canary.{job.job_id}".encode()).hexdigest()[:16]


async def send(
    message: CanaryMessage, address: str, port: int, bind: str | None, wait_s: float
) -> CanaryReply:
    """Send a request over TCP.

    Args:
        message: The request.
        address: Address of the server.
        port: Port of the server.
        bind: Source address, or None to use the default.
        wait_s: Seconds until a request without an answer is silent.

    Returns:
        Outcome, seconds until it was known, and the answer.
    """
    began_s = time.monotonic()
    writer: asyncio.StreamWriter | None = None
    seen = _CanaryResponse(message.tag)

    def observed(outcome: CanaryOutcome) -> CanaryReply:
        cut = CanaryOutcome.CUT if seen.is_of_server else outcome
        return CanaryReply(
            cut, seen.last_s - began_s if seen.last_s else time.monotonic() - began_s
        )

    try:
        async with asyncio.timeout(wait_s):
            local = None if bind is None else (bind, 0)
            reader, writer = await asyncio.open_connection(address, port, local_addr=local)
            writer.write(message.to_bytes(address, port))
            await seen.read(reader)
    except TimeoutError:
        return observed(CanaryOutcome.SILENT)
    except OSError:
        return observed(CanaryOutcome.REFUSED if writer is None else CanaryOutcome.RESET)
    finally:
        if writer is not None:
            if not seen.is_complete:
                _discard_unsent(writer)
            writer.transport.abort()
    took_s = time.monotonic() - began_s
    if seen.is_complete:
        return CanaryReply(CanaryOutcome.ANSWERED, took_s, bytes(seen.body))
    if seen.is_foreign:
        return CanaryReply(CanaryOutcome.REPLACED, took_s)
    return observed(CanaryOutcome.RESET)


def _discard_unsent(writer: asyncio.StreamWriter) -> None:
    """Make the end of a connection a reset.

    Else the kernel would send the request again for minutes. A device that begins to pass traffic
    would let it through, and a leak under load would count for the time before the load.
    """
    # The server can have ended the connection.
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )


async def send_datagram(
    message: CanaryMessage, address: str, port: int, bind: str | None, wait_s: float
) -> CanaryReply:
    """Send a request as a datagram, again until it is answered.

    Args:
        message: The request.
        address: Address of the server.
        port: Port of the server.
        bind: Source address, or None to use the default.
        wait_s: Seconds until a request without an answer is silent.

    Returns:
        Outcome, seconds until it was known, and the answer.
    """
    loop, began_s = asyncio.get_running_loop(), time.monotonic()
    answers = _Datagrams(message.tag)
    outcome = CanaryOutcome.SILENT
    transport: asyncio.DatagramTransport | None = None
    try:
        async with asyncio.timeout(wait_s):
            transport, _ = await loop.create_datagram_endpoint(
                lambda: answers,
                local_addr=None if bind is None else (bind, 0),
                remote_addr=(address, port),
            )
            while not answers.is_over.is_set():
                transport.sendto(message.to_datagram())
                with suppress(TimeoutError):
                    await asyncio.wait_for(answers.is_over.wait(), AGAIN_S)
        outcome = CanaryOutcome.REFUSED if answers.is_refused else CanaryOutcome.ANSWERED
    except TimeoutError:
        pass
    except OSError:
        outcome = CanaryOutcome.REFUSED
    finally:
        if transport is not None:
            transport.abort()
    if answers.first_s and outcome is not CanaryOutcome.ANSWERED:
        return CanaryReply(CanaryOutcome.CUT, answers.first_s - began_s)
    return CanaryReply(outcome, time.monotonic() - began_s)


class _Datagrams(asyncio.DatagramProtocol):
    """Answers to a datagram."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        # Monotonic time of the first answer.
        self.first_s: float | None = None
        self.is_refused = False
        self.is_over = asyncio.Event()

    def datagram_received(self, data: bytes, addr: object) -> None:
        first, last = (self._tag.encode() + part for part in DATAGRAM_ANSWERS)
        if data in (first, last):
            self.first_s = self.first_s or time.monotonic()
        if data == last:
            self.is_over.set()

    def error_received(self, exc: Exception) -> None:
        self.is_refused = True
        self.is_over.set()


class _CanaryResponse:
    """Answer to a request, as far as it was received."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._length: int | None = None
        self.body = bytearray()
        # Monotonic time of the newest bytes.
        self.last_s: float | None = None
        self.is_of_server = self.is_foreign = False

    @property
    def is_complete(self) -> bool:
        return self._length is not None and len(self.body) >= self._length

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the answer is complete, foreign or ended."""
        head = bytearray()
        while b"\r\n\r\n" not in head:
            part = await reader.read(_HEAD_MAX_BYTES)
            head += part
            if not part or len(head) > _HEAD_MAX_BYTES:
                self.is_foreign = bool(head)
                return
        self.last_s = time.monotonic()
        text, _, body = bytes(head).partition(b"\r\n\r\n")
        fields = dict(
            line.split(": ", 1) for line in text.decode("latin-1").split("\r\n")[1:] if ": " in line
        )
        if fields.get(HEADER) != self._tag or not fields.get("Content-Length", "").isdecimal():
            self.is_foreign = True
            return
        self.is_of_server, self._length = True, int(fields["Content-Length"])
        self.body += body
        while not self.is_complete and len(self.body) <= _ANSWER_MAX_BYTES:
            part = await reader.read(65_536)
            if not part:
                return
            self.last_s = time.monotonic()
            self.body += part


class CanarySender:
    """Canaries of a single job, from before the planned start to after the end of the burst."""

    def __init__(self, job: Job, bind: str | None) -> None:
        canary = job.traffic.canary
        assert canary is not None  # noqa: S101 - checked by the caller
        self._canary, self._endpoint, self._bind = canary, job.endpoint, bind
        self._token = canary_token(job)
        before = math.ceil(canary.before_s / canary.every_s)
        span_s = job.traffic.omit_s + job.duration_s + canary.after_s
        self._count = before + math.ceil(span_s / canary.every_s)
        # Pairs take turns within a step, so that not all of them send at the same time.
        turn_s = (job.pair_index * 0.618 % 1) * canary.every_s
        self._first_at_s = job.planned_start_at.timestamp() - before * canary.every_s + turn_s
        self._seen: dict[tuple[str, int], CanaryReply] = {}
        self._received: dict[str, Collection[int]] | None = None
        # Ports that the server listens on, by protocol.
        self._ports: Mapping[str, Collection[int]] = {}
        self._over = asyncio.Event()

    def finish(self) -> None:
        """Send no further rounds, because the burst was ended early."""
        self._over.set()

    async def run(self) -> None:
        """Send all rounds on time, then ask the server. A round that was missed is skipped."""
        every_s = self._canary.every_s
        async with asyncio.TaskGroup() as rounds:
            for number in range(self._count):
                wait_s = self._first_at_s + number * every_s - time.time()
                if await self._is_over(wait_s):
                    break
                if -wait_s <= min(LATE_S, every_s / 2):
                    rounds.create_task(self._send_round(number))
        await self._ask()

    async def _is_over(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                return await self._over.wait()
        except TimeoutError:
            return False

    async def _send_round(self, number: int) -> None:
        signature = self._signature(number)
        kinds = ((FORBIDDEN, signature.forbidden), (ALLOWED, signature.allowed))
        results = await asyncio.gather(*(self._send(kind, number, r) for kind, r in kinds))
        for (kind, _), seen in zip(kinds, results, strict=True):
            self._seen[kind, number] = seen

    def _signature(self, number: int) -> CanarySignature:
        signatures = self._canary.signatures
        return signatures[number % len(signatures)]

    async def _send(self, kind: str, number: int, request: CanaryRequest) -> CanaryReply:
        canary, endpoint = self._canary, self._endpoint
        hold_ms = 0 if kind == QUESTION else round(canary.hold_s * 1000)
        return await (send_datagram if request.over_udp else send)(
            CanaryMessage(request=request, tag=f"{self._token}.{number}.{kind}.{hold_ms}"),
            endpoint.address,
            canary.forbidden_port if request.to_forbidden_port else canary.port,
            self._bind,
            QUESTION_S if kind == QUESTION else WAIT_S + canary.hold_s,
        )

    async def _ask(self) -> None:
        """Ask the server what it has received, in the form of an allowed request."""
        for number in range(QUESTIONS_COUNT):
            seen = await self._send(QUESTION, number, CanaryRequest())
            if seen.outcome is CanaryOutcome.ANSWERED:
                answer = await read_json(seen.body, _ANSWER_MAX_BYTES)
                self._ports = answer["ports"]
                self._received = {k: frozenset(answer[k]) for k in (FORBIDDEN, ALLOWED)}
                return

    @property
    def rounds(self) -> CanaryRounds:
        """Results so far."""
        return CanaryRounds(
            first_at_s=self._first_at_s,
            every_s=self._canary.every_s,
            forbidden=self._requests(FORBIDDEN),
            allowed=self._requests(ALLOWED),
        )

    def _requests(self, kind: str) -> CanaryRequests:
        nothing = CanaryReply(CanaryOutcome.NOT_SENT, None)
        seen = [self._seen.get((kind, number), nothing) for number in range(self._count)]
        return CanaryRequests(
            outcomes=tuple(one.outcome for one in seen),
            took_us=tuple(None if one.took_s is None else round(one.took_s * 1e6) for one in seen),
            received=tuple(
                self._is_received(kind, number, one.outcome) for number, one in enumerate(seen)
            ),
        )

    def _is_received(self, kind: str, number: int, outcome: CanaryOutcome) -> bool | None:
        if outcome in (CanaryOutcome.ANSWERED, CanaryOutcome.CUT):
            return True
        signature = self._signature(number)
        request = signature.forbidden if kind == FORBIDDEN else signature.allowed
        port = self._canary.forbidden_port if request.to_forbidden_port else self._canary.port
        # If the server does not listen, the request is no evidence about the device.
        ports = self._ports.get("udp" if request.over_udp else "tcp", ())
        if self._received is None or port not in ports or outcome is CanaryOutcome.NOT_SENT:
            return None
        return number in self._received[kind]
