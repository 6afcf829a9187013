"""One resource at Azure's Resource Manager, read and changed.

The Resource Manager has no call for a single property of a firewall or its policy (PATCH changes
tags alone), so the resource is read, changed, and the whole put back under its ETag; then the long
operation is followed to its end.

Errors::

    ResourceError
    ├── ResourceRefused      a value, a right, or the resource itself: trying again will not help
    ├── ResourceBusy         somebody else has changed it meanwhile; we changed nothing
    └── ResourceUnavailable  the Resource Manager did not answer, or did not finish, in time
"""

import asyncio
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.http_answers import may_carry_secret, retry_after_s
from broadside.exchange.http.bounded import ask
from broadside.exchange.installation import bring_extra

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken

API_VERSION: Final = "2025-05-01"  # any from 2024-10-01 has autoscaleConfiguration
METRICS_VERSION: Final = "2023-10-01"  # of a resource's metrics
PATIENCE_S: Final = 1800.0  # a firewall's scale-out takes 5 to 7 minutes
POLL_S: Final = 10.0  # when the service does not say
REQUEST_S: Final = 60.0  # of one request, from connecting to the answer's last byte
ANSWER_MAX_BYTES: Final = 16 * 2**20  # a policy with thousands of rules is a few
TRIES_COUNT: Final = 5  # of reading and putting, while somebody else changes it too

_RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_RENEWED_S: Final = 300.0  # s before a token's end at which another is asked for
_AT_WORK: Final = frozenset({"Updating", "Creating", "Deleting"})

# Who signs in for which Resource Manager, by its host: of a sovereign cloud not the public one.
AUTHORITIES: Final[Mapping[str, str]] = {
    "management.azure.com": "login.microsoftonline.com",
    "management.usgovcloudapi.net": "login.microsoftonline.us",
    "management.chinacloudapi.cn": "login.chinacloudapi.cn",
}

Body = Mapping[str, Any]


class ResourceError(Exception):
    """The resource could not be read or changed; the message is one line for a person."""


class ResourceRefused(ResourceError):
    """A value, a right or the resource itself stands against it."""


class ResourceBusy(ResourceError):
    """Somebody else has changed the resource meanwhile; we changed nothing."""


class ResourceUnavailable(ResourceError):
    """No answer, or no end, in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of resource of ``Microsoft.Network``."""

    name: str  # in messages
    type: str
    rights: str  # what an identity needs to change one


class Resource:
    """One resource; ``token`` gives a bearer token when asked.

    A call ends within ``patience_s``, or a request (60 s) later. ``say`` hears how a change goes.
    """

    def __init__(
        self,
        resource_id: str,
        kind: Kind,
        *,
        token: Callable[[], str],
        endpoint: str = "https://management.azure.com",
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda _: None,
        request_s: float = REQUEST_S,
    ) -> None:
        """Raises :class:`ResourceRefused` for another type's id, or no safe endpoint."""
        shape = f"/subscriptions/X/resourceGroups/X/providers/Microsoft.Network/{kind.type}/X"
        pattern = re.escape(shape).replace("X", "[^/]+")
        if re.fullmatch(pattern, resource_id, re.IGNORECASE) is None:
            raise ResourceRefused(
                f"{kind.name} {resource_id!r}: not a {kind.name}'s resource id; it looks like "
                f"{shape}"
            )
        if not may_carry_secret(endpoint):
            raise ResourceRefused(f"endpoint {endpoint!r}: a token travels over https only")
        self.resource_id = resource_id
        self._kind = kind
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._patience_s = patience_s
        self._sleep = sleep
        self._say = say
        self._request_s = request_s
        self._tls = ssl.create_default_context()

    def close(self) -> None:
        """Do nothing: no connection outlives its request."""

    def read(self) -> Body:
        """The resource as it is now, with its ``etag``."""
        return self._read(self._end_s())

    def read_under(self, path: str, **parameters: str) -> Body:
        """What the service says at a path under the resource."""
        url = self._url(path).copy_merge_params(parameters)
        return _object(self._ask("GET", url, self._end_s()))

    def change(self, changed: Callable[[Body], Body]) -> Body:
        """Put what ``changed`` makes of the resource, once nobody else is changing it, and wait.

        The resource as it is then; what ``changed`` leaves as it was is not put.
        """
        end_s = self._end_s()
        for _ in range(TRIES_COUNT):
            found = self._read_at_rest(end_s)
            wanted = changed(found)
            if wanted == found:
                return found
            headers = {"If-Match": found["etag"]} if found.get("etag") else {}
            answer = self._ask("PUT", self._url(), end_s, headers, wanted, refused=(412,))
            if answer.status_code != 412:
                self._follow(answer, end_s)
                return self._read_at_rest(end_s)
        raise ResourceBusy(
            f"the {self._kind.name} is changed all the time by somebody else; try later"
        )

    def _read(self, end_s: float) -> Body:
        answer = self._ask("GET", self._url(), end_s)
        body = _object(answer)
        if (etag := answer.headers.get("ETag")) is not None:
            body["etag"] = etag
        return body

    def _read_at_rest(self, end_s: float) -> Body:
        """The resource once nobody is changing it."""
        while True:
            body = self._read(end_s)
            state = body.get("properties", {}).get("provisioningState")
            if state not in _AT_WORK:
                return body
            self._pause(POLL_S, end_s, f"the {self._kind.name} is still {state.lower()}")

    def _follow(self, accepted: httpx.Response, end_s: float) -> None:
        """Follow a long operation to its end, where this identity may."""
        url = accepted.headers.get("Azure-AsyncOperation") or accepted.headers.get("Location")
        answer = accepted
        while url is not None:
            if urlsplit(url)[:2] != urlsplit(self._endpoint)[:2]:
                raise ResourceRefused(f"the operation is at {url}: not at {self._endpoint}")
            self._pause(retry_after_s(answer, POLL_S), end_s, "the change is not through")
            answer = self._ask("GET", httpx.URL(url), end_s, refused=(403, 404))
            if not answer.is_success:
                return  # a right on the resource is none on the operation: the resource tells
            told = object_of(answer.content)
            state = told.get("status", "Succeeded" if answer.status_code != 202 else "InProgress")
            if state in ("Failed", "Canceled"):
                raise ResourceRefused(f"the change {state.lower()}: {_message(told)}")
            if state == "Succeeded":
                return
            self._say(f"{state.lower()}...")

    def _ask(
        self,
        method: str,
        url: httpx.URL,
        end_s: float,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        *,
        refused: tuple[int, ...] = (),
    ) -> httpx.Response:
        """One request, again while the service is throttling, busy or away. A PUT may come twice.

        ``refused`` are statuses that the caller understands.
        """
        while True:
            signed = {"Authorization": f"Bearer {self._token()}", **(headers or {})}
            try:
                answer = asyncio.run(self._send(method, url, signed, body))
            except httpx.HTTPError as error:
                self._pause(POLL_S, end_s, f"{method}: {error or type(error).__name__}")
                continue
            if answer.is_success or answer.status_code in refused:
                return answer
            said = f"{method}: {answer.status_code} {_message(object_of(answer.content))}"
            if answer.status_code in (401, 403):
                raise ResourceRefused(f"{said}; the identity needs {self._kind.rights}")
            if answer.status_code not in _RETRIED:
                raise ResourceRefused(said)
            self._pause(retry_after_s(answer, POLL_S), end_s, said)

    async def _send(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], body: Body | None
    ) -> httpx.Response:
        """One request in bounded time. Raises ``httpx.HTTPError``."""
        sent = {"Accept-Encoding": "identity", **headers}
        async with httpx.AsyncClient(timeout=self._request_s, verify=self._tls) as client:
            return await ask(
                client,
                method,
                url,
                ANSWER_MAX_BYTES,
                whole_s=self._request_s,
                headers=sent,
                json=body,
            )

    def _pause(self, pause_s: float, end_s: float, why: str) -> None:
        if time.monotonic() + pause_s > end_s:
            raise ResourceUnavailable(f"no end in time: {why}")
        self._sleep(pause_s)

    def _end_s(self) -> float:
        return time.monotonic() + self._patience_s

    def _url(self, path: str = "") -> httpx.URL:
        url = f"{self._endpoint}{self.resource_id}{path}"
        return httpx.URL(url, params={"api-version": API_VERSION})


def authority_of(endpoint: str) -> dict[str, str]:
    """The option of an Azure credential that goes with a Resource Manager; none where it is new."""
    known = AUTHORITIES.get(urlsplit(endpoint).hostname or "")
    return {} if known is None else {"authority": known}


async def identity_token(client_id: str | None, endpoint: str) -> "AccessToken":
    """An Azure identity's token for a Resource Manager. Raises ``broadside.exchange.azure``'s
    ``NoToken``."""
    from broadside.exchange.azure.identity import Credential

    async with Credential(client_id, **authority_of(endpoint)) as credential:
        return await credential.get_token(f"{endpoint.rstrip('/')}/.default")


def token_source(settings: CoordinatorSettings) -> Callable[[], str]:
    """The given token, or the Azure identity's: of ``az login``, or the machine's managed one, to
    be had within ten seconds.

    Raises :class:`ResourceRefused` when the SDK is missing.
    """
    if (given := settings.azure_monitor_token) is not None:
        return given.get_secret_value
    try:
        from broadside.exchange.azure.identity import NoToken
    except ModuleNotFoundError as error:
        raise ResourceRefused(f"{error.name} is missing; {bring_extra('azure')}") from error
    endpoint, client_id = settings.azure_monitor_endpoint, settings.managed_identity_client_id
    held: AccessToken | None = None

    def token() -> str:
        nonlocal held
        if held is None or held.expires_on - time.time() < _RENEWED_S:
            try:
                held = asyncio.run(identity_token(client_id, endpoint))
            except NoToken as error:
                said = " ".join(str(error).split())[:200]
                if error.is_passing:
                    raise ResourceUnavailable(f"no Azure token: {said}") from error
                raise ResourceRefused(
                    f"no Azure identity; run az login, or give this machine a managed one ({said})"
                ) from error
        return held.token

    return token


def _object(answer: httpx.Response) -> dict[str, Any]:
    """Raises :class:`ResourceRefused` for anything else."""
    told = object_of(answer.content)
    if not told:
        raise ResourceRefused(
            f"{answer.request.url.host} answered {answer.status_code} without a JSON object; is "
            "the endpoint a Resource Manager's?"
        )
    return told


def object_of(body: bytes) -> dict[str, Any]:
    """A JSON object; of anything else an empty one."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _message(told: Body) -> str:
    error = told.get("error")
    if not isinstance(error, dict):
        return "no reason given"
    return " ".join(str(error.get("message") or error.get("code")).split())
