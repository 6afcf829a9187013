"""Whose resource is touched, and where a token goes."""

from collections.abc import Callable
from functools import partial

import httpx
import pytest
from azure.core.credentials import AccessToken

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.resource_manager import (
    ANSWER_MAX_BYTES,
    POLL_S,
    Kind,
    Resource,
    ResourceError,
    ResourceRefused,
    token_source,
)
from tests.unit.coordinator.device.test_capacity import FIREWALL

KIND = Kind(name="firewall", type="azureFirewalls", rights="all")


@pytest.mark.parametrize(
    "resource_id",
    ["", "fw", FIREWALL + "/x", FIREWALL.replace("azureFirewalls", "virtualNetworks")],
)
def test_another_types_id_is_refused(resource_id: str) -> None:
    with pytest.raises(ResourceRefused, match=r"not a firewall's resource id; .*/azureFirewalls/X"):
        Resource(resource_id, KIND, token=lambda: "t")


def test_an_id_is_the_same_in_any_case() -> None:
    Resource(FIREWALL.upper(), KIND, token=lambda: "t").close()


def test_a_token_travels_over_https_only() -> None:
    with pytest.raises(ResourceRefused, match="https only"):
        Resource(FIREWALL, KIND, token=lambda: "t", endpoint="http://management.azure.com")


@pytest.mark.parametrize(
    ("endpoint", "authority"),
    [
        ("https://management.azure.com", "login.microsoftonline.com"),
        ("https://management.usgovcloudapi.net/", "login.microsoftonline.us"),
        ("https://management.chinacloudapi.cn", "login.chinacloudapi.cn"),
        ("http://127.0.0.1:1", None),
    ],
)
def test_one_setting_decides_scope_and_who_signs_in(
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
) -> Resource:
    """A resource whose service answers so."""
    transport = httpx.MockTransport(lambda _request: answer())
    monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=transport))
    sleep = ([] if paused is None else paused).append
    return Resource(FIREWALL, KIND, token=lambda: "t", patience_s=patience_s, sleep=sleep)


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
    ids=["deep", "text", "list", "large", "packed", "for ever"],
)
def test_what_is_no_resource_is_an_error_of_one_line(
    answer: Callable[[], httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceError, match=r"^[^\n]+$"):
        answering(answer, monkeypatch).read()


@pytest.mark.parametrize("told", ["nan", "inf", "soon"])
def test_a_time_to_wait_that_is_none_is_the_usual_one(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    answers = iter([httpx.Response(429, headers={"Retry-After": told}), None])
    result = httpx.Response(200, json={"id": FIREWALL})
    resource = answering(
        lambda: next(answers) or result, monkeypatch, patience_s=2 * POLL_S, paused=paused
    )
    assert resource.read() == {"id": FIREWALL}
    assert paused == [POLL_S]
