"""What the Azure adapters share below their verbs: identities, attempts and errors."""

import json
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import aiohttp
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport

from exchange.messages import TroubleKind
from exchange.ports import ExchangeMisconfigured, ExchangeRefused
from exchange.troubles import TroubleLog

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

_XML_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_NO_RIGHT: Final = "AuthorizationPermissionMismatch"  # of roles; a firewall's says otherwise
_PASSING: Final = (408, 429)  # statuses of a service that may do it later


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAddress:
    """Which service of which account, and who we are: a connection string, else an identity."""

    endpoint: str | None = None  # https://<account>.<service>.core.windows.net
    connection_string: str | None = field(default=None, repr=False)
    client_id: str | None = None  # of a user-assigned identity; None: the system's
    ca_file: Path | None = None  # authority of the endpoint's certificate; None: the public ones

    @property
    def identity(self) -> str:
        if self.connection_string:
            return "the connection string's key"
        return f"identity {self.client_id}" if self.client_id else "the default identity"


def check_way_in(address: StorageAddress, setting: str, *, host: str) -> None:
    """Raises :class:`ExchangeMisconfigured` unless there is one way in, and a safe one.

    ``setting`` begins the names of the two settings, ``host`` is what an endpoint looks like.
    """
    if bool(address.endpoint) == bool(address.connection_string):
        problem = "both set; drop one" if address.endpoint else "both missing; set one"
        raise ExchangeMisconfigured(
            f"{setting}_ENDPOINT (with an Azure identity) and {setting}_CONNECTION_STRING: "
            f"{problem}"
        )
    parts = urlsplit(address.endpoint or "")
    if address.endpoint and (parts.scheme != "https" or not parts.hostname):
        raise ExchangeMisconfigured(
            f"{setting}_ENDPOINT={address.endpoint}: an identity's token travels over https only; "
            f"give https://{host}"
        )


class Transport(AioHttpTransport):  # type: ignore[misc]  # the SDK offers it untyped, lazily
    """The SDK's own, but each request goes out once, and every attempt's end is noted.

    aiohttp would send a PUT whose connection broke again by itself, and neither the SDK nor we
    would know. And a request that was given up does not arrive after all (:func:`_mortal`).
    """

    session: aiohttp.ClientSession | None

    def __init__(
        self, address: StorageAddress, attempt_s: float, troubles: TroubleLog, kind: TroubleKind
    ) -> None:
        super().__init__(
            connection_timeout=attempt_s,
            read_timeout=attempt_s,
            connection_verify=str(address.ca_file) if address.ca_file else True,
        )
        self._attempt_s = attempt_s
        self._troubles = troubles
        self._kind = kind

    async def open(self) -> None:
        if self.session is None:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(socket_factory=_mortal(self._attempt_s)),
                trust_env=True,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
            session._retry_connection = False
            self.session = session
        await super().open()

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


class Identity:
    """The credential that an adapter enters with: one that it was given, or Azure's default."""

    def __init__(self, given: "AsyncTokenCredential | None") -> None:
        self._credential = given
        self._own: AsyncTokenCredential | None = None

    def credential(self, client_id: str | None) -> "AsyncTokenCredential":
        if self._credential is None:
            from azure.identity.aio import DefaultAzureCredential

            self._credential = self._own = DefaultAzureCredential(
                managed_identity_client_id=client_id
            )
        return self._credential

    async def close(self) -> None:
        """One that was given stays its giver's."""
        if self._own is not None:
            await self._own.close()


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
        code = json.loads(body)["odata.error"]["code"]
    except (ValueError, LookupError, TypeError):  # a gateway's words, not the service's
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


def explain_entry(
    error: Exception, place: str, address: StorageAddress, *, role: str, ca_setting: str
) -> ExchangeMisconfigured | None:
    """Why we were not let in, with the fix; None where that is not what is wrong."""
    causes = list(causes_of(error))
    said = said_by(error)
    refused = getattr(error, "status_code", None) in (401, 403)
    if refused or any(isinstance(cause, ClientAuthenticationError) for cause in causes):
        fix = f"give it the role '{role}' on the storage account"
        if address.connection_string:
            fix = (
                "copy the connection string anew from the portal, or use an identity with the "
                f"role '{role}'"
            )
        no_right = code_of(error) == _NO_RIGHT
        return (ExchangeRefused if no_right else ExchangeMisconfigured)(
            f"{place} refuses {address.identity}: {said}; {fix}, and let this host through the "
            "account's firewall"
        )
    if any(
        isinstance(cause, (ssl.SSLCertVerificationError, FileNotFoundError)) for cause in causes
    ):
        return ExchangeMisconfigured(
            f"{place}: its certificate cannot be checked: {said}; "
            f"set {ca_setting} to its authority's PEM file"
        )
    return None
