"""When an agent takes itself for revoked: once no coordinator accepts any secret of its own."""

from typing import Any

import httpx
import pytest

from broadside.exchange.http import coordinator_client
from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.http.credential import Credential

FIRST, SECOND = "https://first:8443", "https://second:8443"


def link(**fields: Any) -> CoordinatorClient:
    made = {"coordinators": (FIRST, SECOND), "authority": None, "agent_id": "c1"}
    return CoordinatorClient(
        Credential(**{**made, "role": "client", "secret": "new", "issued_s": 0.0, **fields})
    )


@pytest.mark.parametrize(
    ("accepted", "still_in"),
    [
        ({(SECOND, "new")}, True),  # the first stands in for the second, and knows nobody yet
        ({(FIRST, "new")}, True),  # another request had the secret of before
        ({(FIRST, "old")}, True),  # its backup was restored
        ({(FIRST, "other")}, False),
        (set(), False),
    ],
)
async def test_an_agent_is_revoked_once_nobody_accepts_a_secret_of_its_own(
    accepted: set[tuple[str, str]], still_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(
        _: object, method: str, url: str, __: int, *, headers: dict[str, str], **___: object
    ) -> httpx.Response:
        base, secret = url.partition("/v1/")[0], headers["Authorization"].split()[1]
        status = 200 if (base, secret) in accepted else 401
        return httpx.Response(status, text="[]", request=httpx.Request(method, url))

    monkeypatch.setattr(coordinator_client, "ask", ask)
    asking = link(earlier=("old",))
    assert await asking.let_in_again() is still_in
    await asking.close()
