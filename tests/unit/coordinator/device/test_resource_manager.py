"""Whose resource is touched, and where a token goes."""

import pytest

from coordinator.device.resource_manager import Kind, Resource, ResourceRefused
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
