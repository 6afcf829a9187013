"""ASGI middleware for authentication, authorization, rate limits and the audit log.

It runs before routing, so every route requires a token, also one that is added later.
:mod:`broadside.coordinator.auth.permissions` defines the permission that each route requires.
"""

import contextlib
import logging
import math
import re
import time
import urllib.parse
from dataclasses import dataclass
from typing import Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broadside.coordinator.api.problems import problem
from broadside.coordinator.api.request_body import IMPORTS
from broadside.coordinator.auth.audit import Audit, AuditRow
from broadside.coordinator.auth.permissions import Permission, required_permission
from broadside.coordinator.auth.principal import (
    ANYBODY,
    Access,
    KeysUnavailable,
    NoRole,
    NotSignedIn,
    Principal,
)
from broadside.coordinator.auth.signin import SignIn
from broadside.coordinator.bounded_listener import BodyClock
from broadside.coordinator.concurrency_limit import (
    RETRY_AFTER_S,
    ConcurrencyExceeded,
    ConcurrencyLimit,
)
from broadside.exchange.http.bounded import is_loopback
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeError

log = logging.getLogger(__name__)

# Maximum path length in the audit log.
_PATH_MAX_CHARS: Final = 300
# We use names, because the first two are raised by anyio and the last by Starlette, and you should
# not import these as they are not direct dependencies.
_DISCONNECT_ERRORS: Final = ("BrokenResourceError", "ClosedResourceError", "ClientDisconnect")
# Maximum number of imports of one caller, because each import has its whole body in memory.
IMPORTS_AT_ONCE: Final = 2
_LOCATION: Final = re.compile(r"/v1/runs/([a-z0-9-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
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


class AuthMiddleware:
    """ASGI middleware for authentication, authorization, rate limits and the audit log."""

    def __init__(self, app: ASGIApp, config: AuthConfig, audit: Audit) -> None:
        self._app = app
        self._config = config
        self._audit = audit
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._at_once = ConcurrencyLimit(config.requests_at_once)
        imports = config.requests_at_once and min(IMPORTS_AT_ONCE, config.requests_at_once)
        self._imports_at_once = ConcurrencyLimit(imports, "imports")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        permission = required_permission(scope["method"], scope["path"])
        rejection, principal = await self._admit(scope, permission)
        request = _Request(principal, permission, scope)
        send = _uncached(send)
        if rejection is not None:
            await self._reject(request, rejection, receive, send)
            return
        scope.setdefault("state", {})["principal"] = principal
        receive = _bounded(receive, Headers(scope=scope), self._max_bytes(scope["path"]))
        watch = _ReceiveWatch(receive)
        with contextlib.ExitStack() as stack:
            try:
                self._count(stack, request)
            except ConcurrencyExceeded as error:
                headers = {"Retry-After": str(RETRY_AFTER_S)}
                rejection = problem(429, "Too many requests at once", str(error), headers=headers)
                await self._reject(request, rejection, receive, send)
                return
            try:
                if permission.writes:
                    await self._audited(request, watch.receive, send)
                else:
                    await self._app(scope, watch.receive, send)
            except Exception as error:
                if not (watch.disconnected and _is_disconnect(error)):
                    raise
                route = (scope["method"], permission.route)
                log.debug("%s %s: the client disconnected", *route, extra={"action": "disconnect"})

    def _count(self, stack: contextlib.ExitStack, request: "_Request") -> None:
        """Count a request while it is in progress. Health routes and the page are not limited.

        Raises:
            ConcurrencyExceeded: The caller has reached its limit.
        """
        if request.permission.access is Access.OPEN:
            return
        caller = _caller(request.principal, request.scope)
        stack.enter_context(self._at_once.count(caller))
        if request.scope["path"].startswith(IMPORTS):
            stack.enter_context(self._imports_at_once.count(caller))

    async def _admit(
        self, scope: Scope, permission: Permission
    ) -> tuple[Response | None, Principal]:
        """Return the caller, and the response if the request is rejected."""
        headers = Headers(scope=scope)
        config = self._config
        if config.loopback_only and (name := _foreign_header(headers)):
            why = "this API has no sign-in and accepts requests from its own host only"
            return problem(403, "Request rejected", why, [_header_error(name, why)]), ANYBODY
        principal = ANYBODY
        if config.sign_in is not None and permission.access is not Access.OPEN:
            try:
                principal = await config.sign_in.identify(headers.get("authorization"))
            except NotSignedIn as error:
                return _unauthorized(str(error), headers), principal
            except NoRole as error:
                return problem(403, "Not allowed", str(error)), principal
            except (KeysUnavailable, ExchangeError) as error:
                return problem(503, "Sign-in unavailable", str(error)), principal
        if permission.writes and (rejection := await self._limited(principal, scope)) is not None:
            return rejection, principal
        if permission.access is not Access.OPEN and not principal.may(permission.access):
            roles = f"has the role {principal.access}; {permission.access} is required"
            return problem(403, "Not allowed", f"{principal.name} {roles}"), principal
        return None, principal

    async def _limited(self, principal: Principal, scope: Scope) -> Response | None:
        if self._config.writes_per_minute is None:
            return None
        item = RateLimitItemPerMinute(self._config.writes_per_minute)
        caller = _caller(principal, scope)
        if await self._limiter.hit(item, caller):
            return None
        window = await self._limiter.get_window_stats(item, caller)
        wait_s = max(1, math.ceil(window.reset_time - time.time()))
        return problem(
            429,
            "Too many writes",
            f"the limit is {self._config.writes_per_minute} writes in 60 s; retry in {wait_s} s",
            headers={"Retry-After": str(wait_s)},
        )

    async def _reject(
        self, request: "_Request", rejection: Response, receive: Receive, send: Send
    ) -> None:
        """Send the rejection, and record it in the audit log if the caller is signed in.

        Rejected unknown callers are not recorded, because they could fill the table.
        """
        permission, status = request.permission, rejection.status_code
        route = (request.scope["method"], permission.route)
        log.warning("%s %s rejected: %d", *route, status, extra={"action": "refuse"})
        if permission.writes and status == 403 and request.principal.signed_in:
            try:
                await self._audit.begin(request.audit_row(status))
            except ExchangeError as error:
                log.warning("audit row lost: %s", error, extra={"action": "audit"})
        await rejection(request.scope, receive, send)

    async def _audited(self, request: "_Request", receive: Receive, send: Send) -> None:
        """Execute a write between its start and end entries in the audit log.

        If the start entry cannot be stored, the write will not be executed.
        """
        row = request.audit_row()
        try:
            key = await self._audit.begin(row)
        except ExchangeError as error:
            why = f"not executed, because the audit log cannot be written: {error}"
            await problem(503, "Exchange unavailable", why)(request.scope, receive, send)
            return

        async def end(status: int, run_id: str | None) -> None:
            update = {"status": status, "run_id": run_id or row.run_id}
            try:
                await self._audit.end(key, row.model_copy(update=update))
            except ExchangeError as error:
                log.warning("audit row unfinished: %s", error, extra={"action": "audit"})

        async def send_audited(message: Message) -> None:
            if message["type"] == "http.response.start":
                location = _LOCATION.fullmatch(Headers(raw=message["headers"]).get("location", ""))
                await end(message["status"], location and location[1])
            await send(message)

        try:
            await self._app(request.scope, receive, send_audited)
        except Exception:
            await end(500, None)
            raise

    def _max_bytes(self, path: str) -> int | None:
        config = self._config
        return config.import_max_bytes if path.startswith(IMPORTS) else config.request_max_bytes


@dataclass(frozen=True, slots=True)
class _Request:
    """Request with its caller and the permission that it requires."""

    principal: Principal
    permission: Permission
    scope: Scope

    def audit_row(self, status: int | None = None) -> AuditRow:
        principal, permission = self.principal, self.permission
        return AuditRow(
            at=utc_now(),
            by=principal.name,
            role=principal.access.value if principal.signed_in else "unsigned",
            from_address=_address(self.scope),
            method=self.scope["method"],
            path=urllib.parse.quote(self.scope["path"])[:_PATH_MAX_CHARS],
            route=permission.route,
            run_id=permission.parameters.get("run_id", "")[:63] or None,
            status=status,
        )


class _ReceiveWatch:
    """Wrapper around ASGI ``receive`` that detects when the client disconnects."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.disconnected = False

    async def receive(self) -> Message:
        message = await self._receive()
        self.disconnected = self.disconnected or message["type"] == "http.disconnect"
        return message


def _is_disconnect(error: BaseException) -> bool:
    """Return True if the error only means that the client has disconnected."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_disconnect, error.exceptions))
    return isinstance(error, ConnectionError) or type(error).__name__ in _DISCONNECT_ERRORS


def _caller(principal: Principal, scope: Scope) -> str:
    """Return the key of the caller for limits."""
    return principal.key or _address(scope) or ""


def _address(scope: Scope) -> str | None:
    client = scope.get("client")
    return (str(client[0]) or None) if client else None


def _unauthorized(why: str, headers: Headers) -> Response:
    """Return a 401 response (RFC 6750, section 3).

    The error code is included only if the request had a token.
    """
    challenge = 'Bearer realm="broadside"'
    if "authorization" in headers:
        challenge += ', error="invalid_token"'
    headers_sent = {"WWW-Authenticate": challenge}
    return problem(401, "Not signed in", why, [_header_error("Authorization", why)], headers_sent)


def _header_error(name: str, why: str) -> dict[str, str]:
    return {"field": name, "message": why, "parameter": name}


def _foreign_header(headers: Headers) -> str | None:
    """Return the name of the header that shows a request from another site, or None.

    ``Origin`` shows a page of another site. ``Host`` shows a name of another site that resolves to
    loopback.
    """
    origin = headers.get("origin")
    try:
        host = urllib.parse.urlsplit(f"//{headers.get('host', '')}")
        is_local_page = origin is None or urllib.parse.urlsplit(origin).netloc == host.netloc
        is_local_host = is_loopback(host.hostname or "")
    except ValueError:
        # The header is not a valid host.
        is_local_host, is_local_page = False, True
    if not is_local_host:
        return "Host"
    return None if is_local_page else "Origin"


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
            text = f"the body is incomplete after {clock.total_bytes} bytes: too slow"
            raise HTTPException(408, text) from error
        if max_bytes is not None and clock.total_bytes > max_bytes:
            raise _too_large(max_bytes)
        ended = not message.get("more_body")
        return message

    return bounded


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(
        413, f"the body is larger than {max_bytes} bytes; send less, or raise the limit"
    )


def _uncached(send: Send) -> Send:
    """Return a ``send`` that forbids caching unless the route has allowed it."""

    async def uncached(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
        await send(message)

    return uncached
