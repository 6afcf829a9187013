"""Read and change a resource with the Azure Resource Manager.

The Resource Manager cannot change a single property of a firewall or its policy, because PATCH only
changes tags. A change therefore reads the whole resource, and writes it back with its ETag. The
long-running operation is then polled until it ends.

Errors::

    ResourceError
    ├── ResourceRefused      invalid value, missing permission or wrong resource. Do not retry.
    ├── ResourceBusy         another client changed the resource. Nothing was written.
    └── ResourceUnavailable  the Resource Manager did not respond or finish in time.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.http.bounded import ask, may_carry_secret, retry_after_s
from broadside.exchange.installation import bring_extra
from broadside.exchange.strict_json import parse_strict_json

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken

# All versions from 2024-10-01 support ``autoscaleConfiguration``.
API_VERSION: Final = "2025-05-01"
# API version of the metrics of a resource.
METRICS_VERSION: Final = "2023-10-01"
# A firewall needs 5 to 7 minutes to scale out.
PATIENCE_S: Final = 1800.0
# Time between polls if the service does not send a ``Retry-After``.
POLL_S: Final = 10.0
# Time limit of a request, from the connection to the last byte of the response.
REQUEST_S: Final = 60.0
# A policy with thousands of rules has a few mebibytes.
ANSWER_MAX_BYTES: Final = 16 * 2**20
# Attempts to read and write while other clients change the resource.
TRIES_COUNT: Final = 5

_RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
# Conflicts that last until a user changes the subscription or the lock. Others are with a change
# that will end.
_LASTING: Final = frozenset(
    {"MissingSubscriptionRegistration", "ScopeLocked", "ReadOnlyDisabledSubscription"}
)
# A new token is requested this time before the old one expires.
_RENEWED_S: Final = 300.0
_AT_WORK: Final = frozenset({"Updating", "Creating", "Deleting"})

# Sign-in host for each Resource Manager host. Sovereign clouds have their own.
AUTHORITIES: Final[Mapping[str, str]] = {
    "management.azure.com": "login.microsoftonline.com",
    "management.usgovcloudapi.net": "login.microsoftonline.us",
    "management.chinacloudapi.cn": "login.chinacloudapi.cn",
}

Body = Mapping[str, Any]


class ResourceError(Exception):
    """Error during a read or change of the resource, with a one-line message for the user."""


class ResourceRefused(ResourceError):
    """Rejected request because of a value, a permission or the resource itself."""


class ResourceBusy(ResourceError):
    """Concurrent change by another client, so nothing was written."""


class ResourceUnavailable(ResourceError):
    """Missing response or unfinished operation at the time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """Type of a resource in ``Microsoft.Network``.

    Attributes:
        name: Name in messages.
        type: Resource type in ids, for example ``azureFirewalls``.
        rights: Permission that an identity needs to change the resource.
    """

    name: str
    type: str
    rights: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManagerAccess:
    """The Resource Manager and the token for it.

    Attributes:
        token: Function that returns a bearer token for each request.
        endpoint: The Resource Manager's base URL.
    """

    token: Callable[[], str]
    endpoint: str = "https://management.azure.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Time limits.

    Attributes:
        patience_s: Time limit of a call in seconds.
        request_s: Time limit for a request in seconds.
        sleep: Replacement for ``time.sleep`` in tests.
    """

    patience_s: float = PATIENCE_S
    request_s: float = REQUEST_S
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: httpx.URL
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None


class AzureResource:
    """One Azure resource that can be read and changed.

    A call ends after at most ``patience_s`` plus the time limit of a request (60 s).
    """

    def __init__(
        self,
        resource_id: str,
        kind: ResourceType,
        access: ResourceManagerAccess,
        *,
        waits: Waits | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Check the id and the endpoint, without sending requests.

        Args:
            resource_id: Full Azure resource id.
            kind: Expected type of the resource.
            access: The Resource Manager and the token for it.
            waits: Time limits. None uses the defaults.
            say: Function that receives progress messages.

        Raises:
            ResourceRefused: The id has another type, or the endpoint is not safe for a token.
        """
        shape = f"/subscriptions/X/resourceGroups/X/providers/Microsoft.Network/{kind.type}/X"
        pattern = re.escape(shape).replace("X", "[^/]+")
        if re.fullmatch(pattern, resource_id, re.IGNORECASE) is None:
            raise ResourceRefused(
                f"{kind.name} {resource_id!r}: not a {kind.name}'s resource id; it looks like "
                f"{shape}"
            )
        if not may_carry_secret(access.endpoint):
            raise ResourceRefused(f"endpoint {access.endpoint!r}: a token is sent over https only")
        self.resource_id = resource_id
        self._kind = kind
        self._endpoint = access.endpoint.rstrip("/")
        self._token = access.token
        waits = waits or Waits()
        self._patience_s = waits.patience_s
        self._sleep = waits.sleep
        self._say = say
        self._request_s = waits.request_s
        self._tls = ssl.create_default_context()

    def close(self) -> None:
        """Do nothing, because each request closes its own connection."""

    def read(self) -> Body:
        """Return the current resource, with its ``etag``."""
        return self._read(self._end_s())

    def read_under(self, path: str, **parameters: str) -> Body:
        """Return the JSON object at a path below the resource.

        Args:
            path: Path that is appended to the resource id.
            **parameters: Query parameters.
        """
        url = self._url(path).copy_merge_params(parameters)
        return _object(self._ask(_Request("GET", url), self._end_s()))

    def change(self, changed: Callable[[Body], Body]) -> Body:
        """Write the result of ``changed`` and wait until the change is complete.

        The method first waits until no other change is in progress. If ``changed`` returns an equal
        body, nothing is written.

        Args:
            changed: Function that returns the new body for the current one. It can be called more
                than once.

        Returns:
            The resource after the change.

        Raises:
            ResourceError: The change was rejected, collided with other changes or did not finish.
        """
        end_s = self._end_s()
        for _ in range(TRIES_COUNT):
            at_rest = self._read_at_rest(end_s)
            wanted = changed(at_rest)
            if wanted == at_rest:
                return at_rest
            headers = {"If-Match": at_rest["etag"]} if at_rest.get("etag") else {}
            answer = self._ask(_Request("PUT", self._url(), headers, wanted), end_s, refused=(412,))
            if answer.status_code != 412:
                self._follow(answer, end_s)
                return self._read_at_rest(end_s)
        raise ResourceBusy(
            f"the {self._kind.name} was changed by another client during each of "
            f"{TRIES_COUNT} attempts; try again later"
        )

    def _read(self, end_s: float) -> Body:
        answer = self._ask(_Request("GET", self._url()), end_s)
        body = _object(answer)
        if (etag := answer.headers.get("ETag")) is not None:
            body["etag"] = etag
        return body

    def _read_at_rest(self, end_s: float) -> Body:
        """Return the resource as soon as no change is in progress."""
        while True:
            body = self._read(end_s)
            state = body.get("properties", {}).get("provisioningState")
            if state not in _AT_WORK:
                return body
            self._pause(POLL_S, end_s, f"the {self._kind.name} is still {state.lower()}")

    def _follow(self, accepted: httpx.Response, end_s: float) -> None:
        """Poll a long-running operation until it ends, if this identity may read it."""
        url = accepted.headers.get("Azure-AsyncOperation") or accepted.headers.get("Location")
        answer = accepted
        while url is not None:
            if urlsplit(url)[:2] != urlsplit(self._endpoint)[:2]:
                raise ResourceRefused(
                    f"the URL of the operation, {url}, is not at the endpoint {self._endpoint}"
                )
            self._pause(retry_after_s(answer, POLL_S), end_s, "the change has not ended")
            answer = self._ask(_Request("GET", httpx.URL(url)), end_s, refused=(403, 404))
            if not answer.is_success:
                # A permission on the resource does not include the operation. The state of the
                # resource then shows the result.
                return
            reported = object_of(answer.content)
            state = reported.get(
                "status", "Succeeded" if answer.status_code != 202 else "InProgress"
            )
            if state in ("Failed", "Canceled"):
                raise ResourceRefused(f"the change {state.lower()}: {_message(reported)}")
            if state == "Succeeded":
                return
            self._say(f"{state.lower()}...")

    def _ask(
        self,
        request: _Request,
        end_s: float,
        *,
        refused: tuple[int, ...] = (),
    ) -> httpx.Response:
        """Send a request and repeat it while the service is throttled or unavailable.

        A PUT can be sent twice. Statuses in ``refused`` are returned to the caller.
        """
        while True:
            signed = {"Authorization": f"Bearer {self._token()}", **request.headers}
            try:
                answer = asyncio.run(self._send(replace(request, headers=signed)))
            except httpx.HTTPError as error:
                self._pause(POLL_S, end_s, f"{request.method}: {error or type(error).__name__}")
                continue
            if answer.is_success or answer.status_code in refused:
                return answer
            text = f"{request.method}: {answer.status_code} {_message(object_of(answer.content))}"
            if answer.status_code in (401, 403):
                raise ResourceRefused(f"{text}; the identity needs {self._kind.rights}")
            if answer.status_code not in _RETRIED or _code(answer) in _LASTING:
                raise ResourceRefused(text)
            self._pause(retry_after_s(answer, POLL_S), end_s, text)

    async def _send(self, request: _Request) -> httpx.Response:
        """Send a request within the time limit. Raises ``httpx.HTTPError``."""
        sent = {"Accept-Encoding": "identity", **request.headers}
        async with httpx.AsyncClient(timeout=self._request_s, verify=self._tls) as client:
            return await ask(
                client,
                request.method,
                request.url,
                ANSWER_MAX_BYTES,
                total_s=self._request_s,
                headers=sent,
                json=request.body,
            )

    def _pause(self, pause_s: float, end_s: float, why: str) -> None:
        if time.monotonic() + pause_s > end_s:
            raise ResourceUnavailable(f"not finished in time: {why}")
        self._sleep(pause_s)

    def _end_s(self) -> float:
        return time.monotonic() + self._patience_s

    def _url(self, path: str = "") -> httpx.URL:
        url = f"{self._endpoint}{self.resource_id}{path}"
        return httpx.URL(url, params={"api-version": API_VERSION})


def authority_of(endpoint: str) -> dict[str, str]:
    """Return the ``authority`` option of an Azure credential for a Resource Manager.

    The result is empty for an unknown host.
    """
    known = AUTHORITIES.get(urlsplit(endpoint).hostname or "")
    return {} if known is None else {"authority": known}


async def identity_token(client_id: str | None, endpoint: str) -> "AccessToken":
    """Return a token of an Azure identity for the Resource Manager.

    Args:
        client_id: Client id of a managed identity, or ``None`` for the default credential.
        endpoint: The Resource Manager's base URL.

    Raises:
        broadside.exchange.azure.identity.NoToken: No token is available.
    """
    from broadside.exchange.azure.identity import AzureCredential

    async with AzureCredential(client_id, **authority_of(endpoint)) as credential:
        return await credential.get_token(f"{endpoint.rstrip('/')}/.default")


def token_source(settings: CoordinatorSettings) -> Callable[[], str]:
    """Return a function that returns a bearer token.

    It returns the token in the settings, if there is one. Otherwise it will request a token for the
    Azure identity, which is that of ``az login`` or the managed identity of this host. The response
    needs to arrive within ten seconds.

    Raises:
        ResourceRefused: The Azure SDK is not installed.
    """
    if (given := settings.azure_monitor_token) is not None:
        return given.get_secret_value
    try:
        from broadside.exchange.azure.identity import NoToken
    except ModuleNotFoundError as error:
        raise ResourceRefused(f"{error.name} is missing; {bring_extra('azure')}") from error
    endpoint, client_id = settings.azure_monitor_endpoint, settings.managed_identity_client_id
    stored: AccessToken | None = None

    def token() -> str:
        nonlocal stored
        if stored is None or stored.expires_on - time.time() < _RENEWED_S:
            try:
                stored = asyncio.run(identity_token(client_id, endpoint))
            except NoToken as error:
                text = " ".join(str(error).split())[:200]
                if error.is_passing:
                    raise ResourceUnavailable(f"no Azure token: {text}") from error
                raise ResourceRefused(
                    f"no Azure identity; run az login, or give this machine a managed one ({text})"
                ) from error
        return stored.token

    return token


def _object(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response. Raises :class:`ResourceRefused` for other content."""
    reported = object_of(answer.content)
    if not reported:
        raise ResourceRefused(
            f"{answer.request.url.host} answered {answer.status_code} without a JSON object; is "
            "the endpoint a Resource Manager's?"
        )
    return reported


def object_of(body: bytes) -> dict[str, Any]:
    """Return a JSON object, or an empty one for any other content."""
    try:
        document = parse_strict_json(body, ANSWER_MAX_BYTES)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _code(answer: httpx.Response) -> str | None:
    error = object_of(answer.content).get("error")
    return error.get("code") if isinstance(error, dict) else None


def _message(body: Body) -> str:
    error = body.get("error")
    if not isinstance(error, dict):
        return "no reason given"
    return " ".join(str(error.get("message") or error.get("code")).split())
