"""Authorization with shared access signatures and with JWTs like those from Entra.

When a token is rejected, the error text is the same as in the real service. ``$cbs`` returns it
with status 401.
"""

import base64
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import unquote_plus, urlsplit

import jwt

JWT_AUDIENCE: Final = "https://servicebus.azure.net"


class Right(StrEnum):
    """Right of a caller on a queue."""

    SEND = "Send"
    LISTEN = "Listen"


ALL_RIGHTS: Final = frozenset(Right)
ROLE_RIGHTS: Final = {
    "Azure Service Bus Data Sender": frozenset({Right.SEND}),
    "Azure Service Bus Data Receiver": frozenset({Right.LISTEN}),
    "Azure Service Bus Data Owner": ALL_RIGHTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Permissions from a token, for all entities below a path.

    Attributes:
        path: Path of the entity.
        rights: Permissions.
        ends_at_s: Expiry in epoch seconds.
    """

    path: str
    rights: frozenset[Right]
    ends_at_s: float = math.inf

    def covers(self, path: str, right: Right) -> bool:
        inside = not self.path or f"{path}/".startswith(f"{self.path}/")
        return inside and right in self.rights


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVerifier:
    """Checks tokens. If no key is set, every request is allowed.

    Attributes:
        sas_keys: Keys by policy name.
        jwt_key: HS256 key, because the lab signs its own tokens.
    """

    sas_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    jwt_key: str | None = field(default=None, repr=False)

    def check(self, token: str, audience: str, now: float) -> Grant | str:
        """Return the grant for a token, or the error text.

        Args:
            token: Token from the client.
            audience: Audience of the token (``sb://host/queue``).
            now: Current time in epoch seconds.
        """
        path = _opened(audience)
        if not self.sas_keys and self.jwt_key is None:
            return Grant(path=path, rights=ALL_RIGHTS)
        # We ignore the given type, because the SDK also uses "jwt" for shared access signatures.
        if token.startswith("SharedAccessSignature "):
            return _check_sas(token, path, self.sas_keys, now)
        if self.jwt_key is None:
            return "InvalidToken: Only shared access signatures are accepted here."
        return _check_jwt(token, path, self.jwt_key, now)


def entity_path(address: str) -> str:
    """Return the path of an entity, in lower case and without slashes at either end.

    For ``sb://host:port/Jobs/`` and ``Jobs`` this is ``jobs``.
    """
    return (urlsplit(address).path if "://" in address else address).strip("/").lower()


def _opened(audience: str) -> str:
    """Return the entity for a token.

    The JavaScript SDK uses the node for its requests as the audience.
    """
    return entity_path(audience).removesuffix("/$management")


def _check_sas(token: str, path: str, keys: Mapping[str, str], now: float) -> Grant | str:
    text = dict(part.split("=", 1) for part in token.split(" ", 1)[1].split("&") if "=" in part)
    if not text.keys() >= {"sr", "sig", "se", "skn"}:
        return "MalformedToken: The token has no sr, sig, se or skn."
    signed = f"{text['sr']}\n{text['se']}".encode()
    key = keys.get(unquote_plus(text["skn"]), "")
    wanted = base64.b64encode(hmac.digest(key.encode(), signed, "sha256"))
    if not key or not hmac.compare_digest(wanted, unquote_plus(text["sig"]).encode()):
        return "InvalidSignature: The token has an invalid signature."
    if not text["se"].isdigit() or int(text["se"]) <= now:
        return "ExpiredToken: The token is expired."
    scope, ends_at_s = _opened(unquote_plus(text["sr"])), float(text["se"])
    grant = Grant(path=scope, rights=ALL_RIGHTS, ends_at_s=ends_at_s)
    if not grant.covers(path, Right.SEND):
        return "InvalidAudience: The authorization header contains a token for another audience."
    return grant


def _check_jwt(token: str, path: str, key: str, now: float) -> Grant | str:
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=["HS256"],
            audience=[JWT_AUDIENCE, f"{JWT_AUDIENCE}/"],
            options={"require": ["aud", "exp"], "verify_exp": False, "verify_nbf": False},
        )
    except jwt.InvalidAudienceError:
        return "InvalidAudience: The token was issued for another audience."
    except jwt.InvalidSignatureError:
        return "InvalidSignature: The token has an invalid signature."
    except jwt.InvalidTokenError as refusal:
        return f"MalformedToken: {refusal}."
    if claims["exp"] <= now:
        return "ExpiredToken: The token is expired."
    # This replaces RBAC in Azure.
    roles = claims.get("roles", ["Azure Service Bus Data Owner"])
    granted = [ROLE_RIGHTS.get(role, frozenset()) for role in roles]
    return Grant(path=path, rights=frozenset().union(*granted), ends_at_s=float(claims["exp"]))


def issue_jwt(
    key: str, *, now: float, ttl_s: float = 3600.0, audience: str = JWT_AUDIENCE, **claims: object
) -> str:
    """Return a JWT like those from Entra for a managed identity, signed with the lab's key.

    Args:
        key: HS256 key.
        now: Current time in epoch seconds.
        ttl_s: Lifetime in seconds.
        audience: Audience of the token.
        **claims: More claims.
    """
    claims |= {"aud": audience, "exp": int(now + ttl_s)}
    return jwt.encode(claims, key, algorithm="HS256")
