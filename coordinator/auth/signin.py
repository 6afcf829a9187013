"""Authentication of requests by their ``Authorization`` header."""

from broadside.coordinator.auth.entra import Entra, entra_trust
from broadside.coordinator.auth.principal import NotSignedIn, Principal
from broadside.coordinator.auth.signin_settings import SignInSettings
from broadside.coordinator.auth.static_tokens import PREFIX, Tokens
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Table


class SignIn:
    """Verifies bearer tokens from Broadside, and from Entra ID if it is configured."""

    def __init__(self, tokens: Tokens, entra: Entra | None) -> None:
        self._tokens = tokens
        self._entra = entra

    async def identify(self, authorization: str | None) -> Principal:
        """Return the user or service that sends a request.

        Raises:
            NotSignedIn: There is no token, or the token is not valid.
            NoRole: The user has no role.
            KeysUnavailable: The keys of Entra ID cannot be fetched.
            ExchangeError: The tokens cannot be read.
        """
        if authorization is None:
            raise NotSignedIn("no token; send the header `Authorization: Bearer <token>`")
        scheme, _, credential = authorization.partition(" ")
        credential = credential.strip()
        if scheme.lower() != "bearer" or not credential:
            raise NotSignedIn("the Authorization header is not `Bearer <token>`")
        if credential.startswith(PREFIX):
            return await self._tokens.identify(credential, utc_now())
        if self._entra is None:
            raise NotSignedIn("the token is not one of Broadside's, and Entra ID is not set up")
        return await self._entra.identify(credential)


def open_sign_in(settings: SignInSettings, table: Table) -> SignIn | None:
    """Create the sign-in that the settings select.

    Args:
        settings: Settings for sign-in.
        table: Private table with the tokens.

    Returns:
        The sign-in, or None if it is off.

    Raises:
        SignInMisconfigured: A setting is missing or conflicts with another one.
    """
    trust = entra_trust(settings)
    if settings.sign_in == "off":
        return None
    return SignIn(Tokens(table), None if trust is None else Entra(trust))
