"""Verification of Microsoft Entra ID tokens by signature, issuer, tenant, audience, time and roles.

The claims follow Microsoft's "Access token claims reference" and "Configurable app roles".
"""

import asyncio
import math
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import jwt

from broadside.coordinator.auth.principal import (
    Access,
    KeysUnavailable,
    NoRole,
    NotSignedIn,
    Principal,
    SignInMisconfigured,
)
from broadside.coordinator.auth.signin_settings import SignInSettings
from broadside.exchange.http.bounded import ask
from broadside.exchange.strict_json import parse_strict_json

# Algorithms to accept. You cannot use the header of a token to select another one.
_ALGORITHMS: Final = ("RS256",)
# Fetched keys are cached for this time.
_KEYS_S: Final = 3600.0
# Minimum time between two fetches for an unknown key id.
_KEYS_AGAIN_S: Final = 30.0
# Timeout for fetching the keys.
_FETCH_MAX_S: Final = 5.0
# Maximum size of a key set. Microsoft's has 20 kB.
_KEYS_MAX_BYTES: Final = 1_048_576
# Minimum time between a failed fetch and the next one.
_FETCH_FAILED_S: Final = 5.0
_TOKEN_MAX_CHARS: Final = 16_384
_NAME_MAX_CHARS: Final = 100
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntraTrust:
    """Properties that a token needs to have to be accepted.

    Attributes:
        tenant_id: Id of the Entra tenant.
        audiences: Accepted ``aud`` values.
        issuers: Accepted ``iss`` values.
        jwks_url: URL of the signing keys.
        leeway_s: Tolerated clock difference, in seconds.
    """

    tenant_id: str
    audiences: Sequence[str]
    issuers: Sequence[str]
    jwks_url: str
    leeway_s: float


def entra_trust(settings: SignInSettings) -> EntraTrust | None:
    """Return the required token properties, or None if no tenant is configured.

    Raises:
        SignInMisconfigured: A setting is missing or insecure.
    """
    tenant = settings.entra_tenant_id
    if tenant is None:
        if settings.entra_audience is not None:
            raise SignInMisconfigured(
                "BROADSIDE_ENTRA_AUDIENCE without BROADSIDE_ENTRA_TENANT_ID; set both"
            )
        return None
    audiences = _split(settings.entra_audience)
    if not audiences:
        raise SignInMisconfigured(
            "BROADSIDE_ENTRA_TENANT_ID without BROADSIDE_ENTRA_AUDIENCE: tokens made for other "
            "applications would be accepted; set the app registration's client id"
        )
    public = "https://login.microsoftonline.com"
    url = settings.entra_jwks_url or f"{public}/{tenant}/discovery/v2.0/keys"
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise SignInMisconfigured(
            f"BROADSIDE_ENTRA_JWKS_URL={url}: keys must be read over https, because http allows "
            "others to replace them; use an https URL"
        )
    issuers = _split(settings.entra_issuers) or [
        f"{public}/{tenant}/v2.0",
        # Issuer of tokens in the v1.0 format.
        f"https://sts.windows.net/{tenant}/",
    ]
    return EntraTrust(
        tenant_id=tenant,
        audiences=audiences,
        issuers=issuers,
        jwks_url=url,
        leeway_s=settings.entra_leeway_s,
    )


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


class Entra:
    """Verifies tokens of one tenant. Keys are fetched when first needed and then cached."""

    def __init__(self, trust: EntraTrust) -> None:
        self._trust = trust
        self._keys: Mapping[str | None, jwt.PyJWK] = {}
        self._fetched_s = -math.inf
        self._one_fetch = asyncio.Lock()
        # The end of the pause after a failed fetch, and the reason.
        self._failed: tuple[float, str] | None = None

    async def identify(self, token: str) -> Principal:
        """Verify a token and return its user or service.

        Raises:
            NotSignedIn: The token is not valid.
            NoRole: The token has no role.
            KeysUnavailable: The keys cannot be fetched.
        """
        if len(token) > _TOKEN_MAX_CHARS:
            raise NotSignedIn(f"the token is over {_TOKEN_MAX_CHARS} characters")
        try:
            header = jwt.get_unverified_header(token)
        # A header that consists of nested brackets raises RecursionError.
        except (jwt.InvalidTokenError, RecursionError) as error:
            raise NotSignedIn("the token is neither Broadside's own nor a JWT") from error
        if header.get("alg") not in _ALGORITHMS:
            raise NotSignedIn("the token is not signed with RS256")
        key_id = header.get("kid")
        if not isinstance(key_id, str):
            raise NotSignedIn("the token does not name its key (kid)")
        return self._principal(self._claims(token, await self._key(key_id)))

    async def _key(self, key_id: str) -> jwt.PyJWK:
        async with self._one_fetch:
            max_age_s = _KEYS_S if key_id in self._keys else _KEYS_AGAIN_S
            if time.monotonic() - self._fetched_s >= max_age_s:
                await self._fetch()
            key = self._keys.get(key_id)
        if key is None:
            raise NotSignedIn("the token's key is not one of the tenant's")
        return key

    async def _fetch(self) -> None:
        if self._failed is not None and time.monotonic() < self._failed[0]:
            raise KeysUnavailable(self._failed[1])
        try:
            self._keys = await _read_keys(self._trust.jwks_url)
        except (httpx.HTTPError, jwt.PyJWTError, ValueError, RecursionError) as error:
            problem = (
                "no answer; try again" if isinstance(error, httpx.HTTPError) else "not a key set"
            )
            why = f"Entra ID's keys at {self._trust.jwks_url}: {problem}"
            self._failed = (time.monotonic() + _FETCH_FAILED_S, why)
            raise KeysUnavailable(why) from error
        self._failed, self._fetched_s = None, time.monotonic()

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                audience=list(self._trust.audiences),
                issuer=list(self._trust.issuers),
                leeway=self._trust.leeway_s,
                options={"require": ["exp", "nbf", "iss", "aud", "tid"]},
            )
        except jwt.InvalidTokenError as error:
            raise NotSignedIn(_reason(error)) from error
        if claims["tid"] != self._trust.tenant_id:
            raise NotSignedIn("the token is of another tenant")
        return claims

    def _principal(self, claims: dict[str, Any]) -> Principal:
        roles = claims.get("roles")
        granted = set(roles) & {"viewer", "operator"} if isinstance(roles, list) else set()
        if not granted:
            raise NoRole(
                "the token has neither of the app roles viewer and operator; assign one in Entra ID"
            )
        subject = claims.get("oid") or claims.get("sub") or claims.get("azp") or claims.get("appid")
        if not isinstance(subject, str):
            raise NotSignedIn("the token does not name its user or application (oid, sub)")
        names = (claims.get(key) for key in ("preferred_username", "upn", "azp"))
        return Principal(
            name=str(next(filter(None, names), subject))[:_NAME_MAX_CHARS],
            access=Access.OPERATOR if "operator" in granted else Access.VIEWER,
            key=f"entra:{subject}",
        )


async def _read_keys(url: str) -> dict[str | None, jwt.PyJWK]:
    """Fetch the signing keys and return them by id.

    Raises:
        httpx.HTTPError: The request failed.
        jwt.PyJWTError: The response has an invalid key.
        ValueError: The response is not a key set.
    """
    headers = {"Accept-Encoding": "identity"}
    async with httpx.AsyncClient(timeout=_FETCH_MAX_S, headers=headers) as client:
        answer = await ask(client, "GET", url, _KEYS_MAX_BYTES, total_s=_FETCH_MAX_S)
    answer.raise_for_status()
    key_set = parse_strict_json(answer.content, _KEYS_MAX_BYTES)
    if not isinstance(key_set, dict):
        raise ValueError("not a JSON object")
    keys = jwt.PyJWKSet.from_dict(key_set).keys
    return {key.key_id: key for key in keys if key.public_key_use in ("sig", None)}


def _reason(error: jwt.InvalidTokenError) -> str:
    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired"
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case jwt.InvalidAudienceError():
            return "the token was made for another application (aud)"
        case jwt.InvalidIssuerError():
            return "the token comes from another issuer (iss)"
        case jwt.MissingRequiredClaimError():
            return f"the token lacks the claim {error.claim}"
        case jwt.InvalidSignatureError():
            return "the token's signature is not right"
        case _:
            return "the token is not a JWT that can be checked"
