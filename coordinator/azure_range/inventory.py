"""Parts of a range that no VM uses: the operator's access, the schedules, charts, and leftovers."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from broadside.coordinator.azure_range.machines import Machine
from broadside.coordinator.azure_range.resources import (
    Resource,
    Resources,
    parent_id,
    prefixes,
    properties,
    reference,
    short,
)
from broadside.coordinator.azure_range.rights import (
    READ_ROWS,
    START_VM,
    WRITE_BLOB,
    assignments,
    permits,
    role_of,
)
from broadside.coordinator.azure_range.routing import RoutedFlow, cross_peering, pass_groups
from broadside.coordinator.azure_range.trace import Trace, TraceRow, follow

ROLES: Final = ("client", "server", "coordinator")
# Kinds that are of no use alone.
_USED_BY_OTHERS: Final = (
    "publicIPAddresses", "networkSecurityGroups", "natGateways", "routeTables",
    "networkInterfaces", "firewallPolicies", "proximityPlacementGroups", "userAssignedIdentities",
    "workspaces",
)  # fmt: skip


def inventory(resources: Resources, fleet: list[Machine]) -> Iterator[TraceRow]:
    """Yield the rows of the range itself.

    Args:
        resources: All resources of the range.
        fleet: The VMs, one of each role.
    """
    steps: dict[tuple[str, str], Callable[[Trace], None]] = {
        ("range", "one of each VM"): partial(_fleet, fleet=fleet),
        ("range", "storage is closed"): _storage,
        ("range", "every part is in use"): _unused,
        ("range", "tags for down"): _tags,
        ("range", "budget"): _budget,
        ("range", "charts"): _diagnostics,
        ("range", "nightly stop"): partial(_stop, fleet=fleet),
        ("workflow", "morning start"): partial(_wake, fleet=fleet),
        ("operator", "ssh by bastion"): partial(_bastion, fleet=fleet),
        ("operator", "upload and boot status"): _deployer,
    }
    for (role, need), step in steps.items():
        yield follow(resources, role, need, step)


def created(resources: Resources, kind: str) -> list[Resource]:
    """Return the resources of a kind that the range has created.

    Args:
        resources: All resources, including those of other owners.
        kind: Last part of the resource type, such as ``subnets``.
    """
    return [item for item in resources.of_kind(kind) if not resources.is_foreign(item["id"])]


def _fleet(trace: Trace, fleet: list[Machine]) -> None:
    roles = sorted(machine.role for machine in fleet)
    if roles != sorted(ROLES):
        raise trace.fail("given", f"roles of the VMs: {', '.join(roles)}")
    sets = created(trace.resources, "virtualMachineScaleSets")
    for name, read in (("VMs", lambda one: (one.get("sku") or {}).get("capacity")),
                       ("size", lambda one: (one.get("sku") or {}).get("name")),
                       ("zones", lambda one: one.get("zones") or []),
                       ("placement", lambda one: properties(one).get("proximityPlacementGroup")),
                       ("accelerated networking", _accelerated)):  # fmt: skip
        values = [read(item) for item in sets]
        if any(value != values[0] for value in values):
            raise trace.fail("given", f"{name} of the scale sets differ: {values}")
    trace.ok("given", ", ".join(short(machine.id) for machine in fleet))


def _accelerated(scale_set: Resource) -> object:
    profile = properties(scale_set)["virtualMachineProfile"]["networkProfile"]
    nic = profile["networkInterfaceConfigurations"][0]["properties"]
    return nic.get("enableAcceleratedNetworking")


def _storage(trace: Trace) -> None:
    _check_accounts(trace)
    _check_namespaces(trace)
    _check_endpoints(trace)
    trace.ok("listener", "managed identities only")


def _check_accounts(trace: Trace) -> None:
    for account in created(trace.resources, "storageAccounts"):
        fields = properties(account)
        rules = fields.get("networkAcls") or {}
        wanted: Mapping[str, tuple[Any, Any]] = {
            "network rules": (rules.get("defaultAction"), "Deny"),
            "shared keys": (fields.get("allowSharedKeyAccess"), False),
            "public blobs": (fields.get("allowBlobPublicAccess"), False),
            "TLS": (fields.get("minimumTlsVersion"), "TLS1_2"),
        }
        for name, (value, due) in wanted.items():
            if value != due:
                raise trace.fail("listener", f"{account['name']}: {name} is {value}, not {due}")
        for item in trace.resources.children(account["id"], "containers"):
            if properties(item).get("publicAccess") not in (None, "None"):
                raise trace.fail("listener", f"container {item['name']} is public")


def _check_namespaces(trace: Trace) -> None:
    for item in created(trace.resources, "namespaces"):
        if not properties(item).get("disableLocalAuth"):
            raise trace.fail("listener", f"{item['name']} accepts keys")
        version = properties(item).get("minimumTlsVersion", "1.2")
        if version != "1.2":
            raise trace.fail("listener", f"{item['name']}: TLS is {version}, not 1.2")


def _check_endpoints(trace: Trace) -> None:
    for endpoint in created(trace.resources, "privateEndpoints"):
        for connection in properties(endpoint).get("privateLinkServiceConnections") or ():
            target = trace.resources.get(connection["properties"]["privateLinkServiceId"])
            if properties(target).get("publicNetworkAccess") not in (None, "Disabled"):
                text = f"{(target or {}).get('name')} is public besides {endpoint['name']}"
                raise trace.fail("listener", text)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if str(key).startswith("/subscriptions/"):
                yield str(key).lower()
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
    elif isinstance(value, str) and value.lower().startswith("/subscriptions/"):
        yield value.lower()


def _unused(trace: Trace) -> None:
    """Find parts that cost money or were meant for something, and that nothing refers to."""
    used: set[str] = set()
    for item in trace.resources.by_id.values():
        mine = str(item["id"]).lower()
        used |= {one for one in _references({k: v for k, v in item.items() if k != "id"})
                 if one != mine and not one.startswith(mine + "/")}  # fmt: skip
    parked = any(not properties(item).get("ipConfigurations")
                 for item in created(trace.resources, "azureFirewalls"))  # fmt: skip
    for kind in _USED_BY_OTHERS:
        for item in created(trace.resources, kind):
            if parked and kind == "publicIPAddresses":
                continue
            if str(item["id"]).lower() not in used:
                raise trace.fail("use", f"nothing uses {kind} {item['name']}")
    for item in created(trace.resources, "privateEndpoints"):
        if not list(trace.resources.children(item["id"], "privateDnsZoneGroups")):
            raise trace.fail("use", f"{item['name']} has no DNS zone group")
    trace.ok("use", "every address, group, gateway, table, identity and workspace")


def _tags(trace: Trace) -> None:
    names = set()
    for key, item in trace.resources.by_id.items():
        if key in trace.resources.foreign or "location" not in item:
            continue
        name = (item.get("tags") or {}).get("broadside")
        names.add(name)
        if not name:
            raise trace.fail(
                "tags", f"{item['name']} has no tag broadside; `down` does not find it"
            )
    if len(names) > 1:
        raise trace.fail("tags", f"values of the tag broadside differ: {sorted(map(str, names))}")
    trace.ok("tags", f"broadside={', '.join(map(str, names))}")


def _budget(trace: Trace) -> None:
    budgets = created(trace.resources, "budgets")
    if not budgets:
        trace.ok("budget", "none")
        return
    for item in budgets:
        fields = properties(item)
        listed = list((fields.get("notifications") or {}).values())
        if not listed or float(fields["amount"]) <= 0:
            raise trace.fail("budget", f"{item['name']} has no recipient of notifications")
        for one in listed:
            if not one.get("enabled") or not (one.get("contactEmails") or one.get("contactRoles")):
                raise trace.fail("budget", f"{item['name']}: a notification has no address")
    trace.ok("budget", ", ".join(str(item["name"]) for item in budgets))


def _diagnostics(trace: Trace) -> None:
    resources = trace.resources
    listed = created(resources, "diagnosticSettings")
    if not listed:
        trace.ok("charts", "none")
        return
    targets = [item["id"].lower().split("/providers/microsoft.insights/")[0] for item in listed]
    wanted = [
        item["id"] for kind in ("azureFirewalls", "namespaces") for item in created(resources, kind)
    ]
    wanted += [
        f"{item['id']}/tableServices/default" for item in created(resources, "storageAccounts")
    ]
    for one in wanted:
        if one.lower() not in targets:
            raise trace.fail("charts", f"no diagnostic setting for {short(one)}")
    for item in listed:
        if resources.get(properties(item).get("workspaceId")) is None:
            raise trace.fail(
                "charts",
                f"{item['name']}: no workspace {properties(item).get('workspaceId')} exists",
            )
        if not any(one.get("enabled") for one in properties(item).get("metrics") or ()):
            target = short(item["id"].split("/providers/microsoft.insights")[0])
            raise trace.fail("charts", f"{item['name']} of {target} sends no metrics")
    trace.ok("charts", f"{len(listed)} diagnostic settings")


def _stop(trace: Trace, fleet: list[Machine]) -> None:
    """Check that the coordinator and both scale sets stop, or none of them."""
    resources = trace.resources
    stopped = [properties(item).get("targetResourceId", "").lower()
               for item in created(resources, "schedules")
               if properties(item).get("status") == "Enabled"]  # fmt: skip
    for item in created(resources, "autoScaleSettings"):
        fields = properties(item)
        maxima = [str(profile["capacity"]["maximum"]) for profile in fields["profiles"]]
        if not fields.get("enabled") or "0" not in maxima or all(one == "0" for one in maxima):
            raise trace.fail(
                "stop",
                f"{item['name']}: maxima {', '.join(maxima)}: VMs always run, or never",
            )
        stopped.append(str(fields["targetResourceUri"]).lower())
    running = [short(machine.id) for machine in fleet if machine.id.lower() not in stopped]
    if stopped and (running or len(set(stopped)) != len(fleet)):
        raise trace.fail("stop", f"no schedule stops {', '.join(running) or 'one of the VMs'}")
    trace.ok("stop", f"{len(stopped)} schedules" if stopped else "none")


def _wake(trace: Trace, fleet: list[Machine]) -> None:
    """Follow the request of the workflow that starts the coordinator in the morning."""
    resources = trace.resources
    workflows, schedules = created(resources, "workflows"), created(resources, "schedules")
    wakers = [
        item
        for item in created(resources, "userAssignedIdentities")
        if item["name"].endswith("-wake")
    ]
    if not workflows and not wakers:
        trace.ok("given", "none")
        return
    if not workflows or not schedules:
        raise trace.fail(
            "given", "a morning start exists without a nightly stop, or without its workflow"
        )
    for item in workflows:
        machine = next(one for one in fleet if one.role == "coordinator")
        inputs = properties(item)["definition"]["actions"]["start"]["inputs"]
        if properties(item).get("state") != "Enabled":
            raise trace.fail("given", f"{item['name']} is {properties(item).get('state')}")
        if f"{machine.id}/start?".lower() not in inputs["uri"].lower():
            raise trace.fail("name", f"{item['name']} starts another VM: {inputs['uri']}")
        identity_id = inputs["authentication"]["identity"]
        attached = [
            one.lower() for one in (item.get("identity") or {}).get("userAssignedIdentities") or ()
        ]
        identity = resources.get(identity_id)
        if identity_id.lower() not in attached or identity is None:
            raise trace.fail("identity", f"{short(identity_id)} is not assigned to {item['name']}")
        trace.ok("identity", short(identity_id))
        _may_start(trace, machine, identity)


def _may_start(trace: Trace, machine: Machine, identity: Resource) -> None:
    resources = trace.resources
    assigned = list(assignments(resources, properties(identity)["principalId"]))
    target = machine.id.lower()
    names = [role_of(resources, item)[0] for item in assigned
             if target == properties(item)["scope"].lower()
             and permits(role_of(resources, item), START_VM)]  # fmt: skip
    listed = ", ".join(
        f"{role_of(resources, item)[0]} on {short(properties(item)['scope'])}" for item in assigned
    )
    if not names or len(assigned) != 1:
        raise trace.fail(
            "role",
            f"{identity['name']} needs only the permission to start {short(machine.id)}; it has "
            f"{listed}",
        )
    smallest = "Desktop Virtualization Power On Contributor"
    if names[0] != smallest:
        raise trace.fail("role", f"{names[0]} on {short(machine.id)}: {smallest} is enough")
    trace.ok("role", listed)


def _bastion(trace: Trace, fleet: list[Machine]) -> None:
    resources = trace.resources
    hosts = created(resources, "bastionHosts")
    if not hosts:
        trace.ok("given", "no Bastion: the operator uses another way")
        return
    machine = next(one for one in fleet if one.role == "coordinator")
    for item in hosts:
        fields = properties(item)
        if not fields.get("enableTunneling"):
            raise trace.fail("listener", f"{item['name']} has no tunnel")
        configuration = fields["ipConfigurations"][0]["properties"]
        if resources.get(reference(configuration, "publicIPAddress")) is None:
            raise trace.fail("listener", f"{item['name']} has no public address")
        subnet_id = reference(configuration, "subnet")
        subnet = resources.get(subnet_id)
        if subnet is None:
            raise trace.fail("route", f"subnet {short(subnet_id)} is not visible", subnet_id)
        flow = RoutedFlow(
            protocol="tcp", source=prefixes(subnet)[0], target=machine.places[0], ports=(22, 22)
        )
        if reference(properties(subnet), "networkSecurityGroup"):
            pass_groups(trace, subnet_id, "", "Outbound", flow)
        cross_peering(trace, parent_id(subnet_id), parent_id(machine.subnet_id), forwarded=False)
        pass_groups(trace, machine.subnet_id, machine.group_id, "Inbound", flow)
    trace.ok("listener", f"{short(machine.id)} port 22")


def _deployer(trace: Trace) -> None:
    """Check the roles of the deploying principal, for the package and the boot statuses."""
    resources = trace.resources
    known = {
        properties(item)["principalId"] for item in resources.of_kind("userAssignedIdentities")
    }
    others = [item for item in resources.of_kind("roleAssignments")
              if properties(item)["principalId"] not in known]  # fmt: skip
    needs = [(item["id"], WRITE_BLOB) for item in created(resources, "containers")]
    accounts = created(resources, "storageAccounts")
    if any(properties(item).get("publicNetworkAccess") != "Disabled" for item in accounts):
        needs += [
            (item["id"], READ_ROWS)
            for item in created(resources, "tables")
            if item["name"] == "results"
        ]
    used = []
    for target_id, action in needs:
        fitting = [item for item in others if properties(item)["scope"].lower() == target_id.lower()
                   and permits(role_of(resources, item), action)]  # fmt: skip
        if not fitting:
            raise trace.fail("role", f"the deploying principal has no role for {short(target_id)}")
        used += [item["id"] for item in fitting]
    for item in others:
        if not resources.is_foreign(item["id"]) and item["id"] not in used:
            scope = short(properties(item)["scope"])
            raise trace.fail(
                "role", f"another principal has {role_of(resources, item)[0]} on {scope}"
            )
    trace.ok("role", f"{len(needs)} roles of the deploying principal")
