"""Tests for the catalogue of requests that Azure rejects."""

# ruff: noqa: E501 - long table rows

import base64
import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.azure_emulator.azure_refusals import Refused, refuse
from tests.azure_emulator.service_limits import CATALOGUE, size_of
from tests.unit.coordinator.azure_range.stored import Store, document, one

Change = Callable[[Store], dict[str, Any]]


@pytest.mark.parametrize(
    ("name", "premium", "accelerated", "trusted"),
    [
        ("Standard_D4_v4", False, True, True),
        ("Standard_D4s_v5", True, True, True),
        ("Standard_D2_v3", False, False, False),
        ("Standard_D8s_v3", True, True, True),
        ("Standard_D2_v2", False, True, False),
        ("Standard_A2_v2", False, False, False),
        ("Standard_B2ms", True, False, True),
        ("Standard_B2als_v2", True, True, True),
        ("Standard_F8s_v2", True, True, True),
    ],
)
def test_features_of_sizes(name: str, premium: bool, accelerated: bool, trusted: bool) -> None:
    size = size_of(name)
    assert size is not None
    features = (size.has_premium_disks, size.has_accelerated_networking, size.has_trusted_launch)
    assert features == (premium, accelerated, trusted)
    assert size_of("D4_v4") is None


def profile(item: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = item["properties"]
    return dict(fields.get("virtualMachineProfile") or fields)


def of(end: str, **properties: Any) -> Change:
    def change(store: Store) -> dict[str, Any]:
        item = one(store, end)
        item["properties"].update(properties)
        return item

    return change


def top(end: str, name: str, value: Any) -> Change:
    def change(store: Store) -> dict[str, Any]:
        item = one(store, end)
        item[name] = value
        return item

    return change


def disk(end: str, kind: str) -> Change:
    def change(store: Store) -> dict[str, Any]:
        item = one(store, end)
        profile(item)["storageProfile"]["osDisk"]["managedDisk"]["storageAccountType"] = kind
        return item

    return change


def long_name(store: Store) -> dict[str, Any]:
    item = copy.deepcopy(one(store, "/routetables/broadside-clients"))
    item["id"] = item["id"].rsplit("/", 1)[0] + "/" + "r" * 81
    return item


def in_reserved_subnet(store: Store) -> dict[str, Any]:
    item = one(store, "/networkinterfaces/broadside-coordinator")
    subnet = one(store, "/subnets/azurebastionsubnet")["id"]
    item["properties"]["ipConfigurations"][0]["properties"]["subnet"]["id"] = subnet
    return item


def delegated(store: Store) -> dict[str, Any]:
    subnet = one(store, "/broadside-clients/subnets/agents")
    subnet["properties"]["delegations"] = [
        {"properties": {"serviceName": "Microsoft.Web/serverFarms"}}
    ]
    return one(store, "sets/broadside-clients")


def reserved_port(store: Store) -> dict[str, Any]:
    item = one(store, "sets/broadside-servers")
    system = profile(item)["osProfile"]
    text = base64.b64decode(system["customData"]).decode().replace("PORTS=5201", "PORTS=65330")
    system["customData"] = base64.b64encode(text.encode()).decode()
    return item


def without_service_endpoint(store: Store) -> dict[str, Any]:
    one(store, "/broadside-clients/subnets/agents")["properties"]["serviceEndpoints"] = []
    return next(
        item for item in store.values() if item["type"] == "Microsoft.Storage/storageAccounts"
    )


def offer_without_budgets(store: Store) -> dict[str, Any]:
    store["/offer"] = {
        "id": "/offer",
        "type": "Rehearsal/offers",
        "properties": {"offerId": "MS-AZR-0036P"},
    }
    return one(store, "/budgets/broadside-monthly")


def many_addresses(store: Store) -> dict[str, Any]:
    item = one(store, "/publicipaddresses/broadside-firewall")
    for index in range(20):
        store[item["id"].lower() + str(index)] = item
    return item


def basic_address(store: Store) -> dict[str, Any]:
    one(store, "/publicipaddresses/broadside-nat-hub")["sku"]["name"] = "Basic"
    return one(store, "/natgateways/broadside-hub")


def in_region(zones: list[str], region: str) -> Change:
    def change(store: Store) -> dict[str, Any]:
        item = one(store, "/azurefirewalls/broadside-firewall")
        one(store, "/publicipaddresses/broadside-firewall")["zones"] = zones
        item |= {"zones": zones, "location": region}
        return item

    return change


def standard_idps(store: Store) -> dict[str, Any]:
    item = one(store, "/firewallpolicies/broadside-firewall")
    item["properties"]["sku"]["tier"] = "Standard"
    return item


def small_prefix(store: Store) -> dict[str, Any]:
    item = one(store, "/loadbalancers/broadside-appliance")
    item["properties"]["loadBalancingRules"][0]["properties"]["frontendPort"] = 80
    return item


POLICY, PEERING = (
    "/firewallpolicies/broadside-firewall",
    "/broadside-clients/virtualnetworkpeerings/hub",
)
CASES: list[tuple[str, str, Change, str]] = [
    ("size against disk", "notebook", disk("sets/broadside-clients", "Premium_LRS"), "InvalidParameter"),
    ("size against disk", "notebook", disk("sets/broadside-clients", "UltraSSD_LRS"), "InvalidParameter"),
    ("VM size", "notebook", top("sets/broadside-clients", "sku", {"name": "D4_v4", "capacity": 1}), "InvalidParameter"),
    ("tier of a size", "notebook", top("sets/broadside-clients", "sku", {"name": "Standard_D4_v4", "tier": "Basic", "capacity": 1}), "InvalidParameter"),
    ("accelerated networking", "notebook", top("sets/broadside-clients", "sku", {"name": "Standard_A2_v2", "capacity": 1}), "VMSizeIsNotPermittedToEnableAcceleratedNetworking"),
    ("trusted launch", "notebook", of("virtualmachines/broadside-coordinator", hardwareProfile={"vmSize": "Standard_D2_v2"}), "BadRequest"),
    ("zones", "notebook", top("sets/broadside-clients", "zones", ["4"]), "InvalidAvailabilityZone"),
    ("zones of an address", "notebook", top("/azurefirewalls/broadside-firewall", "zones", ["1"]), "ZonesMismatch"),
    ("firewall zones by region", "notebook", in_region(["2"], "northeurope"), "AzureFirewallZoneNotAvailable"),
    ("gateway of a peering", "notebook", of(PEERING, useRemoteGateways=True), "RemoteVnetHasNoGateways"),
    ("delegation", "notebook", delegated, "SubnetIsDelegated"),
    ("reserved subnet", "notebook", in_reserved_subnet, "SubnetReserved"),
    ("HA ports", "other-appliance", small_prefix, "LoadBalancingRuleInvalidPorts"),
    ("SKU of an address", "notebook", basic_address, "PublicIPAddressSkuNotSupported"),
    ("tunnel of Bastion", "notebook", top("/bastionhosts/broadside-bastion", "sku", {"name": "Basic"}), "BastionHostSkuDoesNotSupportFeature"),
    ("TLS inspection by tier", "private", of("/firewallpolicies/afwp-contoso-broadside-firewall", transportSecurity={"certificateAuthority": {}}), "FirewallPolicyTransportSecurityNeedsPremium"),
    ("IDPS by tier", "notebook", standard_idps, "FirewallPolicyIDPSNeedsPremium"),
    ("network rules of storage", "notebook", without_service_endpoint, "NetworkAclsValidationFailure"),
    ("queue by tier", "notebook", of("/queues/jobs", lockDuration="PT6M"), "BadRequest"),
    ("name length", "notebook", long_name, "InvalidResourceName"),
    ("quota", "notebook", many_addresses, "QuotaExceeded"),
    ("reserved ports", "notebook", reserved_port, "RehearsalPortReserved"),
    ("budget by offer", "notebook", offer_without_budgets, "400"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "state", "change", "code"), CASES)
def test_refuses_what_azure_refuses(name: str, state: str, change: Change, code: str) -> None:
    store = copy.deepcopy(document(state)["store"])
    item = change(store)
    with pytest.raises(Refused) as refused:
        refuse(store, item["id"], item["type"], item)
    assert refused.value.code == code, name


@pytest.mark.parametrize("state", ["notebook", "private", "other-appliance"])
def test_a_stored_range_is_accepted(state: str) -> None:
    store = document(state)["store"]
    for item in store.values():
        refuse(store, item["id"], item["type"], item)


def test_every_rule_has_a_source() -> None:
    for rule in CATALOGUE:
        assert rule.source.startswith(("learn:", "types:", "github:", "deploy/")), rule.name
