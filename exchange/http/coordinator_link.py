"""One agent's way to its coordinator: small requests that are repeated, and one long answer.

What is asked at about the same time travels as one request. Each operation has an id, by which the
coordinator knows a repetition and gives it the first one's answer; so a lost answer costs nothing.
Ids are counted: what was given up, and arrives late all the same, replaces no later word.
On a stream, a request whose answer never ends, the coordinator pushes jobs and control rows: a line
of JSON each. All of it is outward and by one port, and goes through a proxy (``HTTPS_PROXY``).
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
from broadside.exchange.background import keep_going
from broadside.exchange.http.bounded import ask
from broadside.exchange.http.credential import Credential
from broadside.exchange.limits import split
from broadside.exchange.messages import TroubleKind
from broadside.exchange.ports import (
    Entity,
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeRefused,
    ExchangeUnavailable,
    TableError,
)
from broadside.exchange.row_text import entity_of
from broadside.exchange.troubles import TroubleLog

CALL_S: Final = 12.0  # s in which an operation is tried again
TRY_S: Final = 6.0  # s that one try may take
CONNECT_S: Final = 3.0
LINGER_S: Final = 0.003  # s in which what is asked side by side becomes one request
OPERATIONS_MAX_COUNT: Final = 1_000  # in one request
REQUEST_BYTES: Final = 4 * 2**20  # of operations in one request, unless one alone is larger
PACKED_FROM_BYTES: Final = 1024  # shorter requests travel as they are
PAUSES_S: Final = (0.1, 2.0)  # s before the second try, and at most
SILENT_S: Final = 9.0  # s without a line after which a stream is dead: it has one every 3 s
FRESH_S: Final = 6.0  # s since its last line in which a stream vouches for what it told
WATCH_S: Final = 60.0  # s after which a watched row is asked for again
RENEW_S: Final = 86_400.0  # s after which a credential's secret is changed
RENEW_LOOK_S: Final = 600.0
ANSWER_MAX_BYTES: Final = 96 * 2**20  # of an answer: an output, or many rows
LINE_MAX_BYTES: Final = 4 * 2**20  # of a stream's line: a job or a control row
GIVE_BACK_S: Final = 2.0  # s for what a cancelled receive may have locked
_NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which Python's ssl does not name

_ERRORS: Final[Mapping[str, type[ExchangeError]]] = {
    error.__name__: error
    for error in vars(ports).values()
    if isinstance(error, type) and issubclass(error, ExchangeError)
}

_NO_NEWS: Final = (ValueError, KeyError, TypeError, RecursionError)  # of a line that is none

log = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells every request at INFO


@dataclass(slots=True, kw_only=True)
class _Asked:
    """An operation that waits for its answer."""

    text: str  # JSON
    kind: TroubleKind
    answer: "asyncio.Future[Any]"


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A row that the coordinator tells of when it changes."""

    row: Entity | None
    version: int
    asked_s: float  # monotonic


@dataclass(slots=True)
class Link:
    """Opened by its first use, which belongs after any fork; every verb may raise
    ``ExchangeUnavailable`` and ``ExchangeRefused``."""

    credential: Credential
    troubles: TroubleLog = field(default_factory=TroubleLog)
    _client: httpx.AsyncClient | None = None
    _base: int = 0  # which of the coordinator's addresses is in use
    _pending: list[_Asked] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _lingering: bool = False
    _session: str = field(default_factory=lambda: uuid4().hex)
    _count: int = 0  # of operations
    _stream: asyncio.Task[None] | None = None
    _live: asyncio.Event = field(default_factory=asyncio.Event)
    _broken: asyncio.Event = field(default_factory=asyncio.Event)
    _refused: ExchangeError | None = None
    _shut_out: asyncio.Event = field(default_factory=asyncio.Event)  # the secret was refused
    revoked: asyncio.Event = field(default_factory=asyncio.Event)  # every secret of ours is refused
    _why: str = ""  # nothing goes through, since it last did
    _heard_s: float = 0.0
    _wants: dict[str, "asyncio.Future[Any]"] = field(default_factory=dict)
    _watched: dict[str, _Watched] = field(default_factory=dict)

    async def call(
        self, do: str, *, kind: TroubleKind = TroubleKind.TABLE_AWAY, **said: Any
    ) -> Any:
        """Have the coordinator do one operation; its answer, or the error that it names."""
        self._count += 1
        text = json.dumps({"id": f"{self._session}.{self._count}", "do": do, **said})
        asked = _Asked(text=text, kind=kind, answer=asyncio.get_running_loop().create_future())
        self._pending.append(asked)
        if not self._lingering:
            self._lingering = True
            self._begin(self._send_pending())
        return await asked.answer

    async def request(self, method: str, path: str, content: bytes | None = None) -> httpx.Response:
        """A request of its own, repeated until it is answered."""
        return await self._repeated(method, path, content, {}, TroubleKind.RAW_AWAY)

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
            pending, lambda asked: len(asked.text), REQUEST_BYTES, OPERATIONS_MAX_COUNT
        ):
            self._begin(self._send(part))

    async def _send(self, part: Sequence[_Asked]) -> None:
        try:
            content = f"[{','.join(asked.text for asked in part)}]".encode()
            headers = {"Content-Type": "application/json"}
            if len(content) > PACKED_FROM_BYTES:
                content = zlib.compress(content, 1)
                headers["Content-Encoding"] = "deflate"
            response = await self._repeated(
                "POST", "operations", content, headers, *{asked.kind for asked in part}
            )
            answers = response.json()
            if not (
                isinstance(answers, list)
                and len(answers) == len(part)
                and all(isinstance(answer, dict) for answer in answers)
            ):
                raise ExchangeUnavailable(f"{response.url}: that was no coordinator's answer")
        except BaseException as error:  # whatever it is: who waits for an answer has one
            named = error if isinstance(error, ExchangeError) else None
            for asked in part:
                if not asked.answer.done():
                    asked.answer.set_exception(
                        named or ExchangeUnavailable(f"no answer that can be read: {error!r}")
                    )
            if not isinstance(error, Exception):
                raise
            return
        for asked, answer in zip(part, answers, strict=True):
            if asked.answer.done():
                continue
            if (name := answer.get("error")) is not None:
                asked.answer.set_exception(error_of(name, str(answer.get("said"))))
            else:
                asked.answer.set_result(answer.get("ok"))

    async def _repeated(
        self,
        method: str,
        path: str,
        content: bytes | None,
        headers: Mapping[str, str],
        *kinds: TroubleKind,
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
                        self.troubles.went_well(kind)
                    return response
                if response.status_code == httpx.codes.UNAUTHORIZED:
                    self._shut_out.set()
                if (refused := refusal(response)) is not None:
                    raise refused
                why = f"answer {response.status_code}"
            if pause_s > PAUSES_S[0]:  # what the second try mends is a connection that was closed
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
        """Log what stands in the way, once: who asks may lose patience before it is told."""
        if why != self._why:
            self._why = why
            log.warning("%s: %s", url, why, extra={"action": "unreached"})

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = open_client(self.credential.authority)
            if self.credential.path is not None:
                self._begin(keep_going(self._keep_renewed))
        return self._client

    async def _keep_renewed(self) -> None:
        """Change the secret when it is a day old; the old one ends with the new one's first use."""
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
        """Return whether a coordinator that refused a secret accepts the newest one now.

        A request that was under way while the secret changed is refused alone. A coordinator whose
        backup was restored knows an earlier secret, and takes the newest one for its next.

        Raises:
            ExchangeUnavailable: No coordinator answers.
        """
        with suppress(ExchangeRefused):
            await self._repeated("POST", "operations", b"[]", {})
            return True
        for secret in self.credential.earlier:
            try:
                await self._announce(self.credential, {"Authorization": f"Bearer {secret}"})
            except ExchangeRefused:
                continue
            said = "an earlier secret is known, not the newest: a backup was restored"
            log.warning(said, extra={"action": "renew"})
            return True
        return False

    async def _announce(
        self, credential: Credential, headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell of a credential's secret, by its hash, which its first use puts in force."""
        content = json.dumps({"sha256": credential.sha256}).encode()
        await self._repeated("POST", "renew", content, headers or {})

    def _url(self, path: str) -> str:
        bases = self.credential.coordinators
        return f"{bases[self._base % len(bases)]}/v1/exchange/{path}"

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credential.secret}"}

    # The stream -------------------------------------------------------------------------------

    async def _streaming(self) -> None:
        """Wait until the stream stands. Raises ``ExchangeUnavailable``, ``ExchangeRefused``."""
        if self._stream is None:
            self._stream = asyncio.create_task(self._keep_stream())
        if self._live.is_set():
            return
        try:
            async with asyncio.timeout(CALL_S):
                await self._live.wait()
        except TimeoutError:
            why = self._why or f"no answer within {CALL_S:g} s"
            raise self._refused or ExchangeUnavailable(f"{self._url('stream')}: {why}") from None

    async def _keep_stream(self) -> None:
        pause_s = PAUSES_S[0]
        while True:
            began_s = time.monotonic()
            ended = False
            with suppress(*_NO_NEWS):
                try:
                    await self._read_stream()
                    ended = self._live.is_set()  # by the coordinator: the secret was changed
                except httpx.HTTPError as error:
                    if not self._live.is_set():
                        self._note(self._url("stream"), failure(error))
            self._live.clear()
            self._watched.clear()
            self._broken.set()
            if not ended:
                self.troubles.failed(TroubleKind.QUEUE_AWAY)
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
                self._heard_s = time.monotonic()
                if not self._live.is_set():
                    self._broken.clear()
                    self._live.set()
                    self._why = ""
                    self.troubles.went_well(TroubleKind.QUEUE_AWAY)
                for line in lines:
                    self._hear(json.loads(line))

    def _hear(self, news: Mapping[str, Any]) -> None:
        match news:
            case {"want": str(want), "delivery": delivery}:
                answer = self._wants.get(want)
                if answer is not None and not answer.done():
                    answer.set_result(delivery)
            case {"watch": str(partition), "row": row, "version": int(version)}:
                watched = self._watched.get(partition)
                if watched is not None and version >= watched.version:
                    watched.row, watched.version = _row(row), version

    async def receive(self, wait_s: float) -> Mapping[str, Any] | None:
        """A delivery's fields, or None when there was none in time."""
        want = uuid4().hex
        until_s = time.monotonic() + wait_s
        answer = self._wants[want] = asyncio.get_running_loop().create_future()
        try:
            while True:
                await self._streaming()
                left_s = max(0.0, until_s - time.monotonic())
                await self.call(
                    "want",
                    kind=TroubleKind.QUEUE_AWAY,
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
                    raise ExchangeUnavailable(f"{self._url('stream')}: the coordinator is silent")
        except BaseException:  # also cancelled: what it may have locked goes back
            with suppress(ExchangeError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_S):
                    await self.call("unwant", kind=TroubleKind.QUEUE_AWAY, want=want)
            raise
        finally:
            del self._wants[want]

    async def watched(self, partition: str) -> Entity | None:
        """A run's control row, as the coordinator last told: asked once, then pushed."""
        now_s = time.monotonic()
        found = self._watched.get(partition)
        vouched = self._live.is_set() and now_s - self._heard_s <= FRESH_S
        if found is not None and vouched and now_s - found.asked_s <= WATCH_S:
            return found.row
        await self._streaming()
        told = await self.call("watch", session=self._session, partition=partition)
        row, version = _row(told["row"]), int(told["version"])
        found = self._watched.setdefault(partition, _Watched(row=row, version=-1, asked_s=now_s))
        found.asked_s = now_s
        if version >= found.version:
            found.row, found.version = row, version
        return found.row


def open_client(authority: str | None) -> httpx.AsyncClient:
    """HTTPS with the coordinator's own authority (PEM), or the system's where there is none.

    That authority signs for one coordinator and nothing else, so whatever it signed *is* the
    coordinator: behind an address translation, on the host that stands in for it, and whatever the
    time is here. A host whose clock is days off is shown as such, in place of nowhere.
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
    """Return a context that trusts what a coordinator's own authority (PEM) signed."""
    context = ssl.create_default_context(cadata=authority)
    context.check_hostname = False
    # Python 3.13 is strict about RFC 5280 by default. Authorities made before 0.9 have no key
    # identifiers, and agents of a fleet that was upgraded still trust those.
    # As numbers: the complement of one of Python's flags lacks those that Python does not name.
    flags = int(context.verify_flags) & ~int(ssl.VERIFY_X509_STRICT)
    context.verify_flags = ssl.VerifyFlags(flags | _NO_CHECK_TIME)
    return context


def failure(error: httpx.HTTPError) -> str:
    """Why nothing went through, with what mends a certificate that is not believed."""
    said = f"{type(error).__name__} {error}".rstrip()
    if "CERTIFICATE_VERIFY_FAILED" not in said:
        return said
    return (
        f"{said}: not the coordinator that this host joined, one that lost its tls folder (restore "
        "its backup, or join anew), or a site's authority that this system does not know "
        "(SSL_CERT_FILE)"
    )


def refusal(response: httpx.Response) -> ExchangeError | None:
    """What an answer says that no repetition mends."""
    said = f"{response.url}: {response.status_code} {response.text[:300]}"
    match response.status_code:
        case 401 | 403:
            return ExchangeRefused(f"{said}; was this agent revoked? join with a new code")
        case 429:
            return None
        case status if 400 <= status < 500:
            return ExchangeMisconfigured(said)
    return None


def error_of(name: str, said: str) -> ExchangeError:
    """An error that the coordinator named."""
    return _ERRORS.get(name, TableError)(said)


def _row(told: Any) -> Entity | None:
    return None if told is None else entity_of(told["row"], told["etag"])
