"""Tests for the detection of a revoked agent. It is revoked if no coordinator accepts any of its
secrets."""

from typing import Any

import httpx
import pytest

from broadside.exchange.http import coordinator_client
from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.http.credential import AgentCredential

FIRST, SECOND = "https://first:8443", "https://second:8443"


def link(**fields: Any) -> CoordinatorClient:
    defaults = {"coordinators": (FIRST, SECOND), "authority": None, "agent_id": "c1"}
    return CoordinatorClient(
        AgentCredential(
            **{**defaults, "role": "client", "secret": "new", "issued_s": 0.0, **fields}
        )
    )


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        # The first coordinator was used to replace the second and does not know the agent yet.
        ({(SECOND, "new")}, True),
        # Another request used the earlier secret.
        ({(FIRST, "new")}, True),
        # The coordinator was restored from a backup.
        ({(FIRST, "old")}, True),
        ({(FIRST, "other")}, False),
        (set(), False),
    ],
)
async def test_agent_is_revoked_if_no_secret_is_accepted(
    accepted: set[tuple[str, str]], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(
        _: object, method: str, url: str, __: int, *, headers: dict[str, str], **___: object
    ) -> httpx.Response:
        base, secret = url.partition("/v1/")[0], headers["Authorization"].split()[1]
        status = 200 if (base, secret) in accepted else 401
        return httpx.Response(status, text="[]", request=httpx.Request(method, url))

    monkeypatch.setattr(coordinator_client, "ask", ask)
    client = link(earlier=("old",))
    assert await client.let_in_again() is expected
    await client.close()
