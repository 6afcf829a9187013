"""HTTPS client that an agent uses for its coordinator, with batched requests and a stream.

Operations that are called at about the same time are sent in one request. Each operation has an id.
If an operation is repeated after a lost response, the coordinator recognizes its id and returns the
first response again. The ids contain a counter. If an operation was given up but arrives late, it
can therefore not overwrite a later one.

The stream is a request with an endless response. The coordinator uses it to send jobs and control
rows, as one line of JSON each. All connections are outbound, use one port and support a proxy
(``HTTPS_PROXY``).
"""

import asyncio
import json
import logging
import random
import ssl
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import httpx

from broadside.exchange import ports
from broadside.exchange.background import restart_on_error
from broadside.exchange.http.bounded import ask
from broadside.exchange.http.credential import AgentCredential
from broadside.exchange.limits import split
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import (
    Entity,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeRefused,
    ExchangeUnavailable,
    TableError,
)
from broadside.exchange.row_text import entity_of
from broadside.exchange.strict_json import read_json

# How long to retry an operation, in seconds.
CALL_S: Final = 12.0
# Time to wait for a read or write in a single attempt, in seconds.
TRY_S: Final = 6.0
CONNECT_S: Final = 3.0
# How long to wait for more operations before we send a request, in seconds.
LINGER_S: Final = 0.003
# Maximum operations in one request.
OPERATIONS_MAX_COUNT: Final = 1_000
# Maximum bytes of operations in one request. If an operation is larger, it will be sent in a
# separate request.
REQUEST_BYTES: Final = 4 * 2**20
# We only compress requests that are larger than this.
PACKED_FROM_BYTES: Final = 1024
# Pause before the second attempt and longest pause, in seconds.
PAUSES_S: Final = (0.1, 2.0)
# If we do not receive a line for this time, the stream should be opened again. The coordinator will
# send one every 3 s.
SILENT_S: Final = 9.0
# We can use rows from the stream for this time after the last line.
FRESH_S: Final = 6.0
# If the last request for a watched row is older than this, in seconds, we will request it again.
WATCH_S: Final = 60.0
# Age of a secret after which we renew it, in seconds.
RENEW_S: Final = 86_400.0
RENEW_LOOK_S: Final = 600.0
# The maximum response size to read. A response can contain one raw output, or many rows.
ANSWER_MAX_BYTES: Final = 96 * 2**20
# Maximum size of a line on the stream, which contains a job or a control row.
LINE_MAX_BYTES: Final = 4 * 2**20
# If a receive call was cancelled, it can have locked a message. How long to wait until it is
# released, in seconds.
GIVE_BACK_S: Final = 2.0
# X509_V_FLAG_NO_CHECK_TIME. The ssl module of Python has no name for it.
_NO_CHECK_TIME: Final = 0x200000

_ERRORS: Final[Mapping[str, type[ExchangeError]]] = {
    error.__name__: error
    for error in vars(ports).values()
    if isinstance(error, type) and issubclass(error, ExchangeError)
}

# Exceptions that an invalid line on the stream can raise.
_NO_NEWS: Final = (ValueError, KeyError, TypeError)

log = logging.getLogger(__name__)
# httpx logs every request at INFO.
logging.getLogger("httpx").setLevel(logging.WARNING)


@dataclass(slots=True, kw_only=True)
class _PendingRequest:
    """An operation that waits for its response.

    Attributes:
        text: The operation as JSON.
        kind: The kind of outage to record if it fails.
        answer: Future for the result of the operation.
    """

    text: str
    kind: OutageKind
    answer: "asyncio.Future[Any]"


@dataclass(slots=True, kw_only=True)
class _Subscription:
    """A row that the coordinator sends on the stream whenever it has changed.

    Attributes:
        row: The row, or None if it does not exist.
        version: Version from the coordinator.
        requested_s: Time of the last request for this row, in monotonic seconds.
    """

    row: Entity | None
    version: int
    requested_s: float


@dataclass(slots=True)
class CoordinatorClient:
    """HTTPS client of one agent for its coordinator.

    The first call opens the connections. A process that forks must do so before that call. All
    methods can raise ``ExchangeUnavailable`` and ``ExchangeRefused``.

    Attributes:
        credential: Credential of the agent.
        troubles: Log to record outages in.
        revoked: Set when the coordinator has rejected every secret of this agent.
    """

    credential: AgentCredential
    troubles: OutageLog = field(default_factory=OutageLog)
    _client: httpx.AsyncClient | None = None
    # Index of the coordinator URL in use.
    _base: int = 0
    _pending: list[_PendingRequest] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _lingering: bool = False
    _session: str = field(default_factory=lambda: uuid4().hex)
    # Number of operations so far.
    _count: int = 0
    _stream: asyncio.Task[None] | None = None
    _live: asyncio.Event = field(default_factory=asyncio.Event)
    _broken: asyncio.Event = field(default_factory=asyncio.Event)
    _refused: ExchangeError | None = None
    # Set when the coordinator has rejected the current secret.
    _shut_out: asyncio.Event = field(default_factory=asyncio.Event)
    revoked: asyncio.Event = field(default_factory=asyncio.Event)
    # Reason of the current outage. Empty after a successful request.
    _why: str = ""
    _last_answer_s: float = 0.0
    _wants: dict[str, "asyncio.Future[Any]"] = field(default_factory=dict)
    _subscriptions: dict[str, _Subscription] = field(default_factory=dict)

    async def call(
        self, do: str, *, kind: OutageKind = OutageKind.TABLE_AWAY, **message: Any
    ) -> Any:
        """Execute one operation at the coordinator.

        Args:
            do: The operation name.
            kind: The kind of outage to record if it fails.
            message: Arguments to send with the operation.

        Returns:
            The result. If the coordinator reports an error, that error is raised.
        """
        self._count += 1
        text = json.dumps({"id": f"{self._session}.{self._count}", "do": do, **message})
        request = _PendingRequest(
            text=text, kind=kind, answer=asyncio.get_running_loop().create_future()
        )
        self._pending.append(request)
        if not self._lingering:
            self._lingering = True
            self._begin(self._send_pending())
        return await request.answer

    async def request(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        """Send a separate request and retry it until there is a response.

        Args:
            method: HTTP method, such as ``GET``.
            path: Path below ``/v1/exchange/``.
            content: The body to send, or None.

        Returns:
            The response, with status 200 or 404.
        """
        return await self._repeated(method, path, content, {}, OutageKind.RAW_AWAY)

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._stream] if self._stream else [])]
        self._stream = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # Requests ---------------------------------------------------------------------------------

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_pending(self) -> None:
        await asyncio.sleep(LINGER_S)
        self._lingering = False
        pending, self._pending = self._pending, []
        for part in split(
            pending, lambda request: len(request.text), REQUEST_BYTES, OPERATIONS_MAX_COUNT
        ):
            self._begin(self._send(part))

    async def _send(self, part: Sequence[_PendingRequest]) -> None:
        try:
            content = f"[{','.join(request.text for request in part)}]".encode()
            headers = {"Content-Type": "application/json"}
            if len(content) > PACKED_FROM_BYTES:
                content = zlib.compress(content, 1)
                headers["Content-Encoding"] = "deflate"
            response = await self._repeated(
                "POST", "operations", content, headers, *{request.kind for request in part}
            )
            answers = await read_json(response.content, ANSWER_MAX_BYTES)
            if not (
                isinstance(answers, list)
                and len(answers) == len(part)
                and all(isinstance(answer, dict) for answer in answers)
            ):
                raise ExchangeUnavailable(f"{response.url}: the answer is not from a coordinator")
        except BaseException as error:
            # Every caller should get a result, so we need to handle any error.
            named = error if isinstance(error, ExchangeError) else None
            for request in part:
                if not request.answer.done():
                    request.answer.set_exception(
                        named or ExchangeUnavailable(f"no answer that can be read: {error!r}")
                    )
            if not isinstance(error, Exception):
                raise
            return
        for request, answer in zip(part, answers, strict=True):
            if request.answer.done():
                continue
            if (name := answer.get("error")) is not None:
                request.answer.set_exception(error_of(name, str(answer.get("said"))))
            else:
                request.answer.set_result(answer.get("ok"))

    async def _repeated(
        self,
        method: str,
        path: str,
        content: bytes | None,
        headers: Mapping[str, str],
        *kinds: OutageKind,
    ) -> httpx.Response:
        until_s = time.monotonic() + CALL_S
        pause_s = PAUSES_S[0]
        while True:
            url = self._url(path)
            try:
                response = await ask(
                    self._opened(),
                    method,
                    url,
                    ANSWER_MAX_BYTES,
                    content=content,
                    headers={**self._authorization(), **headers},
                )
            except httpx.HTTPError as error:
                why = failure(error)
            else:
                if response.status_code in (200, 404):
                    self._why = ""
                    for kind in kinds:
                        self.troubles.record_success(kind)
                    return response
                if response.status_code == httpx.codes.UNAUTHORIZED:
                    self._shut_out.set()
                if (refused := refusal(response)) is not None:
                    raise refused
                why = f"answer {response.status_code}"
            # We should not log the first failure, because usually the server has just closed the
            # connection.
            if pause_s > PAUSES_S[0]:
                self._note(url, why)
            for kind in kinds:
                self.troubles.failed(kind)
            self._base += 1
            pause_s = min(pause_s, PAUSES_S[1])
            if time.monotonic() + pause_s > until_s:
                raise ExchangeUnavailable(
                    f"{url}: {why}; is the coordinator up, and its port reachable?"
                )
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            pause_s *= 2

    def _note(self, url: str, why: str) -> None:
        """Log the reason of an outage once.

        It will be logged here because the caller may stop before the error is raised.
        """
        if why != self._why:
            self._why = why
            log.warning("%s: %s", url, why, extra={"action": "unreached"})

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = open_client(self.credential.authority)
            if self.credential.path is not None:
                self._begin(restart_on_error(self._renew_forever))
        return self._client

    async def _renew_forever(self) -> None:
        """Renew the secret once a day. The old secret is valid until the new one is first used."""
        while True:
            age_s = time.time() - self.credential.issued_s
            if not 0 <= age_s < RENEW_S and (path := self.credential.path) is not None:
                renewed = self.credential.renewed()
                try:
                    await self._announce(renewed)
                    self.credential = renewed.save(path)
                except (ExchangeError, OSError) as error:
                    log.warning("credential not renewed: %s", error, extra={"action": "renew"})
            self._shut_out.clear()
            with suppress(TimeoutError, ExchangeUnavailable):
                async with asyncio.timeout(RENEW_LOOK_S):
                    await self._shut_out.wait()
                if not await self.let_in_again():
                    self.revoked.set()
                    await asyncio.sleep(RENEW_LOOK_S)

    async def let_in_again(self) -> bool:
        """Return True if a coordinator accepts the newest secret after a rejection.

        A request that was sent while the secret changed can be rejected although the newest secret
        is valid. A coordinator that was restored from a backup knows only an earlier secret. This
        method then uses the earlier secret to announce the newest one.

        Raises:
            ExchangeUnavailable: No coordinator responds.
        """
        for _ in self.credential.coordinators:
            with suppress(ExchangeRefused):
                await self._repeated("POST", "operations", b"[]", {})
                return True
            # We should also try the other coordinators, because this agent might not be known to a
            # standby coordinator.
            self._base += 1
        for secret in self.credential.earlier:
            try:
                await self._announce(self.credential, {"Authorization": f"Bearer {secret}"})
            except ExchangeRefused:
                continue
            message = "an earlier secret is known, not the newest: a backup was restored"
            log.warning(message, extra={"action": "renew"})
            return True
        return False

    async def _announce(
        self, credential: AgentCredential, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send the hash of a new secret. The coordinator activates the secret at its first use."""
        content = json.dumps({"sha256": credential.sha256}).encode()
        await self._repeated("POST", "renew", content, headers or {})

    def _url(self, path: str) -> str:
        bases = self.credential.coordinators
        return f"{bases[self._base % len(bases)]}/v1/exchange/{path}"

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credential.secret}"}

    # The stream -------------------------------------------------------------------------------

    async def _streaming(self) -> None:
        """Wait until the stream is open. Raise ``ExchangeUnavailable`` or ``ExchangeRefused``."""
        if self._stream is None:
            self._stream = asyncio.create_task(self._stream_forever())
        if self._live.is_set():
            return
        try:
            async with asyncio.timeout(CALL_S):
                await self._live.wait()
        except TimeoutError:
            why = self._why or f"no answer within {CALL_S:g} s"
            raise self._refused or ExchangeUnavailable(f"{self._url('stream')}: {why}") from None

    async def _stream_forever(self) -> None:
        pause_s = PAUSES_S[0]
        while True:
            began_s = time.monotonic()
            ended = False
            with suppress(*_NO_NEWS):
                try:
                    await self._read_stream()
                    # The coordinator closes an open stream when the secret changes.
                    ended = self._live.is_set()
                except httpx.HTTPError as error:
                    if not self._live.is_set():
                        self._note(self._url("stream"), failure(error))
            self._live.clear()
            self._subscriptions.clear()
            self._broken.set()
            if not ended:
                self.troubles.failed(OutageKind.QUEUE_AWAY)
                self._base += 1
            if time.monotonic() - began_s > PAUSES_S[1]:
                pause_s = PAUSES_S[0]
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            pause_s = min(pause_s * 2, PAUSES_S[1])

    async def _read_stream(self) -> None:
        timeout = httpx.Timeout(CONNECT_S, read=SILENT_S)
        async with self._opened().stream(
            "GET",
            self._url("stream"),
            params={"session": self._session},
            headers=self._authorization(),
            timeout=timeout,
        ) as response:
            self._refused = None
            if response.status_code != httpx.codes.OK:
                if response.status_code == httpx.codes.UNAUTHORIZED:
                    self._shut_out.set()
                self._refused = refusal(
                    httpx.Response(response.status_code, request=response.request)
                )
                return
            rest = b""
            async for piece in response.aiter_raw():
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > LINE_MAX_BYTES:
                    raise httpx.RemoteProtocolError(f"a line of over {LINE_MAX_BYTES} bytes")
                self._last_answer_s = time.monotonic()
                if not self._live.is_set():
                    self._broken.clear()
                    self._live.set()
                    self._why = ""
                    self.troubles.record_success(OutageKind.QUEUE_AWAY)
                for line in lines:
                    self._hear(await read_json(line, LINE_MAX_BYTES))

    def _hear(self, news: Mapping[str, Any]) -> None:
        match news:
            case {"want": str(want), "delivery": delivery}:
                answer = self._wants.get(want)
                if answer is not None and not answer.done():
                    answer.set_result(delivery)
            case {"watch": str(partition), "row": row, "version": int(version)}:
                watched = self._subscriptions.get(partition)
                if watched is not None and version >= watched.version:
                    watched.row, watched.version = _row(row), version

    async def receive(self, wait_s: float) -> Mapping[str, Any] | None:
        """Receive one message through the stream.

        Args:
            wait_s: The maximum time to wait for a message, in seconds.

        Returns:
            The fields of the delivery, or None if no message arrived in time.

        Raises:
            ExchangeUnavailable: The coordinator did not answer in time.
            ExchangeError: The coordinator reported another error.
        """
        want = uuid4().hex
        until_s = time.monotonic() + wait_s
        answer = self._wants[want] = asyncio.get_running_loop().create_future()
        try:
            while True:
                await self._streaming()
                left_s = max(0.0, until_s - time.monotonic())
                await self.call(
                    "want",
                    kind=OutageKind.QUEUE_AWAY,
                    session=self._session,
                    want=want,
                    wait_s=left_s,
                )
                broken = asyncio.create_task(self._broken.wait())
                try:
                    await asyncio.wait(
                        {broken, answer},
                        timeout=left_s + TRY_S,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    broken.cancel()
                if answer.done():
                    delivery: Mapping[str, Any] | None = answer.result()
                    return delivery
                if not self._broken.is_set():
                    raise ExchangeUnavailable(
                        f"{self._url('stream')}: the coordinator does not respond"
                    )
        except BaseException:
            # We need to release a message that may be locked, even if this call was cancelled.
            with suppress(ExchangeError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_S):
                    await self.call("unwant", kind=OutageKind.QUEUE_AWAY, want=want)
            raise
        finally:
            del self._wants[want]

    async def watched(self, partition: str) -> Entity | None:
        """Return the control row of a run, or None if it does not exist.

        The first call requests the row. The coordinator then sends changes on the stream.
        """
        now_s = time.monotonic()
        subscription = self._subscriptions.get(partition)
        vouched = self._live.is_set() and now_s - self._last_answer_s <= FRESH_S
        if subscription is not None and vouched and now_s - subscription.requested_s <= WATCH_S:
            return subscription.row
        await self._streaming()
        answer = await self.call("watch", session=self._session, partition=partition)
        row, version = _row(answer["row"]), int(answer["version"])
        subscription = self._subscriptions.setdefault(
            partition, _Subscription(row=row, version=-1, requested_s=now_s)
        )
        subscription.requested_s = now_s
        if version >= subscription.version:
            subscription.row, subscription.version = row, version
        return subscription.row


def open_client(authority: str | None) -> httpx.AsyncClient:
    """Return an HTTPS client that trusts the coordinator's authority (PEM), or the system's.

    The authority of a coordinator signs only certificates of that coordinator. The client therefore
    accepts a certificate from this authority under any host name, for example behind address
    translation or on a standby host. It also ignores the validity period, so that a host with a
    wrong clock can connect and report its clock error.

    Args:
        authority: Certificate authority, PEM. None means the system's authorities.
    """
    verify: ssl.SSLContext | bool = True
    if authority is not None:
        verify = trust_authority(authority)
    return httpx.AsyncClient(
        verify=verify,
        headers={"Accept-Encoding": "identity"},
        timeout=httpx.Timeout(CONNECT_S, read=TRY_S, write=TRY_S),
        limits=httpx.Limits(max_connections=16, keepalive_expiry=50),
    )


def trust_authority(authority: str) -> ssl.SSLContext:
    """Return an SSL context that trusts certificates signed by a coordinator's authority (PEM)."""
    context = ssl.create_default_context(cadata=authority)
    context.check_hostname = False
    # Python 3.13 enforces RFC 5280 by default. Authorities from before 0.9 have no key
    # identifiers, and agents of an upgraded fleet still use them. The flags must be integers here,
    # because the complement of a Python flag loses the bits that have no name in Python.
    flags = int(context.verify_flags) & ~int(ssl.VERIFY_X509_STRICT)
    context.verify_flags = ssl.VerifyFlags(flags | _NO_CHECK_TIME)
    return context


def failure(error: httpx.HTTPError) -> str:
    """Return why a request failed. If the certificate was rejected, the text includes the fix."""
    message = f"{type(error).__name__} {error}".rstrip()
    if "CERTIFICATE_VERIFY_FAILED" not in message:
        return message
    return (
        f"{message}: the certificate was rejected. This is another coordinator than the one that "
        "this host joined, or it lost its tls folder (restore its backup, or join again), or its "
        "certificate is from an authority that this system does not trust (set SSL_CERT_FILE)"
    )


def refusal(response: httpx.Response) -> ExchangeError | None:
    """Return the error of a response that a retry cannot fix, or None if a retry can fix it."""
    message = f"{response.url}: {response.status_code} {response.text[:300]}"
    match response.status_code:
        case 401 | 403:
            return ExchangeRefused(f"{message}; was this agent revoked? join with a new code")
        case 429:
            return None
        case status if 400 <= status < 500:
            return ExchangeMisconfigured(message)
    return None


def error_of(name: str, message: str) -> ExchangeError:
    """Return the error that the coordinator reported.

    Args:
        name: Class name of the error. An unknown name results in ``TableError``.
        message: Message of the error.
    """
    return _ERRORS.get(name, TableError)(message)


def _row(answer: Any) -> Entity | None:
    return None if answer is None else entity_of(answer["row"], answer["etag"])
