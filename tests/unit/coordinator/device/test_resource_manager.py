"""Whose resource is touched, and where a token goes."""

import pytest
from azure.core.credentials import AccessToken

from coordinator.coordinator_settings import CoordinatorSettings
from coordinator.device.resource_manager import Kind, Resource, ResourceRefused, token_source
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
    asked: dict[str, object] = {}

    class Credential:
        def __init__(self, **options: object) -> None:
            asked.update(options)

        async def get_token(self, scope: str) -> AccessToken:
            asked["scope"] = scope
            return AccessToken("given", 2**33)

        async def close(self) -> None:
            pass

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Credential)
    token_source(CoordinatorSettings(azure_monitor_endpoint=endpoint))()
    assert asked.get("authority") == authority
    assert asked["scope"] == f"{endpoint.rstrip('/')}/.default"
