"""Static tokens: made once, shown once, kept as a hash, revoked by name.

A token is 256 random bits, so its SHA-256 cannot be turned back by guessing and needs neither salt
nor a slow hash; those protect passwords, which people choose.
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
from broadside.exchange.records.keys import TOKENS
from broadside.exchange.records.shelf import Shelf

PREFIX: Final = "broadside_"  # lets secret scanners and people tell what it is
_RANDOM_BYTES: Final = 32
CACHE_S: Final = 5.0  # s until a revocation made elsewhere is seen
_AGAIN_S: Final = 1.0  # s until a token that is not among them may make us look again
_TOKENS_MAX_COUNT: Final = 10_000


class TokenTaken(Exception):
    """A token of that name was made before."""


class UnknownToken(Exception):
    """There is no token of that name."""


class Token(Message):
    """A token as it is kept; the token itself is not."""

    name: Identifier
    role: Literal[Access.VIEWER, Access.OPERATOR]
    sha256: str  # hex, of the whole token
    created_at: UtcDatetime
    created_by: str
    expires_at: UtcDatetime | None = None  # None: never
    revoked_at: UtcDatetime | None = None

    def state(self, now: datetime) -> Literal["valid", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "valid"


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Tokens:
    """The tokens in a fabric's table."""

    def __init__(self, table: Table) -> None:
        self._shelf = Shelf(table, TOKENS, Token)
        self._cached: Sequence[Token] = ()
        self._read_s: float | None = None  # monotonic; None: never

    async def add(
        self,
        name: str,
        role: Access,
        *,
        by: str,
        now: datetime,
        expires_at: datetime | None = None,
    ) -> str:
        """Make a token and return it: the only time it is seen. Raises :class:`TokenTaken`.

        A name is never given twice, also not after its token was revoked: records name it.
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
        """Take a token out of use; coordinators notice within :data:`CACHE_S`.

        Raises :class:`UnknownToken`.
        """

        def revoked(token: Token) -> Token:
            return token.model_copy(update={"revoked_at": token.revoked_at or now})

        try:
            token = await self._shelf.change(name, revoked)
        except EntityNotFound as error:
            raise UnknownToken(
                f"token {name}: there is none; see `broadside token list`"
            ) from error
        self._read_s = None
        return token

    async def all(self) -> Sequence[Token]:
        """Every token ever made, by name."""
        return [token async for _, token in self._shelf.scan(limit=_TOKENS_MAX_COUNT)]

    async def identify(self, secret: str, now: datetime) -> Principal:
        """Whose token this is. Raises :class:`~broadside.coordinator.auth.principal.NotSignedIn`.

        Every stored hash is compared, each in constant time.
        """
        hashed = digest(secret)
        found = await self._matching(hashed, CACHE_S) or await self._matching(hashed, _AGAIN_S)
        if not found:
            raise NotSignedIn("the token is not known; make one with `broadside token add`")
        token = found[0]
        state = token.state(now)
        if state != "valid":
            raise NotSignedIn(f"token {token.name} is {state}; make another")
        return Principal(name=token.name, access=token.role, key=f"token:{token.name}")

    async def _matching(self, hashed: str, age_max_s: float) -> Sequence[Token]:
        """Tokens of that hash, among those read at most so long ago."""
        if self._read_s is None or time.monotonic() - self._read_s >= age_max_s:
            self._cached = await self.all()
            self._read_s = time.monotonic()
        return [token for token in self._cached if hmac.compare_digest(token.sha256, hashed)]
