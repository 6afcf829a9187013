"""Authenticated users and their access levels.

Errors::

    SignInError
    ├── NotSignedIn          no credential or an invalid one, with the reason (401)
    ├── NoRole               valid credential of a user without a role (403)
    ├── KeysUnavailable      keys to verify a token cannot be fetched (503)
    └── SignInMisconfigured  a setting is missing or conflicts with another one
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class SignInError(Exception):
    """Sign-in failed. The message is one line for the user."""


class NotSignedIn(SignInError):
    """The request has no credential or an invalid one."""


class NoRole(SignInError):
    """The credential is valid, but the user has no role."""


class KeysUnavailable(SignInError):
    """The keys to verify a token cannot be fetched at the moment."""


class SignInMisconfigured(SignInError):
    """A setting is missing or conflicts with another one."""


class Access(StrEnum):
    """Access level of a route. An operator has all rights of a viewer.

    Attributes:
        OPEN: No token is required.
        VIEWER: Read access.
        OPERATOR: Access to launch, abort and change.
    """

    OPEN = "open"
    VIEWER = "viewer"
    OPERATOR = "operator"


_HEIGHT: Final = {Access.OPEN: 0, Access.VIEWER: 1, Access.OPERATOR: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """User or service that sends a request.

    Attributes:
        name: Name in launches, aborts and audit rows.
        access: Access level.
        key: Stable and unique id, used for rate limits.
        signed_in: False if the API runs without sign-in.
    """

    name: str
    access: Access
    key: str
    signed_in: bool = True

    def may(self, needed: Access) -> bool:
        return _HEIGHT[self.access] >= _HEIGHT[needed]

    def named(self, requested: str) -> str:
        """Return the authenticated name. Without sign-in, return the name in the request."""
        return self.name if self.signed_in else requested


ANYBODY: Final = Principal(name="anybody", access=Access.OPERATOR, key="", signed_in=False)
"""Principal of an API without sign-in, which listens only on loopback."""
