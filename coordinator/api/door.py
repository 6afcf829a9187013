"""ASGI middleware for authentication, authorization, rate limits and the audit log.

It runs before routing, so every route requires a token, also one that is added later.
:mod:`broadside.coordinator.auth.rights` defines the permission that each route requires.
"""

import contextlib
import ipaddress
import logging
import math
import re
import time
import urllib.parse
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broadside.coordinator.api.problems import problem
from broadside.coordinator.auth.audit import Audit, AuditRow
from broadside.coordinator.auth.principal import (
    ANYBODY,
    Access,
    KeysUnavailable,
    NoRole,
    NotSignedIn,
    Principal,
)
from broadside.coordinator.auth.rights import Right, right_of
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.bounded_listener import BodyClock
from broadside.coordinator.requests_at_once import RETRY_AFTER_S, RequestsAtOnce, TooManyAtOnce
from broadside.exchange.ports import ExchangeError

log = logging.getLogger(__name__)

# Maximum path length in the audit log.
_PATH_MAX_CHARS: Final = 300
_IMPORTS: Final = "/v1/imports/"
# By name, because the first two are raised by anyio and the last by Starlette, which are not direct
# dependencies.
_DEPARTURES: Final = ("BrokenResourceError", "ClosedResourceError", "ClientDisconnect")
# Maximum number of imports of one caller, because each import has its whole body in memory.
IMPORTS_AT_ONCE: Final = 2
_LOCATION: Final = re.compile(r"/v1/runs/([a-z0-9-]+)")


def is_loopback(host: str) -> bool:
    """Return True if a socket that listens on ``host`` is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Middleware settings. The defaults allow everything without sign-in.

    Attributes:
        sign_in: Authenticates callers. None to treat every caller as `unsigned`.
        writes_per_minute: Limit for one caller's writes per minute. None for no limit.
        request_max_bytes: Limit for a request body. None for no limit.
        import_max_bytes: Limit for an import body. None for no limit.
        requests_at_once: Limit for concurrent requests from one caller. None for no limit.
        loopback_only: True to reject requests that a page of another site makes a browser send.
    """

    sign_in: SignIn | None = None
    writes_per_minute: int | None = None
    request_max_bytes: int | None = None
    import_max_bytes: int | None = None
    requests_at_once: int | None = None
    loopback_only: bool = False


class Door:
    """ASGI middleware for authentication, authorization, rate limits and the audit log."""

    def __init__(self, app: ASGIApp, guard: Guard, audit: Audit) -> None:
        self._app = app
        self._guard = guard
        self._audit = audit
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._at_once = RequestsAtOnce(guard.requests_at_once)
        imports = guard.requests_at_once and min(IMPORTS_AT_ONCE, guard.requests_at_once)
        self._imports_at_once = RequestsAtOnce(imports, "imports")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        right = right_of(scope["method"], scope["path"])
        refusal, principal = await self._admit(scope, right)
        if refusal is not None:
            await self._refuse(refusal, principal, scope, receive, send, right)
            return
        scope.setdefault("state", {})["principal"] = principal
        receive = _bounded(receive, Headers(scope=scope), self._max_bytes(scope["path"]))
        asker = _Asker(receive)
        with contextlib.ExitStack() as counted:
            try:
                self._count(counted, principal, scope, right)
            except TooManyAtOnce as error:
                headers = {"Retry-After": str(RETRY_AFTER_S)}
                refusal = problem(429, "Too many requests at once", str(error), headers=headers)
                await self._refuse(refusal, principal, scope, receive, send, right)
                return
            try:
                if right.writes:
                    await self._recorded(principal, scope, asker.receive, send, right)
                else:
                    await self._app(scope, asker.receive, _uncached(send))
            except Exception as error:
                if not (asker.left and _is_departure(error)):
                    raise
                route = (scope["method"], right.route)
                log.debug("%s %s: who asked has left", *route, extra={"action": "left"})

    def _count(
        self, counted: contextlib.ExitStack, principal: Principal, scope: Scope, right: Right
    ) -> None:
        """Count a request while it is in progress. Health routes and the page are not limited.

        Raises:
            TooManyAtOnce: The caller has reached its limit.
        """
        if right.access is Access.OPEN:
            return
        who = principal.key or _address(scope) or ""
        counted.enter_context(self._at_once.one_of(who))
        if scope["path"].startswith(_IMPORTS):
            counted.enter_context(self._imports_at_once.one_of(who))

    async def _admit(self, scope: Scope, right: Right) -> tuple[Response | None, Principal]:
        """Return the caller, and the response if the request is rejected."""
        headers = Headers(scope=scope)
        guard = self._guard
        if guard.loopback_only and (name := _foreign(headers)):
            why = "this API has no sign-in and answers programs of its own host only"
            return problem(403, "Refused", why, [_header_fault(name, why)]), ANYBODY
        principal = ANYBODY
        if guard.sign_in is not None and right.access is not Access.OPEN:
            try:
                principal = await guard.sign_in.identify(headers.get("authorization"))
            except NotSignedIn as error:
                return _unauthorised(str(error), headers), principal
            except NoRole as error:
                return problem(403, "Not allowed", str(error)), principal
            except (KeysUnavailable, ExchangeError) as error:
                return problem(503, "Sign-in unavailable", str(error)), principal
        if right.writes:
            refusal = await self._limited(principal, scope)
            if refusal is not None:
                return refusal, principal
        if right.access is not Access.OPEN and not principal.may(right.access):
            why = f"{principal.name} is a {principal.access}; this needs an {right.access}"
            return problem(403, "Not allowed", why), principal
        return None, principal

    async def _limited(self, principal: Principal, scope: Scope) -> Response | None:
        if self._guard.writes_per_minute is None:
            return None
        item = RateLimitItemPerMinute(self._guard.writes_per_minute)
        who = principal.key or _address(scope) or ""
        if await self._limiter.hit(item, who):
            return None
        window = await self._limiter.get_window_stats(item, who)
        wait_s = max(1, math.ceil(window.reset_time - time.time()))
        return problem(
            429,
            "Too many writes",
            f"over {self._guard.writes_per_minute} writes in 60 s; wait {wait_s} s",
            headers={"Retry-After": str(wait_s)},
        )

    async def _refuse(
        self,
        refusal: Response,
        principal: Principal,
        scope: Scope,
        receive: Receive,
        send: Send,
        right: Right,
    ) -> None:
        """Send the rejection, and record it in the audit log if the caller is signed in.

        Rejected unknown callers are not recorded, because they could fill the table.
        """
        status = refusal.status_code
        log.warning(
            "%s %s refused: %d", scope["method"], right.route, status, extra={"action": "refuse"}
        )
        if right.writes and status == 403 and principal.signed_in:
            try:
                await self._audit.begin(_row(principal, scope, right, status=status))
            except ExchangeError as error:
                log.warning("audit row lost: %s", error, extra={"action": "audit"})
        await refusal(scope, receive, _uncached(send))

    async def _recorded(
        self, principal: Principal, scope: Scope, receive: Receive, send: Send, right: Right
    ) -> None:
        """Execute a write between its start and end entries in the audit log.

        If the start entry cannot be stored, the write is not executed.
        """
        row = _row(principal, scope, right)
        try:
            key = await self._audit.begin(row)
        except ExchangeError as error:
            refusal = problem(503, "Exchange unavailable", f"no audit row, so not done: {error}")
            await refusal(scope, receive, _uncached(send))
            return

        async def ended(status: int, run_id: str | None) -> None:
            update = {"status": status, "run_id": run_id or row.run_id}
            try:
                await self._audit.end(key, row.model_copy(update=update))
            except ExchangeError as error:
                log.warning("audit row unfinished: %s", error, extra={"action": "audit"})

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = _LOCATION.fullmatch(Headers(raw=message["headers"]).get("location", ""))
                await ended(message["status"], found and found[1])
            await send(message)

        try:
            await self._app(scope, receive, _uncached(send_recorded))
        except Exception:
            await ended(500, None)
            raise

    def _max_bytes(self, path: str) -> int | None:
        guard = self._guard
        return guard.import_max_bytes if path.startswith(_IMPORTS) else guard.request_max_bytes


class _Asker:
    """Wrapper around ASGI ``receive`` that detects when the client disconnects."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.left = False

    async def receive(self) -> Message:
        message = await self._receive()
        self.left = self.left or message["type"] == "http.disconnect"
        return message


def _is_departure(error: BaseException) -> bool:
    """Return True if the error only means that the client has disconnected."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_departure, error.exceptions))
    return isinstance(error, ConnectionError) or type(error).__name__ in _DEPARTURES


def _row(principal: Principal, scope: Scope, right: Right, status: int | None = None) -> AuditRow:
    return AuditRow(
        at=datetime.now(UTC),
        by=principal.name,
        role=principal.access.value if principal.signed_in else "unsigned",
        from_address=_address(scope),
        method=scope["method"],
        path=urllib.parse.quote(scope["path"])[:_PATH_MAX_CHARS],
        route=right.route,
        run_id=right.parameters.get("run_id", "")[:63] or None,
        status=status,
    )


def _address(scope: Scope) -> str | None:
    client = scope.get("client")
    return (str(client[0]) or None) if client else None


def _unauthorised(why: str, headers: Headers) -> Response:
    """Return a 401 response (RFC 6750, section 3).

    The error code is included only if the request had a token.
    """
    challenge = 'Bearer realm="broadside"'
    if "authorization" in headers:
        challenge += ', error="invalid_token"'
    said = {"WWW-Authenticate": challenge}
    return problem(401, "Not signed in", why, [_header_fault("Authorization", why)], said)


def _header_fault(name: str, why: str) -> dict[str, str]:
    return {"field": name, "message": why, "parameter": name}


def _foreign(headers: Headers) -> str | None:
    """Return the name of the header that shows a request from another site, or None.

    ``Origin`` shows a page of another site. ``Host`` shows a name of another site that resolves to
    loopback.
    """
    origin = headers.get("origin")
    try:
        host = urllib.parse.urlsplit(f"//{headers.get('host', '')}")
        from_own_page = origin is None or urllib.parse.urlsplit(origin).netloc == host.netloc
        own_name = is_loopback(host.hostname or "")
    except ValueError:
        # The header is not a valid host.
        own_name, from_own_page = False, True
    if not own_name:
        return "Host"
    return None if from_own_page else "Origin"


def _bounded(receive: Receive, headers: Headers, max_bytes: int | None) -> Receive:
    """Return a ``receive`` that rejects a body that is too large or too slow.

    The announced size is checked first, and then the received size.
    """
    announced = headers.get("content-length", "")
    clock = BodyClock()
    ended = False

    async def bounded() -> Message:
        nonlocal ended
        # After the body only a disconnect can follow.
        if ended:
            return await receive()
        if max_bytes is not None and announced.isdecimal() and int(announced) > max_bytes:
            raise _too_large(max_bytes)
        try:
            message = await clock.next(receive)
        except TimeoutError as error:
            said = f"{clock.total_bytes} bytes of the body came in time, and no end"
            raise HTTPException(408, said) from error
        if max_bytes is not None and clock.total_bytes > max_bytes:
            raise _too_large(max_bytes)
        ended = not message.get("more_body")
        return message

    return bounded


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(
        413, f"the request's body is over {max_bytes} bytes; send less, or raise the limit"
    )


def _uncached(send: Send) -> Send:
    """Return a ``send`` that forbids caching unless the route has allowed it."""

    async def uncached(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
        await send(message)

    return uncached
