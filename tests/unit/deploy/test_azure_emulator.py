"""Tests for the Azure emulator and for the commands on the day-one page."""

# ruff: noqa: E501 - long table rows

import json
from pathlib import Path
from typing import Any

import pytest

from tests.azure_emulator.azure_catalogue import BASE, DEPLOYER, ROLES
from tests.azure_emulator.azure_refusals import Refused
from tests.azure_emulator.day_one import PAGE, missing_line, steps_of
from tests.azure_emulator.published import Published
from tests.azure_emulator.resource_ids import kind_of, parent_of, references
from tests.azure_emulator.subscription import Subscription

GROUP = f"{BASE}/resourceGroups/night"
NETWORK = f"{GROUP}/providers/Microsoft.Network"
VERSION = {"api-version": ["2024-05-01"]}

# A virtual network in the format of bicep-types.
TYPES: list[dict[str, Any]] = [
    {"$type": "ResourceType", "name": "Microsoft.Network/virtualNetworks@2024-05-01", "body": {"$ref": "#/1"}},
    {"$type": "ObjectType", "properties": {
        "name": {"type": {"$ref": "#/2"}, "flags": 1}, "location": {"type": {"$ref": "#/2"}, "flags": 0},
        "tags": {"type": {"$ref": "#/5"}, "flags": 0}, "etag": {"type": {"$ref": "#/2"}, "flags": 2},
        "properties": {"type": {"$ref": "#/3"}, "flags": 1}}},
    {"$type": "StringType", "minLength": 2, "maxLength": 20, "pattern": "^[a-z]"},
    {"$type": "ObjectType", "properties": {
        "addressSpace": {"type": {"$ref": "#/5"}, "flags": 1}, "mtu": {"type": {"$ref": "#/4"}, "flags": 0},
        "mode": {"type": {"$ref": "#/6"}, "flags": 0}, "list": {"type": {"$ref": "#/8"}, "flags": 0}}},
    {"$type": "IntegerType", "minValue": 576, "maxValue": 9000},
    {"$type": "AnyType"},
    {"$type": "UnionType", "elements": [{"$ref": "#/7"}]},
    {"$type": "StringLiteralType", "value": "Basic"},
    {"$type": "ArrayType", "itemType": {"$ref": "#/9"}, "maxLength": 1},
    {"$type": "BooleanType"},
]  # fmt: skip


@pytest.fixture
def subscription(tmp_path: Path) -> Subscription:
    folder = tmp_path / "network" / "microsoft.network" / "2024-05-01"
    folder.mkdir(parents=True)
    (folder / "types.json").write_text(json.dumps(TYPES))
    emulated = Subscription(
        published=Published(folder=tmp_path), role_delay_s=0, registration_s=0, throttle_every=0
    )
    for namespace in ("microsoft.network", "microsoft.storage", "microsoft.compute"):
        emulated.answer("POST", f"{BASE}/providers/{namespace}/register", VERSION, None)
    emulated.plant(GROUP, {"properties": {}})
    return emulated


def put(subscription: Subscription, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = subscription.answer("PUT", path, VERSION, {"location": "eastus", **body})
    assert answer.status in (200, 201)
    return dict(answer.body)


def refused(subscription: Subscription, method: str, path: str, body: Any = None) -> str:
    with pytest.raises(Refused) as caught:
        subscription.answer(method, path, VERSION, body)
    return caught.value.code


def network(subscription: Subscription, name: str, space: str = "10.0.0.0/16") -> str:
    path = f"{NETWORK}/virtualNetworks/{name}"
    put(subscription, path, {"properties": {"addressSpace": {"addressPrefixes": [space]}}})
    return path


# Published types ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"mtu": 1500, "mode": "basic", "list": [True]}, None),
        ({"mtu": 100}, "100 is not in 576..9000"),
        ({"mtu": "many"}, "a number is wanted"),
        ({"mode": "Gold"}, "is none of ['Basic']"),
        ({"list": [True, False]}, "2 entries, not 0..1"),
        ({"list": ["x"]}, "true or false is wanted"),
        ({"colour": 1}, "properties.colour: no such property"),
    ],
)
def test_body_is_validated_with_published_types(
    subscription: Subscription, changes: dict[str, Any], fault: str | None
) -> None:
    properties = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, **changes}
    put(subscription, f"{NETWORK}/virtualNetworks/hub", {"properties": properties})
    faults = subscription.body_faults()
    assert [fault in item for item in faults] == [True] if fault else faults == []
    assert subscription.sent[-1].is_published


def test_body_without_a_type_is_validated_with_specification(
    subscription: Subscription,
) -> None:
    kind = "Microsoft.Insights/components/currentbillingfeatures"

    def faults(cap: Any) -> tuple[str, ...]:
        body = {"CurrentBillingFeatures": ["Basic"], "DataVolumeCap": cap}
        checked = subscription.published.check(kind, "2015-05-01", "x", body)
        assert checked.is_published
        return checked.faults

    assert faults({"Cap": 100.5, "StopSendNotificationWhenHitCap": True}) == ()
    assert faults({"Cap": "100"}) == (f"{kind}.DataVolumeCap.Cap: a number is wanted, not '100'",)
    assert "read-only" in faults({"MaxHistoryCap": 500})[0]
    assert "no such property" in faults({"Quota": 1})[0]


def test_reports_required_and_read_only_properties(subscription: Subscription) -> None:
    types = subscription.published
    kind = "Microsoft.Network/virtualNetworks"
    faults = types.check(kind, "2024-05-01", "h", {"etag": "1", "properties": {}}).faults
    assert [fault.removeprefix(f"{kind}.") for fault in faults] == [
        'etag: read-only, and sent: "1"',
        "properties.addressSpace: required and missing",
        "name: 'h' is not of length 2..20",
    ]
    assert not types.check(kind, "2019-01-01", "hub", {}).is_published


# Refusals -----------------------------------------------------------------------------------------


def test_rejects_unregistered_provider(subscription: Subscription) -> None:
    path = f"{GROUP}/providers/Microsoft.ServiceBus/namespaces/x"
    assert refused(subscription, "PUT", path, {}) == "MissingSubscriptionRegistration"


def test_rejects_missing_parents_and_references(subscription: Subscription) -> None:
    missing = f"{BASE}/resourceGroups/missing/providers/Microsoft.Network/virtualNetworks/x"
    assert refused(subscription, "PUT", missing, {}) == "ResourceGroupNotFound"
    subnet = f"{NETWORK}/virtualNetworks/x/subnets/y"
    assert refused(subscription, "PUT", subnet, {}) == "ParentResourceNotFound"
    hub = network(subscription, "hub")
    body = {"properties": {"addressPrefix": "10.0.0.0/24", "routeTable": {"id": f"{NETWORK}/routeTables/t"}}}  # fmt: skip
    assert refused(subscription, "PUT", f"{hub}/subnets/y", body) == "InvalidResourceReference"


@pytest.mark.parametrize(
    ("name", "prefix", "code"),
    [
        ("a", "10.1.0.0/24", "NetcfgInvalidSubnet"),
        ("b", "10.0.0.0/25", "NetcfgSubnetRangesOverlap"),
        ("AzureBastionSubnet", "10.0.2.0/27", "SubnetTooSmall"),
        ("c", "10.0.2.0/33", "InvalidCIDRNotation"),
    ],
)
def test_rejects_invalid_subnets(
    subscription: Subscription, name: str, prefix: str, code: str
) -> None:
    hub = network(subscription, "hub")
    put(subscription, f"{hub}/subnets/agents", {"properties": {"addressPrefix": "10.0.0.0/24"}})
    body = {"properties": {"addressPrefix": prefix}}
    assert refused(subscription, "PUT", f"{hub}/subnets/{name}", body) == code


def test_rejects_peering_of_overlapping_networks(subscription: Subscription) -> None:
    hub, spoke = network(subscription, "hub"), network(subscription, "spoke", "10.0.4.0/24")
    body = {"properties": {"remoteVirtualNetwork": {"id": spoke}}}
    path = f"{hub}/virtualNetworkPeerings/x"
    assert refused(subscription, "PUT", path, body) == "VnetAddressSpacesOverlap"


def test_peering_is_connected_after_both_directions_exist(subscription: Subscription) -> None:
    hub, spoke = network(subscription, "hub"), network(subscription, "spoke", "10.1.0.0/16")
    states = []
    for local, remote in ((hub, spoke), (spoke, hub)):
        body = {"properties": {"remoteVirtualNetwork": {"id": remote}}}
        peering = put(subscription, f"{local}/virtualNetworkPeerings/x", body)
        states.append(peering["properties"]["peeringState"])
    first = subscription.store[f"{hub}/virtualNetworkPeerings/x".lower()]
    assert states == ["Initiated", "Connected"]
    assert first["properties"]["peeringState"] == "Connected"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"destinationPortRanges": ["*"], "destinationPortRange": None}, "SecurityRuleInvalidPortRange"),
        ({"destinationAddressPrefix": "Storage.East US"}, "SecurityRuleInvalidAddressPrefix"),
        ({"priority": 99}, "SecurityRuleInvalidPriority"),
        ({"priority": 100}, "SecurityRuleConflict"),
        ({"destinationPortRange": None}, "SecurityRuleNoPortRange"),
    ],
)  # fmt: skip
def test_rejects_invalid_security_rules(
    subscription: Subscription, changes: dict[str, Any], code: str
) -> None:
    group = f"{NETWORK}/networkSecurityGroups/agents"
    put(subscription, group, {"properties": {}})
    rule = {
        "priority": 100, "direction": "Inbound", "sourceAddressPrefix": "10.0.0.0/8",
        "destinationAddressPrefix": "Storage.eastus", "destinationPortRange": "443",
    }  # fmt: skip
    put(subscription, f"{group}/securityRules/one", {"properties": rule})
    body = {"properties": rule | {"priority": 110} | changes}
    assert refused(subscription, "PUT", f"{group}/securityRules/two", body) == code


def test_lock_prevents_deletion_of_child_resources(subscription: Subscription) -> None:
    hub = network(subscription, "hub")
    lock = f"{hub}/providers/Microsoft.Authorization/locks/keep"
    subscription.plant(lock, {"properties": {"level": "CanNotDelete"}})
    put(subscription, f"{hub}/subnets/agents", {"properties": {"addressPrefix": "10.0.0.0/24"}})
    for path in (hub, f"{hub}/subnets/agents"):
        assert refused(subscription, "DELETE", path) == "ScopeLocked"


def test_rejects_deletion_of_used_resource(subscription: Subscription) -> None:
    address = f"{NETWORK}/publicIPAddresses/a"
    put(subscription, address, {"properties": {}})
    user = {"properties": {"publicIpAddresses": [{"id": address}]}}
    subscription.plant(f"{NETWORK}/natGateways/n", user)
    assert refused(subscription, "DELETE", address) == "InUse"
    del subscription.store[f"{NETWORK}/natGateways/n".lower()]
    assert subscription.answer("DELETE", address, VERSION, None).status == 200


def test_rejects_unsupported_region_or_zone(subscription: Subscription) -> None:
    address = f"{NETWORK}/publicIPAddresses/a"
    codes = [
        refused(subscription, "PUT", address, {"properties": {}, **body})
        for body in ({"location": "West Europe"}, {"location": "westus", "zones": ["1"]})
    ]
    assert codes == ["LocationNotAvailableForResourceType", "AvailabilityZoneNotSupported"]


def test_role_is_effective_after_a_delay_and_unique(subscription: Subscription) -> None:
    subscription.role_delay_s = 1000
    role = f"{BASE}/providers/Microsoft.Authorization/roleDefinitions"
    fields = {
        "principalId": DEPLOYER,
        "roleDefinitionId": f"{role}/{ROLES['Storage Blob Data Contributor']}",
    }
    first, second = (
        f"{GROUP}/providers/Microsoft.Authorization/roleAssignments/{n}" for n in ("one", "two")
    )
    put(subscription, first, {"properties": fields})
    assert not subscription.may(DEPLOYER, "Storage Blob Data", f"{GROUP}/providers/x")
    subscription.role_delay_s = 0
    assert subscription.may(DEPLOYER, "Storage Blob Data", f"{GROUP}/providers/x")
    assert not subscription.may(DEPLOYER, "Storage Blob Data", BASE)
    assert refused(subscription, "PUT", second, {"properties": fields}) == "RoleAssignmentExists"
    no_user = fields | {"principalId": "unknown"}
    assert refused(subscription, "PUT", second, {"properties": no_user}) == "PrincipalNotFound"


def test_requests_are_throttled(subscription: Subscription) -> None:
    subscription.throttle_every = 2
    statuses = {subscription.answer("GET", BASE, VERSION, None).status for _ in range(4)}
    assert statuses == {200, 429}


def test_resource_groups_are_filtered_by_tag(subscription: Subscription) -> None:
    query = VERSION | {"$filter": ["tagName eq 'broadside' and tagValue eq 'night'"]}
    request = ("GET", f"{BASE}/resourcegroups", query, None)
    assert subscription.answer(*request).body == {"value": []}
    subscription.plant(f"{BASE}/resourceGroups/mine", {"tags": {"broadside": "night"}})
    assert [item["name"] for item in subscription.answer(*request).body["value"]] == ["mine"]


def test_parses_resource_ids() -> None:
    rule = f"{NETWORK}/networkSecurityGroups/g/securityRules/r"
    assert kind_of(rule) == "Microsoft.Network/networkSecurityGroups/securityRules"
    assert parent_of(rule) == f"{NETWORK}/networkSecurityGroups/g"
    role = f"{rule}/providers/Microsoft.Authorization/roleAssignments/x"
    assert (kind_of(role), parent_of(role)) == ("Microsoft.Authorization/roleAssignments", rule)
    body = {"a": [{"id": rule}], "identity": {rule: {}}, "note": "no /subscriptions/x"}
    assert [item for _, item in references(body)] == [rule, rule]


# Day one ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", ["From an empty subscription", "From a production firewall"])
def test_day_one_page_runs_from_up_to_down(heading: str) -> None:
    steps = steps_of(PAGE.read_text("utf-8"), heading)
    commands = "".join(step.commands for step in steps)
    assert commands.index("broadside up --check") < commands.index("--yes")
    assert commands.rstrip().endswith("broadside down --yes")
    assert all(step.prints for step in steps)
    assert "ssh -p" not in commands


def test_steps_have_duration_and_cost() -> None:
    for step in PAGE.read_text("utf-8").split("\n### ")[1:]:
        missing = [part for part in ("takes", "cost") if part not in step.lower()]
        assert not missing, step.partition("\n")[0]


def test_expected_output_is_matched_in_order() -> None:
    printed = "Apply complete! Resources: 7\nup; then: down\n"
    assert missing_line(printed, ("Apply complete! ...", "...", "up; ...")) is None
    assert missing_line(printed, ("up; then", "Apply complete!")) == "Apply complete!"
    assert missing_line(printed, ("Apply ... 8",)) == "Apply ... 8"
