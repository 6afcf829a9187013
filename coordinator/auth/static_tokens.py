"""Static API tokens, which are shown once, stored as hashes and revoked by name.

A token has 256 random bits, so its SHA-256 hash cannot be reversed by guessing. Salt and slow
hashes are only needed for passwords chosen by people.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

from broadside.coordinator.auth.principal import Access, NotSignedIn, Principal
from broadside.exchange.messages import Identifier, Message, UtcDatetime
from broadside.exchange.ports import EntityExists, EntityNotFound, Table
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import TOKENS

# Prefix by which people and secret scanners identify a token.
PREFIX: Final = "broadside_"
_RANDOM_BYTES: Final = 32
# Maximum age of cached tokens. A revocation by another process takes effect within this time.
CACHE_S: Final = 5.0
# Minimum time between two reads of the table for unknown tokens.
_AGAIN_S: Final = 1.0
_TOKENS_MAX_COUNT: Final = 10_000


class TokenTaken(Exception):
    """A token with this name was created before."""


class UnknownToken(Exception):
    """There is no token with this name."""


class Token(Message):
    """Stored record of a token, without the token itself.

    Attributes:
        name: The token name.
        role: The access level.
        sha256: The hash of the whole token, in hexadecimal.
        created_at: The creation time.
        created_by: The user who created the token.
        expires_at: The expiry time, or None if the token does not expire.
        revoked_at: The revocation time, or None if the token is not revoked.
    """

    name: Identifier
    role: Literal[Access.VIEWER, Access.OPERATOR]
    sha256: str
    created_at: UtcDatetime
    created_by: str
    expires_at: UtcDatetime | None = None
    revoked_at: UtcDatetime | None = None

    def state(self, now: datetime) -> Literal["valid", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "valid"


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret in hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Tokens:
    """Tokens stored in the private table."""

    def __init__(self, table: Table) -> None:
        self._shelf = Collection(table, TOKENS, Token)
        self._cached: Sequence[Token] = ()
        # Monotonic time of the last read. None before the first one.
        self._read_s: float | None = None

    async def add(
        self,
        name: str,
        role: Access,
        *,
        by: str,
        now: datetime,
        expires_at: datetime | None = None,
    ) -> str:
        """Create a token, which cannot be shown again.

        A name is used only once, even after its token was revoked, because audit records refer to
        it.

        Args:
            name: The token name.
            role: The access level.
            by: The user who creates the token.
            now: Current time to use.
            expires_at: The expiry time, or None if the token does not expire.

        Returns:
            The secret text of the token.

        Raises:
            TokenTaken: The name was used before.
        """
        secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        token = Token.model_validate(
            {
                "name": name,
                "role": role,
                "sha256": digest(secret),
                "created_at": now,
                "created_by": by,
                "expires_at": expires_at,
            }
        )
        try:
            await self._shelf.create(name, token)
        except EntityExists as error:
            raise TokenTaken(f"token {name}: there is or was one; choose another name") from error
        self._read_s = None
        return secret

    async def revoke(self, name: str, *, now: datetime) -> Token:
        """Revoke a token. Coordinators apply the change within :data:`CACHE_S` seconds.

        Args:
            name: The token name.
            now: Current time to use.

        Returns:
            The token with the time of the first revocation.

        Raises:
            UnknownToken: There is no token with this name.
        """

        def revoked(token: Token) -> Token:
            return token.model_copy(update={"revoked_at": token.revoked_at or now})

        try:
            token = await self._shelf.change(name, revoked)
        except EntityNotFound as error:
            raise UnknownToken(f"token {name}: not found; see `broadside token list`") from error
        self._read_s = None
        return token

    async def all(self) -> Sequence[Token]:
        """Return all tokens, including revoked and expired ones, sorted by name."""
        return [token async for _, token in self._shelf.scan(limit=_TOKENS_MAX_COUNT)]

    async def identify(self, secret: str, now: datetime) -> Principal:
        """Return the principal of a token.

        All stored hashes are compared, each in constant time.

        Args:
            secret: The token.
            now: Current time to use.

        Raises:
            NotSignedIn: The token is unknown, expired or revoked.
        """
        hashed = digest(secret)
        matches = await self._matching(hashed, CACHE_S) or await self._matching(hashed, _AGAIN_S)
        if not matches:
            raise NotSignedIn("the token is not known; make one with `broadside token add`")
        token = matches[0]
        state = token.state(now)
        if state != "valid":
            raise NotSignedIn(f"token {token.name} is {state}; make another")
        return Principal(name=token.name, access=token.role, key=f"token:{token.name}")

    async def _matching(self, hashed: str, age_max_s: float) -> Sequence[Token]:
        """Return the tokens with this hash, from a cache of at most the given age."""
        if self._read_s is None or time.monotonic() - self._read_s >= age_max_s:
            self._cached = await self.all()
            self._read_s = time.monotonic()
        return [token for token in self._cached if hmac.compare_digest(token.sha256, hashed)]
