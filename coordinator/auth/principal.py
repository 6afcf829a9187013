"""Who asks, and what that one may do.

Errors::

    SignInError
    ├── NotSignedIn          no credential, or one that is not accepted; says why (401)
    ├── NoRole               a good credential of somebody who was given no role (403)
    ├── KeysUnavailable      the keys to check a token with cannot be had just now (503)
    └── SignInMisconfigured  a setting is missing or contradicts another; says which
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class SignInError(Exception):
    """Sign-in did not work; the message is one line for a person."""


class NotSignedIn(SignInError):
    """No credential, or one that is not accepted."""


class NoRole(SignInError):
    """A good credential of somebody who was given no role."""


class KeysUnavailable(SignInError):
    """The keys to check a token with cannot be had just now."""


class SignInMisconfigured(SignInError):
    """A setting is missing or contradicts another."""


class Access(StrEnum):
    """What a route asks for. An operator may all that a viewer may."""

    OPEN = "open"  # anybody, without a token
    VIEWER = "viewer"  # reads
    OPERATOR = "operator"  # launches, aborts, changes


_HEIGHT: Final = {Access.OPEN: 0, Access.VIEWER: 1, Access.OPERATOR: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """One who asks."""

    name: str  # for the record: launches, aborts, audit rows
    access: Access
    key: str  # stable and unique: what limits are counted by
    signed_in: bool = True

    def may(self, needed: Access) -> bool:
        return _HEIGHT[self.access] >= _HEIGHT[needed]

    def named(self, said: str) -> str:
        """The name to keep: the proven one, else what the request says of itself."""
        return self.name if self.signed_in else said


ANYBODY: Final = Principal(name="anybody", access=Access.OPERATOR, key="", signed_in=False)
"""Whoever reaches an API without sign-in, which listens on loopback only."""
