"""Tests for which Azure resources can be used, and to which service a token can be sent."""

from collections.abc import Callable
from functools import partial

import httpx
import pytest
from azure.core.credentials import AccessToken

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.resource_manager import (
    ANSWER_MAX_BYTES,
    POLL_S,
    AzureResource,
    ResourceError,
    ResourceManagerAccess,
    ResourceRefused,
    ResourceType,
    Waits,
    token_source,
)
from tests.unit.coordinator.device.test_capacity import FIREWALL

KIND = ResourceType(name="firewall", type="azureFirewalls", rights="all")


@pytest.mark.parametrize(
    "resource_id",
    ["", "fw", FIREWALL + "/x", FIREWALL.replace("azureFirewalls", "virtualNetworks")],
)
def test_rejects_the_id_of_another_resource_type(resource_id: str) -> None:
    with pytest.raises(ResourceRefused, match=r"not a firewall's resource id; .*/azureFirewalls/X"):
        AzureResource(resource_id, KIND, ResourceManagerAccess(token=lambda: "t"))


def test_resource_id_is_case_insensitive() -> None:
    AzureResource(FIREWALL.upper(), KIND, ResourceManagerAccess(token=lambda: "t")).close()


def test_sends_tokens_over_https_only() -> None:
    with pytest.raises(ResourceRefused, match="https only"):
        AzureResource(
            FIREWALL,
            KIND,
            ResourceManagerAccess(token=lambda: "t", endpoint="http://management.azure.com"),
        )


@pytest.mark.parametrize(
    ("endpoint", "authority"),
    [
        ("https://management.azure.com", "login.microsoftonline.com"),
        ("https://management.usgovcloudapi.net/", "login.microsoftonline.us"),
        ("https://management.chinacloudapi.cn", "login.chinacloudapi.cn"),
        ("http://127.0.0.1:1", None),
    ],
)
def test_endpoint_decides_scope_and_authority(
    endpoint: str, authority: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, object] = {}

    class Credential:
        def __init__(self, **options: object) -> None:
            fields.update(options)

        async def get_token(self, scope: str) -> AccessToken:
            fields["scope"] = scope
            return AccessToken("given", 2**33)

        async def close(self) -> None:
            pass

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Credential)
    token_source(CoordinatorSettings(azure_monitor_endpoint=endpoint))()
    assert fields.get("authority") == authority
    assert fields["scope"] == f"{endpoint.rstrip('/')}/.default"


def answering(
    answer: Callable[[], httpx.Response],
    monkeypatch: pytest.MonkeyPatch,
    *,
    patience_s: float = 0.0,
    paused: list[float] | None = None,
) -> AzureResource:
    """Return a resource with a service that will give this answer."""
    transport = httpx.MockTransport(lambda _request: answer())
    monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=transport))
    sleep = ([] if paused is None else paused).append
    return AzureResource(
        FIREWALL,
        KIND,
        ResourceManagerAccess(token=lambda: "t"),
        waits=Waits(patience_s=patience_s, sleep=sleep),
    )


@pytest.mark.parametrize(
    "answer",
    [
        lambda: httpx.Response(200, content=b"[" * 1_000_000),
        lambda: httpx.Response(200, content=b"not JSON"),
        lambda: httpx.Response(200, json=[]),
        lambda: httpx.Response(200, content=b" " * (ANSWER_MAX_BYTES + 1)),
        lambda: httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=b"\x1f\x8b"),
        lambda: httpx.Response(429, headers={"Retry-After": "1e999"}),
    ],
    ids=["deep", "text", "list", "large", "compressed", "endless wait"],
)
def test_invalid_answer_is_a_one_line_error(
    answer: Callable[[], httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceError, match=r"^[^\n]+$"):
        answering(answer, monkeypatch).read()


@pytest.mark.parametrize("retry_after", ["nan", "inf", "soon"])
def test_invalid_retry_time_uses_the_default(
    retry_after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    answers = iter([httpx.Response(429, headers={"Retry-After": retry_after}), None])
    result = httpx.Response(200, json={"id": FIREWALL})
    resource = answering(
        lambda: next(answers) or result, monkeypatch, patience_s=2 * POLL_S, paused=paused
    )
    assert resource.read() == {"id": FIREWALL}
    assert paused == [POLL_S]
