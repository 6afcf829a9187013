"""Token credential for the Azure SDKs, to use a token from the test."""

import time

from azure.core.credentials import AccessToken, AccessTokenInfo

# The lifetime that is reported to the SDK. The lifetime inside the token may differ.
_LIVES_S = 3600


class GivenToken:
    """Return a valid or invalid token and store the last requested ``scopes``."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.scopes: tuple[str, ...] = ()

    async def get_token(self, *scopes: str, **_: object) -> AccessToken:
        self.scopes = scopes
        return AccessToken(self.token, int(time.time()) + _LIVES_S)

    async def get_token_info(self, *_: str, **__: object) -> AccessTokenInfo:
        return AccessTokenInfo(self.token, int(time.time()) + _LIVES_S)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> "GivenToken":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass
