"""Completeness checks of a deployed range: paths, egress, permissions and the package."""

import json
from collections.abc import Iterator
from typing import Any, Final

from tests.azure_emulator import reach
from tests.azure_emulator.azure_catalogue import ROLES
from tests.azure_emulator.reach import of_kind
from tests.azure_emulator.stage import Stage

# Required role and last part of its scope by identity. Additional ones are faults too.
RIGHTS: Final = {
    "clients": {
        ("Storage Blob Data Reader", "agent"),
        ("Storage Table Data Reader", "control"),
        ("Storage Table Data Contributor", "results"),
        ("Azure Service Bus Data Receiver", "jobs"),
    },
    "servers": {
        ("Storage Blob Data Reader", "agent"),
        ("Storage Table Data Reader", "control"),
        ("Storage Table Data Contributor", "results"),
    },
    "coordinator": {
        ("Storage Blob Data Reader", "agent"),
        ("Storage Table Data Contributor", "control"),
        ("Storage Table Data Contributor", "results"),
        ("Storage Table Data Contributor", "private"),
        ("Azure Service Bus Data Receiver", "jobs"),
        ("Azure Service Bus Data Sender", "jobs"),
    },
}


def wants(stage: Stage, before: set[str]) -> Iterator[str]:
    """Yield the faults of the range. ``before`` holds ids of other resources."""
    mine = {key: item for key, item in stage.subscription.store.items() if item["id"] not in before}
    yield from _peerings(mine)
    yield from _subnets(stage, mine)
    yield from _rights(stage, mine)
    yield from _machines(stage, mine)
    yield from _tags(mine)
    yield from reach.faults(stage.subscription.store, mine)


def _peerings(mine: dict[str, Any]) -> Iterator[str]:
    for item in of_kind(mine, "virtualnetworkpeerings"):
        reported = item["properties"]
        is_theirs = reported["remoteVirtualNetwork"]["id"].lower() not in mine
        # The owner's half is only proposed.
        if reported["peeringState"] != "Connected" and not is_theirs:
            yield f"{item['id']}: {reported['peeringState']}: one way only"


def _subnets(stage: Stage, mine: dict[str, Any]) -> Iterator[str]:
    """Check groups, egress, and routes through the device under test."""
    hops = {
        configuration["properties"]["privateIPAddress"]
        for kind, key in (
            ("azurefirewalls", "ipConfigurations"),
            ("loadbalancers", "frontendIPConfigurations"),
        )
        for item in of_kind(stage.subscription.store, kind)
        for configuration in item["properties"].get(key) or ()
    }
    private = bool(of_kind(mine, "privateendpoints"))
    for item in of_kind(mine, "subnets"):
        name, reported = item["id"].rsplit("/", 1)[1], item["properties"]
        if name not in ("agents", "coordinator"):
            continue
        if not reported.get("networkSecurityGroup"):
            yield f"{item['id']}: no security group"
        if not reported.get("natGateway") and not (private and name == "agents"):
            yield f"{item['id']}: no way out to Service Bus"
        if not any(
            it["service"] == "Microsoft.Storage" for it in reported.get("serviceEndpoints", ())
        ):
            yield f"{item['id']}: no service endpoint for storage"
        if name == "agents":
            yield from _routed(stage, item, hops)


def _routed(stage: Stage, subnet: Any, hops: set[str]) -> Iterator[str]:
    table = (subnet["properties"].get("routeTable") or {}).get("id", "none").lower()
    routes = [
        item["properties"]
        for key, item in stage.subscription.store.items()
        if key.startswith(f"{table}/routes/")
    ]
    if not any(route.get("nextHopIpAddress") in hops for route in routes):
        yield f"{subnet['id']}: no route through the appliance ({sorted(hops)}): {routes}"


def _rights(stage: Stage, mine: dict[str, Any]) -> Iterator[str]:
    names = {value: name for name, value in ROLES.items()}
    identities = {
        item["properties"]["principalId"]: item["name"].rsplit("-", 1)[-1]
        for item in of_kind(mine, "userassignedidentities")
    }
    by_name: dict[str, set[tuple[str, str]]] = {role: set() for role in RIGHTS}
    for item in of_kind(mine, "roleassignments"):
        reported = item["properties"]
        user = identities.get(reported["principalId"], "another")
        role = names.get(reported["roleDefinitionId"].rsplit("/", 1)[1], "own")
        if user in by_name and role != "own":
            by_name[user].add((role, reported["scope"].rsplit("/", 1)[1]))
    local = {("Monitoring Reader", item["name"]) for item in of_kind(mine, "azurefirewalls")}
    theirs = {
        ("Monitoring Reader", item["name"])
        for item in of_kind(stage.subscription.store, "azurefirewalls")
    }
    for user, rights in RIGHTS.items():
        due = rights | local if user == "coordinator" else rights
        if not due <= by_name[user] <= due | theirs:
            yield f"{user}: lacks {due - by_name[user]}, has besides {by_name[user] - due}"


def _machines(stage: Stage, mine: dict[str, Any]) -> Iterator[str]:
    """Check that each VM refers to an existing package, tables, queue and identity."""
    names = {item["name"] for item in (*of_kind(mine, "tables"), *of_kind(mine, "queues"))}
    clients = {item["properties"]["clientId"] for item in of_kind(mine, "userassignedidentities")}
    profiles = [item["properties"]["virtualMachineProfile"] for item in
                of_kind(mine, "virtualmachinescalesets")]  # fmt: skip
    profiles += [
        item["properties"] for item in of_kind(mine, "virtualmachines")
        if "appliance" not in item["name"]
    ]  # fmt: skip
    if len(profiles) != 3:
        yield f"{len(profiles)} kinds of machines, not 3"
    for profile in profiles:
        files, environment = reach.written_files(profile), reach.environment(profile)
        bundle = json.loads(files["/etc/broadside/bundle.json"])
        if bundle["url"].removeprefix("https://").replace(
            ".blob.core.windows.net", ""
        ) not in stage.data.blobs:  # fmt: skip
            yield f"{bundle['url']}: no package there"
        for name in ("TABLES_CONTROL", "TABLES_RESULTS", "SERVICEBUS_QUEUE"):
            name = f"BROADSIDE_{name}"
            if environment.get(name) not in names:
                yield f"{name}={environment.get(name)}: not made"
        if environment.get("BROADSIDE_MANAGED_IDENTITY_CLIENT_ID") not in clients:
            yield f"{environment.get('BROADSIDE_MANAGED_IDENTITY_CLIENT_ID')}: no identity here"


def _tags(mine: dict[str, Any]) -> Iterator[str]:
    for item in mine.values():
        if "location" in item and not (item.get("tags") or {}).get("broadside"):
            yield f"{item['id']}: has no tag `broadside`"
