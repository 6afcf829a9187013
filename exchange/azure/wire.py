"""What the Azure adapters share below their verbs: attempts and errors.

Of what the storage services answer, ``tests/contract/azure_answers.toml`` is the table.
"""

import asyncio
import json
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from broadside.exchange.azure.bounded_transport import BoundedTransport
from broadside.exchange.azure.identity import Identity, NoToken
from broadside.exchange.documents import DOCUMENT_MAX_BYTES
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.messages import TroubleKind
from broadside.exchange.ports import (
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeRefused,
    ExchangeUnavailable,
)
from broadside.exchange.troubles import TroubleLog

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

ANSWER_MAX_BYTES: Final = DOCUMENT_MAX_BYTES  # of a page of rows, of a blob
# What the SDK's readers make of an answer that is none, besides errors of their own.
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_XML_CODE: Final = re.compile(r"<(?:m:)?[Cc]ode>(\w+)<")  # of blobs, of tables asked for XML
_NO_RIGHT: Final = "AuthorizationPermissionMismatch"  # of roles; a firewall's says otherwise
_NO_KEYS: Final = "KeyBasedAuthenticationNotPermitted"  # nobody's key counts
_PASSING: Final = (408, 429)  # statuses of a service that may do it later
_NO_TOKEN: Final = "InvalidAuthenticationInfo"  # noqa: S105 - a code: 400 or 401, by the service
_MISSING: Final = frozenset(
    {"TableNotFound", "ContainerNotFound", "TableBeingDeleted", "ContainerBeingDeleted"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Which service, and who we are: a connection string, else an identity of Azure's."""

    named_in_string: ClassVar[str]  # what a connection string holds
    endpoint: str | None = None
    connection_string: str | None = field(default=None, repr=False)
    client_id: str | None = None  # of a user-assigned identity; None: the system's
    ca_file: Path | None = None  # authority of the endpoint's certificate; None: the public ones

    @property
    def identity(self) -> str:
        if self.connection_string:
            return f"the connection string's {self.named_in_string}"
        return f"identity {self.client_id}" if self.client_id else "the default identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAddress(Address):
    """Which table or container; the endpoint is ``https://<account>.<service>.core.windows.net``."""

    named_in_string: ClassVar[str] = "key"
    kind: ClassVar[str]

    @property
    def place(self) -> str:
        """The table or container."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.kind} {self.place!r}" + f" at {self.endpoint}" * bool(self.endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long the SDK tries before a call raises :class:`ExchangeUnavailable`.

    Before retry ``n`` it pauses ``backoff_s * 2**n``, at most ``backoff_max_s``: with the defaults
    an absent or throttling service gets 1.6 + 3.2 + 6.4 s besides the attempts.
    """

    retries_max_count: int = 3
    backoff_s: float = 0.8
    backoff_max_s: float = 10.0
    attempt_s: float = 15.0  # one attempt; of storage: to connect, and without a byte of the answer
    call_s: float = 60.0  # one call with all its attempts; a scan's page, a batch's part


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageBounds(Bounds):
    """The same of the storage services, whose first retry comes at once and is not counted above.

    The SDK repeats what the service throttles (429, 503), fails (500, 502, 504) or times out (408),
    and what a broken connection interrupts. A ``Retry-After`` takes the pause's place; ``call_s``
    bounds it too.
    """

    retries_max_count: int = 4

    @property
    def tries(self) -> dict[str, Any]:
        """How often, as the SDK's retry policies take it."""
        names = ("retry_total", "retry_connect", "retry_read", "retry_status")
        return dict.fromkeys(names, self.retries_max_count)


def require_one_way(setting: str, way: str, place: object, connection_string: object) -> None:
    """Raise :class:`ExchangeMisconfigured` unless a place (the setting's ``_<way>``) is given or a
    connection string, and not both."""
    if bool(place) == bool(connection_string):
        problem = "both set; drop one" if place else "both missing; set one"
        raise ExchangeMisconfigured(
            f"{setting}_{way} (with an Azure identity) and {setting}_CONNECTION_STRING: {problem}"
        )


def way_in(service: str, settings: FabricSettings) -> dict[str, Any]:
    """A :class:`StorageAddress`'s fields by the settings of ``tables`` or ``blobs``.

    Raises :class:`ExchangeMisconfigured` unless there is one way in, and a safe one.
    """
    setting = f"BROADSIDE_{service.upper()}"
    endpoint = getattr(settings, f"{service}_endpoint") or None
    secret = getattr(settings, f"{service}_connection_string")
    require_one_way(setting, "ENDPOINT", endpoint, secret)
    parts = urlsplit(endpoint or "")
    if endpoint and (parts.scheme != "https" or not parts.hostname):
        raise ExchangeMisconfigured(
            f"{setting}_ENDPOINT={endpoint}: an identity's token travels over https only; "
            f"give https://<account>.{service[:-1]}.core.windows.net"
        )
    return {
        "endpoint": endpoint,
        "connection_string": secret and secret.get_secret_value(),
        "client_id": settings.managed_identity_client_id or None,
        "ca_file": getattr(settings, f"{service}_ca_file"),
    }


class Transport(BoundedTransport):
    """The SDK's own, but each request goes out once, and every attempt's end is noted.

    aiohttp would send a PUT whose connection broke again by itself, and neither the SDK nor we
    would know. And a request that was given up does not arrive after all (:func:`_mortal`).
    """

    def __init__(
        self, address: StorageAddress, attempt_s: float, troubles: TroubleLog, kind: TroubleKind
    ) -> None:
        super().__init__(
            ANSWER_MAX_BYTES,
            lambda: aiohttp.TCPConnector(socket_factory=_mortal(attempt_s)),
            middlewares=(_sent_once,),
            connection_timeout=attempt_s,
            read_timeout=attempt_s,
            connection_verify=str(address.ca_file) if address.ca_file else True,
        )
        self._troubles = troubles
        self._kind = kind

    async def send(self, request: Any, **options: Any) -> Any:
        try:
            response = await super().send(request, **options)
        except Exception:
            self._troubles.failed(self._kind)
            raise
        if may_pass(response.status_code):
            self._troubles.failed(self._kind)
        else:
            self._troubles.went_well(self._kind)
        return response


async def _sent_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Middleware of aiohttp that keeps it from sending a request again over a new connection.

    aiohttp repeats what ended in one of two errors. This raises their common base instead.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        # No connection came about, so nothing was sent; aiohttp does not repeat it.
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


def _mortal(attempt_s: float) -> Callable[[aiohttp.AddrInfoType], socket.socket]:
    """Makes sockets whose unsent bytes die with them, and with ``attempt_s`` of no answer.

    The kernel would go on sending what a closed socket holds. A host whose cable was out then
    delivers, minutes later, an upsert that was given up and has been overtaken by a newer one.
    """

    def make(address: aiohttp.AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(attempt_s * 1000))
        return made

    return make


class SdkClient(Protocol):
    """The SDK's client of one table or container."""

    async def close(self) -> None: ...


_Client = TypeVar("_Client", bound=SdkClient)
_Done = TypeVar("_Done")


class StorageService(Generic[_Client]):
    """One table or container by the SDK: connections, attempts within bounds, errors as ours.

    ``credential`` stands in for ``DefaultAzureCredential`` and stays its giver's to close. Whoever
    has been let in once is refused for a passing reason more often than for a wrong setting (a
    token service that does not answer, a role that is being moved): that is an outage then.
    """

    _setting: ClassVar[str]  # BROADSIDE_TABLES or BROADSIDE_BLOBS
    _named_by: ClassVar[str]  # the settings that name the place
    _role: ClassVar[str]
    _trouble: ClassVar[TroubleKind]
    _refusal: ClassVar[type[ExchangeError]]  # the service answered, and will answer the same again

    def __init__(
        self,
        address: StorageAddress,
        *,
        bounds: StorageBounds | None = None,
        credential: "AsyncTokenCredential | None" = None,
        troubles: TroubleLog | None = None,
    ) -> None:
        self._address = address
        self._bounds = bounds or StorageBounds()
        self._identity = Identity(credential)
        self._troubles = troubles or TroubleLog()
        self._client: _Client | None = None
        self._let_in = False  # by the service, at least once

    def __str__(self) -> str:
        return str(self._address)

    def _make(self, make: Any, **options: Any) -> _Client:
        """The SDK's client by its class, with the address's own way in."""
        address = self._address
        options["transport"] = Transport(
            address, self._bounds.attempt_s, self._troubles, self._trouble
        )
        way = address.connection_string or address.endpoint or ""
        if address.connection_string:
            make = make.from_connection_string
        else:
            options["credential"] = self._identity.credential(address.client_id)
        made: _Client = make(way, address.place, **options)
        return made

    def _make_client(self) -> _Client:
        raise NotImplementedError

    def open(self) -> _Client:
        """The SDK's client, made when first asked for; it connects at its first call.

        Raises ExchangeMisconfigured.
        """
        if self._client is None:
            try:
                self._client = self._make_client()
            except ValueError as error:
                raise malformed(self._setting) from error
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await self._identity.close()

    async def _call(
        self,
        work: Callable[[_Client], Awaitable[_Done]],
        mean: Callable[[Exception], ExchangeError | None] = lambda _: None,
    ) -> _Done:
        """Carry it out; ``mean`` knows what an answer means to this call, if it means anything."""
        try:
            async with asyncio.timeout(self._bounds.call_s):
                done = await work(self.open())
        except (AzureError, OSError, TimeoutError) as error:
            entry = explain_entry(error, self._address, self._setting, self._role, self._named_by)
            if entry is not None and self._let_in:
                raise ExchangeUnavailable(str(entry)) from error
            explained = entry or mean(error)
            if explained is None and is_final(error):
                explained = self._refusal(f"{self}: the service refuses it: {said_by(error)}")
            self._let_in |= isinstance(explained, self._refusal) and entry is None
            raise explained or ExchangeUnavailable(
                f"{self} is not available: {said_by(error)}"
            ) from error
        except _UNREADABLE as error:
            raise ExchangeUnavailable(
                f"{self}: no answer that can be read: {type(error).__name__} {said_by(error)}"
            ) from error
        self._let_in = True
        return done


# Errors -------------------------------------------------------------------------------------


def may_pass(status: int | None) -> bool:
    """Whether an HTTP status says that the service may do it later."""
    return status is not None and (status >= 500 or status in _PASSING)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was made from, outermost first: in Python's way and the SDKs'."""
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = getattr(error, "inner_exception", None) or getattr(error, "inner_error", None)
        error = inner or error.__cause__ or error.__context__


def code_of(error: Exception) -> str | None:
    """The service's own word for what is wrong, such as ``EntityAlreadyExists``.

    The body says it always, a header not (Table Storage sends none with a conflict), and the SDK
    reads neither for an insert.
    """
    response = getattr(error, "response", None)
    code = None
    if response is not None:
        code = _code_in_body(response) or response.headers.get("x-ms-error-code")
    code = code or getattr(error, "error_code", None)
    return getattr(code, "value", code)


def _code_in_body(response: Any) -> str | None:
    try:
        body: str = response.text()
    except (ValueError, AzureError):  # it was not read, or is no text
        return None
    if found := _XML_CODE.search(body):
        return found[1]
    try:
        told = json.loads(body)
        code = (told.get("odata.error") or told.get("error") or told)["code"]
    except (ValueError, LookupError, TypeError, AttributeError):  # a gateway's words
        return None
    return code if isinstance(code, str) else None


def said_by(error: Exception) -> str:
    """What is wrong in the service's or the system's own words, on one line."""
    innermost = list(causes_of(error))[-1]
    return code_of(error) or " ".join(str(innermost).split()) or type(error).__name__


def is_final(error: Exception) -> bool:
    """Whether the service answered, and will answer the same again."""
    status = getattr(error, "status_code", None)
    return isinstance(error, HttpResponseError) and bool(status) and not may_pass(status)


def malformed(setting: str) -> ExchangeMisconfigured:
    """What the SDK's ``ValueError`` about a connection string means."""
    return ExchangeMisconfigured(
        f"{setting}_CONNECTION_STRING is not one: copy it whole from the portal"
    )


def explain_certificate(
    causes: Sequence[BaseException], place: str, setting: str, said: str
) -> ExchangeMisconfigured | None:
    """Why the service's certificate is not believed; None where that is not what is wrong."""
    if not any(
        isinstance(cause, (ssl.SSLCertVerificationError, FileNotFoundError)) for cause in causes
    ):
        return None
    return ExchangeMisconfigured(
        f"{place}: its certificate cannot be checked: {said}; "
        f"set {setting}_CA_FILE to its authority's PEM file"
    )


def explain_token(error: Exception, place: str, identity: str) -> ExchangeError | None:
    """Why there is no token to enter with; None where that is not what is wrong."""
    for cause in causes_of(error):
        if not isinstance(cause, NoToken):
            continue
        said = f"{place}: no token for {identity}: {cause.message}"
        if cause.is_passing:
            return ExchangeUnavailable(said)
        return ExchangeMisconfigured(
            f"{said}; give this host a managed identity (BROADSIDE_MANAGED_IDENTITY_CLIENT_ID "
            "names a user-assigned one), or run az login"
        )
    return None


def explain_entry(
    error: Exception, address: StorageAddress, setting: str, role: str, named_by: str
) -> ExchangeError | None:
    """Why we do not get in, with the fix; None where that is not what is wrong."""
    if (refusal := explain_token(error, str(address), address.identity)) is not None:
        return refusal
    causes = list(causes_of(error))
    said, code = said_by(error), code_of(error)
    if code in _MISSING:
        what = "is being deleted" if code.endswith("BeingDeleted") else "does not exist"
        return ExchangeMisconfigured(f"{address} {what}; create it, or name another in {named_by}")
    refused = getattr(error, "status_code", None) in (401, 403) or code == _NO_TOKEN
    if refused or any(isinstance(cause, ClientAuthenticationError) for cause in causes):
        fix = f"give it the role '{role}' on the storage account"
        if address.connection_string:
            fix = f"use an identity with the role '{role}' ({setting}_ENDPOINT)"
            if code != _NO_KEYS:
                fix = f"copy the connection string anew from the portal, or {fix}"
        return (ExchangeRefused if code == _NO_RIGHT else ExchangeMisconfigured)(
            f"{address} refuses {address.identity}: {said}; {fix}, and let this host through the "
            "account's firewall"
        )
    return explain_certificate(causes, str(address), setting, said)
