"""Addresses, retries, transport and error mapping that the Azure adapters share.

``tests/contract/azure_answers.toml`` lists the responses of the storage services.
"""

import asyncio
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

from broadside.exchange.azure.answer_check import checked, code_in_body, is_transient
from broadside.exchange.azure.bounded_transport import BoundedTransport
from broadside.exchange.azure.identity import AdapterCredential, NoToken
from broadside.exchange.documents import DOCUMENT_MAX_BYTES
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.messages import OutageKind
from broadside.exchange.outage_log import OutageLog
from broadside.exchange.ports import (
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeRefused,
    ExchangeUnavailable,
)

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

# The maximum response size to read. It should be enough for a page of rows, or a blob.
ANSWER_MAX_BYTES: Final = DOCUMENT_MAX_BYTES
# Exceptions that the SDK's parsers raise for an invalid response, in addition to SDK errors.
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
# Error code for a missing role. A rejection by a firewall rule has another code.
_NO_RIGHT: Final = "AuthorizationPermissionMismatch"
# Error code of an account that does not allow access keys.
_NO_KEYS: Final = "KeyBasedAuthenticationNotPermitted"
# Error code for an invalid token. The status is 400 or 401, depending on the service.
_NO_TOKEN: Final = "InvalidAuthenticationInfo"  # noqa: S105 - a code: 400 or 401, by the service
_MISSING: Final = frozenset(
    {"TableNotFound", "ContainerNotFound", "TableBeingDeleted", "ContainerBeingDeleted"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureEndpoint:
    """Service endpoint with a connection string or an Azure identity.

    Attributes:
        named_in_string: Kind of credential in a connection string, for messages.
        endpoint: Endpoint of the service.
        connection_string: Connection string with a secret.
        client_id: Client id of a user-assigned identity. None means the system-assigned identity.
        ca_file: Certificate authority for the endpoint. None means the public authorities.
    """

    named_in_string: ClassVar[str]
    endpoint: str | None = None
    connection_string: str | None = field(default=None, repr=False)
    client_id: str | None = None
    ca_file: Path | None = None

    @property
    def identity(self) -> str:
        if self.connection_string:
            return f"the connection string's {self.named_in_string}"
        return f"identity {self.client_id}" if self.client_id else "the default identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAddress(AzureEndpoint):
    """Address of a table or container.

    The endpoint is ``https://<account>.<service>.core.windows.net``.
    """

    named_in_string: ClassVar[str] = "key"
    kind: ClassVar[str]

    @property
    def place(self) -> str:
        """Return the name of the table or container.

        Raises:
            NotImplementedError: The subclass does not define it.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.kind} {self.place!r}" + f" at {self.endpoint}" * bool(self.endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Retries and time limits before a call raises :class:`ExchangeUnavailable`.

    The pause before retry ``n`` is ``backoff_s * 2**n``, at most ``backoff_max_s``. With the
    defaults the pauses add up to 1.6 + 3.2 + 6.4 s in addition to the attempts.

    Attributes:
        retries_max_count: The maximum number of retries.
        backoff_s: Base of the pause in seconds.
        backoff_max_s: Longest pause in seconds.
        attempt_s: Time limit for one attempt, in seconds. For storage it applies to the connection
            and to each read.
        call_s: Time limit for a call with all its attempts, in seconds. Each page of a scan and
            each part of a batch is a separate call.
    """

    retries_max_count: int = 3
    backoff_s: float = 0.8
    backoff_max_s: float = 10.0
    attempt_s: float = 15.0
    call_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageBounds(Bounds):
    """Retries and time limits for the storage services.

    The first retry has no pause, so ``retries_max_count`` is one higher. The SDK will retry when
    the service throttles (429, 503), fails (500, 502, 504) or times out (408), and when a
    connection breaks. If the response has a ``Retry-After`` header, it will replace the pause.
    ``call_s`` limits this pause too.
    """

    retries_max_count: int = 4

    @property
    def tries(self) -> dict[str, Any]:
        """Return the number of retries as arguments for the SDK's retry policies."""
        names = ("retry_total", "retry_connect", "retry_read", "retry_status")
        return dict.fromkeys(names, self.retries_max_count)


def require_single_endpoint(
    setting: str, endpoint_setting: str, place: object, connection_string: object
) -> None:
    """Check that exactly one of two settings is set.

    Args:
        setting: Common prefix of the two setting names.
        endpoint_setting: Suffix of the setting for ``place``.
        place: Endpoint or namespace.
        connection_string: Connection string.

    Raises:
        ExchangeMisconfigured: None or both are set.
    """
    if bool(place) == bool(connection_string):
        problem = "both set; drop one" if place else "both missing; set one"
        raise ExchangeMisconfigured(
            f"{setting}_{endpoint_setting} (with an Azure identity) and "
            f"{setting}_CONNECTION_STRING: {problem}"
        )


def client_settings(service: str, settings: FabricSettings) -> dict[str, Any]:
    """Return the fields of a :class:`StorageAddress` from the settings.

    Args:
        service: ``tables`` or ``blobs``.
        settings: The storage backend settings.

    Returns:
        Values by field name. The secret is in plain text.

    Raises:
        ExchangeMisconfigured: Not exactly one of endpoint and connection string is set, or the
            endpoint is not https.
    """
    setting = f"BROADSIDE_{service.upper()}"
    endpoint = getattr(settings, f"{service}_endpoint") or None
    secret = getattr(settings, f"{service}_connection_string")
    require_single_endpoint(setting, "ENDPOINT", endpoint, secret)
    parts = urlsplit(endpoint or "")
    if endpoint and (parts.scheme != "https" or not parts.hostname):
        raise ExchangeMisconfigured(
            f"{setting}_ENDPOINT={endpoint}: an identity's token is sent over https only; "
            f"use https://<account>.{service[:-1]}.core.windows.net"
        )
    return {
        "endpoint": endpoint,
        "connection_string": secret and secret.get_secret_value(),
        "client_id": settings.managed_identity_client_id or None,
        "ca_file": getattr(settings, f"{service}_ca_file"),
    }


class Transport(BoundedTransport):
    """SDK transport that sends each request once and records the result of every attempt.

    By default aiohttp repeats a PUT after a broken connection, and neither the SDK nor the caller
    can detect it. In addition, the kernel does not deliver a request after it was given up
    (:func:`_with_timeout`).

    Args:
        address: The table or container to connect to.
        attempt_s: Timeout for connecting and for each read, in seconds.
        troubles: Log to record outages in.
        kind: The kind of outage to record.
    """

    def __init__(
        self, address: StorageAddress, attempt_s: float, troubles: OutageLog, kind: OutageKind
    ) -> None:
        super().__init__(
            ANSWER_MAX_BYTES,
            lambda: aiohttp.TCPConnector(socket_factory=_with_timeout(attempt_s)),
            middlewares=(_sent_once,),
            connection_timeout=attempt_s,
            read_timeout=attempt_s,
            connection_verify=str(address.ca_file) if address.ca_file else True,
        )
        self._troubles = troubles
        self._kind = kind
        self._is_table = address.kind == "table"

    async def send(self, request: Any, **options: Any) -> Any:
        try:
            response = await super().send(request, **options)
            response = await checked(request, response, is_table=self._is_table)
        except Exception:
            self._troubles.failed(self._kind)
            raise
        if is_transient(response.status_code):
            self._troubles.failed(self._kind)
        else:
            self._troubles.record_success(self._kind)
        return response


async def _sent_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Middleware that prevents aiohttp from sending a request again on a new connection.

    aiohttp repeats a request after two kinds of exception. This function raises their base class
    instead, after which aiohttp does not repeat the request.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        # There was no connection, so we can retry. aiohttp will not do this for this error.
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


def _with_timeout(attempt_s: float) -> Callable[[aiohttp.AddrInfoType], socket.socket]:
    """Return a socket factory that discards unsent data on close and after ``attempt_s``.

    Otherwise the kernel would continue to send the data of a closed socket. After a network outage
    of minutes it could deliver an old upsert, although a newer one has already replaced it.
    """

    def make(address: aiohttp.AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(attempt_s * 1000))
        return made

    return make


class SdkClient(Protocol):
    """SDK client of one table or container."""

    async def close(self) -> None: ...


_Client = TypeVar("_Client", bound=SdkClient)
_Done = TypeVar("_Done")


class StorageService(Generic[_Client]):
    """Base class for a table or container, with connections, retries and error mapping.

    After a first success, an authentication error is usually transient. For example, the token
    service does not respond, or a role assignment changes. It is therefore reported as an outage,
    not as a wrong setting.

    Args:
        address: The table or container to connect to.
        bounds: Retries and time limits. None means the defaults.
        credential: The credential to use instead of ``DefaultAzureCredential``. You need to close
            it after use.
        troubles: Log to record outages in.

    Attributes:
        _setting: BROADSIDE_TABLES or BROADSIDE_BLOBS.
        _named_by: The settings to change if the name is wrong.
        _role: Azure role that this host needs.
        _trouble: The kind of outage to record.
        _refusal: Exception class for a final error of the service.
    """

    _setting: ClassVar[str]
    _named_by: ClassVar[str]
    _role: ClassVar[str]
    _trouble: ClassVar[OutageKind]
    _refusal: ClassVar[type[ExchangeError]]

    def __init__(
        self,
        address: StorageAddress,
        *,
        bounds: StorageBounds | None = None,
        credential: "AsyncTokenCredential | None" = None,
        troubles: OutageLog | None = None,
    ) -> None:
        self._address = address
        self._bounds = bounds or StorageBounds()
        self._identity = AdapterCredential(credential)
        self._troubles = troubles or OutageLog()
        self._client: _Client | None = None
        # Set after the first success.
        self._let_in = False

    def __str__(self) -> str:
        return str(self._address)

    def _make(self, make: Any, **options: Any) -> _Client:
        """Create the SDK client with the transport and the credentials of the address."""
        address = self._address
        options["transport"] = Transport(
            address, self._bounds.attempt_s, self._troubles, self._trouble
        )
        endpoint_setting = address.connection_string or address.endpoint or ""
        if address.connection_string:
            make = make.from_connection_string
        else:
            options["credential"] = self._identity.credential(address.client_id)
        made: _Client = make(endpoint_setting, address.place, **options)
        return made

    def _make_client(self) -> _Client:
        raise NotImplementedError

    def open(self) -> _Client:
        """Return the SDK client. The first call creates it, and its first request connects.

        Raises:
            ExchangeMisconfigured: The connection string is invalid.
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
        """Run ``work`` with a timeout. ``mean`` maps errors that are specific to the call."""
        try:
            async with asyncio.timeout(self._bounds.call_s):
                done = await work(self.open())
        except (AzureError, OSError, TimeoutError) as error:
            entry = explain_entry(error, self._address, self._setting, self._role, self._named_by)
            if entry is not None and self._let_in:
                raise ExchangeUnavailable(str(entry)) from error
            explained = entry or mean(error)
            if explained is None and is_final(error):
                explained = self._refusal(f"{self}: the service refuses it: {error_text(error)}")
            self._let_in |= isinstance(explained, self._refusal) and entry is None
            raise explained or ExchangeUnavailable(
                f"{self} is not available: {error_text(error)}"
            ) from error
        except _UNREADABLE as error:
            raise ExchangeUnavailable(
                f"{self}: no answer that can be read: {type(error).__name__} {error_text(error)}"
            ) from error
        self._let_in = True
        return done


# Errors -------------------------------------------------------------------------------------


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the outermost first, from Python and from the SDKs."""
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = getattr(error, "inner_exception", None) or getattr(error, "inner_error", None)
        error = inner or error.__cause__ or error.__context__


def code_of(error: Exception) -> str | None:
    """Return the error code of the service, such as ``EntityAlreadyExists``, or None.

    The body always contains the code, but not every response has it in a header. For example, Table
    Storage sends no such header with a conflict. For an insert the SDK reads neither of them.
    """
    response = getattr(error, "response", None)
    code = None
    if response is not None:
        code = code_in_body(response) or response.headers.get("x-ms-error-code")
    code = code or getattr(error, "error_code", None)
    return getattr(code, "value", code)


def error_text(error: Exception) -> str:
    """Return the error code of the service, or the innermost error message, on one line."""
    innermost = list(causes_of(error))[-1]
    return code_of(error) or " ".join(str(innermost).split()) or type(error).__name__


def is_final(error: Exception) -> bool:
    """Return True if the service responded with an error that a retry cannot fix."""
    status = getattr(error, "status_code", None)
    return isinstance(error, HttpResponseError) and bool(status) and not is_transient(status)


def malformed(setting: str) -> ExchangeMisconfigured:
    """Return the error for an invalid connection string.

    The SDK raises only a ``ValueError`` for it.
    """
    return ExchangeMisconfigured(
        f"{setting}_CONNECTION_STRING is not one: copy it whole from the portal"
    )


def explain_certificate(
    causes: Sequence[BaseException], place: str, setting: str, text: str
) -> ExchangeMisconfigured | None:
    """Return an error if the certificate of the service is not trusted.

    Args:
        causes: The error and its causes.
        place: Service name for the message.
        setting: Common prefix of the setting names.
        text: Error message.

    Returns:
        The error with the setting to change. None for other causes.
    """
    if not any(
        isinstance(cause, (ssl.SSLCertVerificationError, FileNotFoundError)) for cause in causes
    ):
        return None
    return ExchangeMisconfigured(
        f"{place}: its certificate cannot be checked: {text}; "
        f"set {setting}_CA_FILE to its authority's PEM file"
    )


def explain_token(error: Exception, place: str, identity: str) -> ExchangeError | None:
    """Return an error if no token is available.

    Args:
        error: Error from the SDK.
        place: Service name for the message.
        identity: Identity for the message.

    Returns:
        The error with the fix. None if the error is not about a token.
    """
    for cause in causes_of(error):
        if not isinstance(cause, NoToken):
            continue
        text = f"{place}: no token for {identity}: {cause.message}"
        if cause.is_passing:
            return ExchangeUnavailable(text)
        return ExchangeMisconfigured(
            f"{text}; give this host a managed identity (BROADSIDE_MANAGED_IDENTITY_CLIENT_ID "
            "names a user-assigned one), or run az login"
        )
    return None


def explain_entry(
    error: Exception, address: StorageAddress, setting: str, role: str, named_by: str
) -> ExchangeError | None:
    """Return an error with the fix if access was denied.

    Args:
        error: Error from the SDK.
        address: The table or container to connect to.
        setting: Common prefix of the setting names.
        role: Azure role that this host needs.
        named_by: The settings to change if the name is wrong.

    Returns:
        The error with the role or setting that is missing. None for other errors.
    """
    if (refusal := explain_token(error, str(address), address.identity)) is not None:
        return refusal
    causes = list(causes_of(error))
    text, code = error_text(error), code_of(error)
    if code in _MISSING:
        what = "is being deleted" if code.endswith("BeingDeleted") else "does not exist"
        return ExchangeMisconfigured(f"{address} {what}; create it, or name another in {named_by}")
    refused = getattr(error, "status_code", None) in (401, 403) or code == _NO_TOKEN
    if refused or any(isinstance(cause, ClientAuthenticationError) for cause in causes):
        fix = f"give it the role '{role}' on the storage account"
        if address.connection_string:
            fix = f"use an identity with the role '{role}' ({setting}_ENDPOINT)"
            if code != _NO_KEYS:
                fix = f"copy the connection string again from the portal, or {fix}"
        return (ExchangeRefused if code == _NO_RIGHT else ExchangeMisconfigured)(
            f"{address} refuses {address.identity}: {text}; {fix}, and let this host through the "
            "account's firewall"
        )
    return explain_certificate(causes, str(address), setting, text)
