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
    mine = {key: each for key, each in stage.subscription.store.items() if each["id"] not in before}
    yield from _peerings(mine)
    yield from _subnets(stage, mine)
    yield from _rights(stage, mine)
    yield from _machines(stage, mine)
    yield from _tags(mine)
    yield from reach.faults(stage.subscription.store, mine)


def _peerings(mine: dict[str, Any]) -> Iterator[str]:
    for each in of_kind(mine, "virtualnetworkpeerings"):
        told = each["properties"]
        is_theirs = told["remoteVirtualNetwork"]["id"].lower() not in mine
        # The owner's half is only proposed.
        if told["peeringState"] != "Connected" and not is_theirs:
            yield f"{each['id']}: {told['peeringState']}: one way only"


def _subnets(stage: Stage, mine: dict[str, Any]) -> Iterator[str]:
    """Check groups, egress, and routes through the device under test."""
    hops = {
        configuration["properties"]["privateIPAddress"]
        for kind, key in (
            ("azurefirewalls", "ipConfigurations"),
            ("loadbalancers", "frontendIPConfigurations"),
        )
        for each in of_kind(stage.subscription.store, kind)
        for configuration in each["properties"].get(key) or ()
    }
    private = bool(of_kind(mine, "privateendpoints"))
    for each in of_kind(mine, "subnets"):
        name, told = each["id"].rsplit("/", 1)[1], each["properties"]
        if name not in ("agents", "coordinator"):
            continue
        if not told.get("networkSecurityGroup"):
            yield f"{each['id']}: no security group"
        if not told.get("natGateway") and not (private and name == "agents"):
            yield f"{each['id']}: no way out to Service Bus"
        if not any(it["service"] == "Microsoft.Storage" for it in told.get("serviceEndpoints", ())):
            yield f"{each['id']}: no service endpoint for storage"
        if name == "agents":
            yield from _routed(stage, each, hops)


def _routed(stage: Stage, subnet: Any, hops: set[str]) -> Iterator[str]:
    table = (subnet["properties"].get("routeTable") or {}).get("id", "none").lower()
    routes = [
        each["properties"]
        for key, each in stage.subscription.store.items()
        if key.startswith(f"{table}/routes/")
    ]
    if not any(route.get("nextHopIpAddress") in hops for route in routes):
        yield f"{subnet['id']}: no route through the appliance ({sorted(hops)}): {routes}"


def _rights(stage: Stage, mine: dict[str, Any]) -> Iterator[str]:
    names = {value: name for name, value in ROLES.items()}
    identities = {
        each["properties"]["principalId"]: each["name"].rsplit("-", 1)[-1]
        for each in of_kind(mine, "userassignedidentities")
    }
    found: dict[str, set[tuple[str, str]]] = {role: set() for role in RIGHTS}
    for each in of_kind(mine, "roleassignments"):
        told = each["properties"]
        who = identities.get(told["principalId"], "another")
        role = names.get(told["roleDefinitionId"].rsplit("/", 1)[1], "own")
        if who in found and role != "own":
            found[who].add((role, told["scope"].rsplit("/", 1)[1]))
    own = {("Monitoring Reader", each["name"]) for each in of_kind(mine, "azurefirewalls")}
    theirs = {
        ("Monitoring Reader", each["name"])
        for each in of_kind(stage.subscription.store, "azurefirewalls")
    }
    for who, rights in RIGHTS.items():
        due = rights | own if who == "coordinator" else rights
        if not due <= found[who] <= due | theirs:
            yield f"{who}: lacks {due - found[who]}, has besides {found[who] - due}"


def _machines(stage: Stage, mine: dict[str, Any]) -> Iterator[str]:
    """Check that each VM refers to an existing package, tables, queue and identity."""
    names = {each["name"] for each in (*of_kind(mine, "tables"), *of_kind(mine, "queues"))}
    clients = {each["properties"]["clientId"] for each in of_kind(mine, "userassignedidentities")}
    profiles = [each["properties"]["virtualMachineProfile"] for each in
                of_kind(mine, "virtualmachinescalesets")]  # fmt: skip
    profiles += [
        each["properties"] for each in of_kind(mine, "virtualmachines")
        if "appliance" not in each["name"]
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
    for each in mine.values():
        if "location" in each and not (each.get("tags") or {}).get("broadside"):
            yield f"{each['id']}: has no tag `broadside`"
