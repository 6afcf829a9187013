"""A token credential as the Azure SDKs take it, with a token of a test's own."""

import time

from azure.core.credentials import AccessToken, AccessTokenInfo

_LIVES_S = 3600  # as it tells the SDK; the token itself may say otherwise


class GivenToken:
    """Gives one token, right or wrong; ``scopes`` are those that were asked for last."""

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
