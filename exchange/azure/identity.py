"""Azure credential with a time limit for tokens and with clear error messages.

The SDK's default credential first tries a managed identity from the host's metadata service (IMDS,
169.254.169.254). This service can be unavailable when it is being updated or restarted. The SDK
will then retry for two minutes and raise a generic exception.

This module requests one token at a time, within :data:`TOKEN_S`. It caches a failure for a short
time, so that callers that retry send no more requests. If no new token is available, it will return
the previous token while that is valid.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError, DecodeError

from broadside.exchange.azure.bounded_transport import BoundedTransport
from broadside.exchange.strict_json import parse_strict_json

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

# Time limit for a token with all attempts, in seconds. A heartbeat of an agent must finish in 10 s.
TOKEN_S: Final = 8.0
# How long a failure is cached, in seconds.
REMEMBERED_S: Final = 5.0
# The maximum response size to read, in bytes. A token has 2 kB.
ANSWER_MAX_BYTES: Final = 1_048_576

# Path of a request to IMDS.
_METADATA: Final = "/metadata/identity/"
# Meaning of the IMDS status codes
# (learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token).
# Status 5xx is transient, any other 4xx is final.
_PASSING: Final = {
    404: "is being updated",
    410: "is being updated, which takes up to 70 s according to Azure",
    429: "throttles this host",
}


class NoToken(ClientAuthenticationError):
    """No token is available. The message describes the cause.

    Args:
        message: The cause.
        is_passing: True if a later attempt can succeed without a change of the configuration.
    """

    def __init__(self, message: str, *, is_passing: bool) -> None:
        super().__init__(message)
        self.is_passing = is_passing


@dataclass(slots=True, kw_only=True)
class _LastAnswer:
    """Last response from the metadata service."""

    requested: bool = False
    status: int | None = None
    text: str = ""

    def request(self, request: Any) -> None:
        self.requested |= _METADATA in request.http_request.url

    def response(self, response: Any) -> None:
        if _METADATA not in response.http_request.url:
            return
        self.status = response.http_response.status_code
        try:
            body = parse_strict_json(response.http_response.text(), ANSWER_MAX_BYTES)
            self.text = str(body.get("error_description") or body.get("error") or "")
        except (ValueError, AttributeError, AzureError, DecodeError):
            self.text = ""


@dataclass(slots=True, kw_only=True)
class _Scope:
    """Newest token for one set of scopes, and the newest failure to get one.

    Attributes:
        token: Newest token.
        failure: Newest failure, if it is newer than the token.
        failed_at_s: Time of the failure, in monotonic seconds.
    """

    token: AccessToken | None = None
    failure: NoToken | None = None
    failed_at_s: float = 0.0


class AzureCredential:
    """``DefaultAzureCredential`` with time limits. You should close it after use.

    Args:
        client_id: Client id of a user-assigned identity. None means the system-assigned identity.
        options: More arguments for ``DefaultAzureCredential``.
    """

    def __init__(self, client_id: str | None, **options: Any) -> None:
        from azure.identity.aio import DefaultAzureCredential

        self._client_id = client_id
        self._last_answer = _LastAnswer()
        self._asking = asyncio.Lock()
        self._scopes: dict[tuple[str, ...], _Scope] = {}
        self._default = DefaultAzureCredential(
            managed_identity_client_id=client_id,
            raw_request_hook=self._last_answer.request,
            raw_response_hook=self._last_answer.response,
            transport=BoundedTransport(ANSWER_MAX_BYTES),
            **options,
        )

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return a valid token within :data:`TOKEN_S`.

        Args:
            *scopes: Scopes of the token, as the SDK passes them.
            **options: Options of the SDK, unchanged.

        Raises:
            NoToken: No token is available.
        """
        async with self._asking:
            scope = self._scopes.setdefault(scopes, _Scope())
            if scope.failure and time.monotonic() - scope.failed_at_s < REMEMBERED_S:
                return self._stand_in(scope)
            scope.failure = None
            self._last_answer.requested, self._last_answer.status = False, None
            try:
                async with asyncio.timeout(TOKEN_S):
                    scope.token = await self._default.get_token(*scopes, **options)
            except (AzureError, OSError, TimeoutError) as error:
                message, is_passing = self._why(error)
                # We have been able to get a token before, so the configuration should be correct.
                is_passing |= scope.token is not None
                scope.failure = NoToken(message, is_passing=is_passing)
                scope.failed_at_s = time.monotonic()
                return self._stand_in(scope)
            return scope.token

    async def close(self) -> None:
        await self._default.close()

    async def __aenter__(self) -> "AzureCredential":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stand_in(self, scope: _Scope) -> AccessToken:
        if scope.token is not None and scope.token.expires_on > time.time():
            return scope.token
        assert scope.failure is not None  # noqa: S101 - its callers'
        raise scope.failure

    def _why(self, error: Exception) -> tuple[str, bool]:
        """Return the cause of the error, and whether it is transient."""
        status, text = self._last_answer.status, self._last_answer.text
        service = "the metadata service (IMDS)"
        if status == 400 and (not text or "identity not found" in text.lower()):
            which = f"the identity {self._client_id}" if self._client_id else "no identity"
            verb = "is not assigned to this VM" if self._client_id else "is assigned to this VM"
            return f"{which} {verb} (IMDS 400{f': {text}' * bool(text)})", False
        if status is not None and status >= 400:
            status_text = f"{status}{f': {text}' * bool(text)}"
            if status in _PASSING:
                return f"{service} {_PASSING[status]} ({status_text})", True
            if status >= 500:
                return f"{service} fails ({status_text})", True
            return f"{service} refuses the request ({status_text})", False
        if isinstance(error, TimeoutError):
            slow = service if self._last_answer.requested else "the identity's service"
            return f"{slow} did not answer within {TOKEN_S:g} s", True
        tried = [line for line in str(error).splitlines() if "ManagedIdentityCredential:" in line]
        return " ".join((tried or [str(error)])[0].split()), False


class AdapterCredential:
    """Credential for an adapter.

    Args:
        given: The caller's credential. Use None to create a default credential when needed.
    """

    def __init__(self, given: "AsyncTokenCredential | None") -> None:
        self._given: AsyncTokenCredential | None = given
        self._own: AzureCredential | None = None

    def credential(self, client_id: str | None) -> "AsyncTokenCredential":
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = AzureCredential(client_id)
        return self._own

    async def close(self) -> None:
        """Close a default credential. A credential from the caller stays open."""
        if self._own is not None:
            await self._own.close()
