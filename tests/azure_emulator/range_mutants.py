"""Random semantic changes of an applied range, and whether a rule or the walk detects them.

``python -m tests.azure_emulator --mutants 60 --seed N`` changes one value of a stored state at a
time: it removes a reference, a rule, an association or a resource, swaps two ids of a kind, or
changes a role, scope, port, prefix, zone, tier, flag or a value that a VM is given. Then all
resources are created again, in their order, with the rules of :mod:`azure_refusals`, and the result
is walked. A change is *refused*, *found* by the walk, or it *survived*.

A change of the applied state is equivalent to one of the Terraform files where the provider passes
the value on. Two kinds are not:

- ``depends_on`` has no value in the state. The change is modelled by the worst order that Terraform
  is then free to choose: the resource appears after the VM that needs it.
- Terraform, its provider and the published types reject some values before a request is sent. This
  is not modelled, so more changes are refused in reality.
"""

# ruff: noqa: E501 - tables of changes and reasons

import base64
import copy
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from broadside.coordinator.azure_range.resources import Resources
from broadside.coordinator.azure_range.rights import BUILT_IN
from broadside.coordinator.azure_range.trace import HopState
from broadside.coordinator.azure_range.walk import walk
from tests.azure_emulator.applied import read_fixture, resources_of
from tests.azure_emulator.azure_refusals import Refused, refuse

STATES: Final = ("notebook", "private", "other-appliance")
SCORE_MIN_RATIO: Final = 0.85
# A survivor without a reason.
GAP: Final = "a gap"
LINE_MAX: Final = 240
_read: Final = cache(read_fixture)
Path = tuple[str | int, ...]
Store = dict[str, dict[str, Any]]
# Computed by Azure, or of no effect.
_SKIPPED: Final = frozenset(
    {"id", "name", "type", "tags", "provisioningState", "_at", "template", "outputResources",
     "customDnsConfigs", "notifications", "peeringState", "currentSpend", "osProfile", "assignableScopes",
     "imageReference", "osDisk", "adminPassword", "bootDiagnostics", "diagnosticsProfile", "location",
     "primaryEndpoints", "principalId", "clientId", "scope", "roleDefinitionId", "managedDisk",
     "allowedVmSizes", "resiliencyPolicy", "resourceGuid", "outputs", "managedBy"}
)  # fmt: skip
# Kinds without an effect on what a VM needs.
_INERT: Final = ("disks", "workspaces", "components", "currentbillingfeatures", "deployments",
                 "authorizationrules", "locks", "resourcegroups", "providers",
                 "blobservices", "plans", "agreements", "offertypes")  # fmt: skip
_FLAGS: Final = frozenset(
    {"allowForwardedTraffic", "allowVirtualNetworkAccess", "useRemoteGateways", "allowGatewayTransit",
     "enableIPForwarding", "enableTunneling", "defaultOutboundAccess", "disableLocalAuth",
     "allowSharedKeyAccess", "allowBlobPublicAccess", "requiresDuplicateDetection", "requiresSession",
     "enableAcceleratedNetworking", "enabled", "zoneBalance", "secureBootEnabled", "vTpmEnabled"}
)  # fmt: skip
_CHOICES: Final[Mapping[str, tuple[Any, ...]]] = {
    "access": ("Allow", "Deny"), "direction": ("Inbound", "Outbound"),
    "protocol": ("Tcp", "Udp", "Icmp"), "publicNetworkAccess": ("Enabled", "Disabled"),
    "defaultAction": ("Allow", "Deny"), "nextHopType": ("VirtualAppliance", "Internet", "None"),
    "tier": ("Basic", "Standard", "Premium"), "minimumTlsVersion": ("1.0", "TLS1_0"),
    "state": ("Enabled", "Disabled"), "status": ("Enabled", "Disabled"),
    "service": ("Microsoft.Storage", "Microsoft.Sql"), "publicAccess": ("None", "Blob"),
    "storageAccountType": ("StandardSSD_LRS", "Premium_LRS", "UltraSSD_LRS"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of a resource.

    Attributes:
        operator: Kind of the change.
        key: Id of the resource in lower case.
        text: The change as text.
        apply: Returns the changed resource, or None to remove it.
    """

    operator: str
    key: str
    text: str
    apply: Callable[[dict[str, Any]], dict[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a mutant: ``refused``, ``found`` or ``survived``, with its reason."""

    state: str
    mutant: Mutant
    result: str
    reason: str


# Positions ----------------------------------------------------------------------------------------


def _positions(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the values of a resource with a meaning, by position."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _SKIPPED:
                yield from _positions(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _positions(inner, (*path, index))


def _is_computed(resource: dict[str, Any], path: Path) -> bool:
    """Return whether Azure sets a value, so that no configuration can."""
    if path[-1] == "privateIPAddress":
        return bool(_at(resource, path[:-1]).get("privateIPAllocationMethod") != "Static")
    fields = resource.get("properties") or {}
    return (
        (path[-1] == "addressPrefix" and "addressPrefixes" in fields)
        or (path == ("sku", "tier") and resource["type"].endswith("/storageAccounts"))
        or (path == ("properties", "status") and "ServiceBus" in resource["type"])
    )


def _target(value: Any) -> str | None:
    """Return the id of a reference, or None."""
    if isinstance(value, dict) and isinstance(value.get("id"), str):
        value = value["id"] if len(value) <= 2 else None
    if isinstance(value, str) and value.lower().startswith("/subscriptions/") and "\n" not in value:
        return value
    return None


def _kind(resource_id: str) -> str:
    return resource_id.rstrip("/").lower().rsplit("/", 2)[-2]


def _at(resource: Any, path: Path) -> Any:
    for part in path:
        resource = resource[part]
    return resource


def _set(path: Path, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(resource: dict[str, Any]) -> dict[str, Any]:
        _at(resource, path[:-1])[path[-1]] = value
        return resource

    return change


def _remove(path: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(resource: dict[str, Any]) -> dict[str, Any]:
        del _at(resource, path[:-1])[path[-1]]
        return resource

    return change


def _named(resource: Mapping[str, Any], path: Path) -> str:
    kind = str(resource["type"]).rsplit("/", 1)[1]
    owner = str(resource["id"]).split("/providers/")[-1].split("/")
    parent = f" of {owner[-3]}" if len(owner) > 3 else ""
    return f"{kind} {resource['name']}{parent}: {'.'.join(map(str, path))}"


# Operators ----------------------------------------------------------------------------------------


def mutants(store: Store, foreign: set[str]) -> Iterator[Mutant]:
    """Yield all changes of a state."""
    for key, resource in store.items():
        kind = _kind(key) if key.count("/") > 4 else "resourcegroups"
        if (
            key in foreign
            or kind in _INERT
            or str(resource["type"]).lower().rsplit("/", 1)[1] in _INERT
        ):
            continue
        yield Mutant(
            operator="remove resource",
            key=key,
            text=_named(resource, ("removed",)),
            apply=lambda _: None,
        )
        if resource.get("tags", {}).get("broadside"):
            yield Mutant(
                operator="tag",
                key=key,
                text=_named(resource, ("tags removed",)),
                apply=_set(("tags",), {}),
            )
        for path, value in _positions(resource):
            if _is_computed(resource, path):
                continue
            yield from _of_value(store, resource, path, value)
        yield from _of_roles(store, resource)
        yield from _of_identities(store, resource)
        yield from _of_custom_data(store, resource)
    yield from _of_order(store, foreign)


def _of_value(store: Store, resource: dict[str, Any], path: Path, value: Any) -> Iterator[Mutant]:
    key, label = resource["id"].lower(), _named(resource, path)
    name = path[-1]
    if target := _target(value):
        is_reference = isinstance(value, str) or "id" in value
        if is_reference and not (isinstance(value, str) and name == "id"):
            yield Mutant(
                operator="remove reference", key=key, text=f"{label} removed", apply=_remove(path)
            )
            for other in _others(store, target):
                changed = other if isinstance(value, str) else {**value, "id": other}
                yield Mutant(operator="swap id", key=key, apply=_set(path, changed),
                             text=f"{label}: {_short(target)} becomes {_short(other)}")  # fmt: skip
    elif isinstance(value, bool):
        if name in _FLAGS:
            yield Mutant(
                operator="flag",
                key=key,
                text=f"{label} becomes {not value}",
                apply=_set(path, not value),
            )
    elif name in _CHOICES and isinstance(value, str):
        for other in _CHOICES[str(name)]:
            if other != value:
                yield Mutant(operator="tier" if name == "tier" else "choice", key=key,
                             text=f"{label}: {value} becomes {other}", apply=_set(path, other))  # fmt: skip
    elif isinstance(value, str):
        yield from _of_text(resource, path, value)
    elif isinstance(value, list) and name in ("rules", "groupIds", "zones", "virtualNetworkRules", "serviceEndpoints",
                                              "destinationPorts", "destinationPortRanges", "actions", "profiles",
                                              "ipConfigurations", "loadBalancingRules", "probes"):  # fmt: skip
        for index in range(len(value)):
            yield Mutant(
                operator="remove item",
                key=key,
                text=f"{label}.{index} removed",
                apply=_remove((*path, index)),
            )
    elif isinstance(value, int) and name in ("frontendPort", "backendPort", "capacity"):
        yield Mutant(
            operator="number",
            key=key,
            text=f"{label}: {value} becomes {value + 1}",
            apply=_set(path, value + 1),
        )


def _of_text(resource: dict[str, Any], path: Path, value: str) -> Iterator[Mutant]:
    key, label = resource["id"].lower(), _named(resource, path)
    changed: list[tuple[str, str]] = []
    if re.fullmatch(r"\d+\.\d+\.\d+\.\d+/\d+", value):
        first, _, length = value.partition("/")
        parts = first.split(".")
        moved = ".".join([parts[0], str(int(parts[1]) + 5), *parts[2:]])
        changed += [
            ("prefix", f"{moved}/{length}"),
            ("prefix", f"{first}/{min(int(length) + 3, 32)}"),
        ]
        if "Prefix" in str(path[-1]) or "Addresses" in str(path[-2:]):
            changed.append(("prefix", "*"))
    elif re.fullmatch(r"\d+\.\d+\.\d+\.\d+", value) and path[-1] in (
        "nextHopIpAddress",
        "privateIPAddress",
    ):
        changed.append(("prefix", value[:-1] + "9"))
    elif re.fullmatch(r"\d+(-\d+)?", value) and "ort" in f"{path[-1]}{path[-2:]}":
        low, _, high = value.partition("-")
        changed += [("port", str(int(low) + 1) + (f"-{high}" if high else "")), ("port", "*")]
    elif re.fullmatch(r"[A-Z]\w+\.[a-z0-9]+", value):
        service, _, region = value.partition(".")
        changed += [
            ("service tag", f"{service}.westeurope"),
            ("service tag", f"{'Storage' if service != 'Storage' else 'ServiceBus'}.{region}"),
        ]
    elif value in ("VirtualNetwork", "AzureResourceManager", "AzureActiveDirectory"):
        changed.append(("service tag", "AzureMonitor"))
    elif path[-1] == "vmSize" or (path == ("sku", "name") and value.startswith("Standard_D")):
        changed.append(("size", "Standard_A2_v2"))
    elif path == ("sku", "name"):
        changed += [
            ("tier", other)
            for other in ("Basic", "Standard", "Premium", "Standard_LRS")
            if other != value
        ]
    elif path[-2:-1] and path[-2] == "zones":
        changed.append(("zone", "9"))
    elif path[-2:-1] and path[-2] == "groupIds":
        changed += [("group", other) for other in ("blob", "table", "queue") if other != value]
    elif path[-2:-1] and path[-2] == "ipProtocols":
        changed += [("choice", other) for other in ("TCP", "UDP", "ICMP") if other != value]
    elif path[-1] == "uri":
        changed.append(("address", value.replace("/start?", "/restart?")))
    for operator, other in changed:
        yield Mutant(
            operator=operator,
            key=key,
            text=f"{label}: {value[:60]} becomes {other[:60]}",
            apply=_set(path, other),
        )


def _short(resource_id: str) -> str:
    return "/".join(resource_id.rsplit("/", 3)[-3:])


def _others(store: Store, target: str) -> list[str]:
    """Return the other ids of the same kind, at most three."""
    kind = _kind(target)
    return [item["id"] for key, item in store.items()
            if _kind(key) == kind and key != target.lower()][:3]  # fmt: skip


def _of_roles(store: Store, resource: dict[str, Any]) -> Iterator[Mutant]:
    """Change the role, scope or principal of an assignment."""
    if not resource["type"].lower().endswith("/roleassignments"):
        return
    key, fields, label = resource["id"].lower(), resource["properties"], _named(resource, ())
    prefix, _, role_id = fields["roleDefinitionId"].rpartition("/")
    for other in ("Storage Blob Data Reader", "Storage Table Data Reader", "Storage Table Data Contributor",
                  "Azure Service Bus Data Receiver", "Azure Service Bus Data Sender", "Monitoring Reader",
                  "Contributor"):  # fmt: skip
        other_id = next(one for one, (name, _) in BUILT_IN.items() if name == other)
        if other_id != role_id:
            yield Mutant(operator="role", key=key, text=f"{label}role becomes {other}",
                         apply=_set(("properties", "roleDefinitionId"), f"{prefix}/{other_id}"))  # fmt: skip
    scope = fields["scope"]
    for other in (scope.rsplit("/", 2)[0], *_others(store, scope)):
        yield Mutant(operator="scope", key=key, text=f"{label}scope becomes {_short(other)}",
                     apply=_set(("properties", "scope"), other))  # fmt: skip
    principals = [item["properties"]["principalId"] for item in store.values()
                  if item["type"].lower().endswith("/userassignedidentities")]  # fmt: skip
    for other in principals:
        if other != fields["principalId"]:
            yield Mutant(operator="principal", key=key, text=f"{label}another identity",
                         apply=_set(("properties", "principalId"), other))  # fmt: skip


def _of_identities(store: Store, resource: dict[str, Any]) -> Iterator[Mutant]:
    """Remove or replace the identity of a VM or workflow."""
    attached = (resource.get("identity") or {}).get("userAssignedIdentities") or {}
    for identity_id in attached:
        label = _named(resource, ("identity",))
        yield Mutant(operator="remove reference", key=resource["id"].lower(), text=f"{label} removed",
                     apply=_remove(("identity",)))  # fmt: skip
        for other in _others(store, identity_id):
            yield Mutant(operator="swap id", key=resource["id"].lower(), text=f"{label} becomes {_short(other)}",
                         apply=_set(("identity", "userAssignedIdentities"), {other: {}}))  # fmt: skip


def _of_custom_data(store: Store, resource: dict[str, Any]) -> Iterator[Mutant]:
    """Change a value that a VM is given."""
    properties = resource.get("properties") or {}
    profile = properties.get("virtualMachineProfile") or properties
    data = (profile.get("osProfile") or {}).get("customData")
    if not data or "broadside" not in (text := base64.b64decode(data).decode()):
        return
    path: Path = ("properties", "osProfile", "customData")
    if "virtualMachineProfile" in properties:
        path = ("properties", "virtualMachineProfile", "osProfile", "customData")
    identities = [
        item for item in store.values() if item["type"].lower().endswith("/userassignedidentities")
    ]
    local = re.search(r"BROADSIDE_MANAGED_IDENTITY_CLIENT_ID=(\S+)", text)
    changes = [
        (f"client id of {item['name']}", local[1], item["properties"]["clientId"])
        for item in identities
        if local and item["properties"]["clientId"] != local[1]
    ]
    if local:
        changes.append(("resource id in place of the client id", local[1], identities[0]["id"]))
    for table, other in (("CONTROL=control", "CONTROL=results"), ("RESULTS=results", "RESULTS=control"),
                         ("PRIVATE=private", "PRIVATE=results"), ("QUEUE=jobs", "QUEUE=job"),
                         (".table.core", ".blob.core"), ("/agent/broadside", "/packages/broadside"),
                         (".servicebus.windows", ".servicebus.chinacloudapi"), ("refclock PHC", "server pool.ntp.org #"),
                         ('"service":"agent"', '"service":"coordinator"'), ("https://management.azure.com", "https://management.azure.us"),
                         ("/azureFirewalls/", "/firewallPolicies/")):  # fmt: skip
        changes.append((f"{table} becomes {other}", table, other))
    for setting in ("PORTS", "ECHO_PORT", "ALLOWED_NETWORKS", "SERVICES"):
        if match := re.search(rf"BROADSIDE_AGENT_{setting}=(\S+)", text):
            other = {"PORTS": "5301", "ECHO_PORT": "5300", "ALLOWED_NETWORKS": "10.99.0.0/21",
                     "SERVICES": "http=9090"}[setting]  # fmt: skip
            changes.append(
                (f"{setting} becomes {other}", match[0], f"BROADSIDE_AGENT_{setting}={other}")
            )
    for label, one, other in changes:
        if one in text:
            changed = base64.b64encode(text.replace(one, other).encode()).decode()
            yield Mutant(operator="given value", key=resource["id"].lower(), apply=_set(path, changed),
                         text=_named(resource, (label,)))  # fmt: skip


def _of_order(store: Store, foreign: set[str]) -> Iterator[Mutant]:
    """Drop the ``depends_on`` of the VMs: a role or a way out appears after them."""
    late = 1e9
    principals = {item["properties"]["principalId"] for item in store.values()
                  if item["type"].lower().endswith("/userassignedidentities")}  # fmt: skip
    for key, item in store.items():
        kind = item["type"].lower().rsplit("/", 1)[1]
        is_vm = kind == "roleassignments" and item["properties"]["principalId"] in principals
        if key not in foreign and is_vm and "/virtualmachines/" not in key:
            yield Mutant(operator="depends_on", key=key, text=_named(item, ("created after the VM",)),
                         apply=_set(("_at",), late))  # fmt: skip


# Evaluation ---------------------------------------------------------------------------------------


def recreate(store: Store) -> str | None:
    """Create all resources in their order, and return the first refusal, or None."""
    made: Store = {}
    order = sorted(store.items(), key=lambda item: item[1].get("_at", 0.0))
    made.update(order)
    for key, item in order:
        try:
            refuse(made, item["id"], item["type"], item)
        except Refused as refused:
            return f"{refused.code}: {refused.message}"
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return f"InvalidRequestContent: {key.rsplit('/', 1)[1]}: {error!r}"
    return None


def broken_needs(resources: Resources) -> list[str]:
    return [str(row) for row in walk(resources) if row.state is HopState.BROKEN]


def evaluate(state: str, mutant: Mutant) -> Outcome:
    """Return whether a mutant of a stored state is refused, found or survives."""
    document = _read(state)
    store: Store = dict(document["store"])
    changed = mutant.apply(copy.deepcopy(store[mutant.key]))
    if changed is None:
        del store[mutant.key]
    else:
        store[mutant.key] = changed
    if refusal := recreate(store):
        return Outcome(state=state, mutant=mutant, result="refused", reason=refusal)
    faults = broken_needs(resources_of({**document, "store": store}))
    if faults:
        return Outcome(state=state, mutant=mutant, result="found", reason=faults[0])
    return Outcome(state=state, mutant=mutant, result="survived", reason=explain(mutant))


# Reasons of survivors: a part of the change, and why no need breaks.
REASONS: Final[Sequence[tuple[str, str]]] = (
    (r"broadside-hub: properties.allowForwardedTraffic becomes False", "the hub receives only what the spokes send themselves, so Azure does not need the flag"),
    (r"allowGatewayTransit", "there is no gateway whose transit could be used"),
    (r"defaultOutboundAccess", "the security group denies the internet, and a NAT gateway or the service has its own address"),
    (r"enableIPForwarding becomes True", "the kernel of the VM does not forward"),
    (r"zones\.\d removed", "fewer zones than the region has are valid, and traffic is the same"),
    (r"coordinator: .*enableAcceleratedNetworking becomes True", "the size has it, and the coordinator carries no load"),
    (r"appliance-\d: properties.enableAcceleratedNetworking", "the appliance is slower and still forwards"),
    (r"sourceAddressPrefix: \S+ becomes \*", "only the VMs of the subnet can send through an outbound rule"),
    (r"Standard becomes Premium", "a larger tier has all that the smaller one has, at another price"),
    (r"firewallPolicies .*Standard becomes Basic", "network rules are the same in each tier"),
    (r"ddressPrefixes\.0: \S+ becomes \S+/\d+", "the range is smaller, and still holds its subnets and VMs"),
    (r"notificationSettings", "a notification only sends mail"),
    (r"budgets .*removed", "a budget only sends mail"),
    (r"sku.capacity", "another number of messaging units has the same functions, at another price"),
    (r"ToResourceManager", "without an Azure Firewall, the coordinator reads no metrics"),
    (r"virtualNetworkRules", "with private endpoints, network rules of the public side are not used"),
    (r"vTpmEnabled|secureBootEnabled", "the VM boots without it, and no need uses it"),
    (r"subnets (endpoints|appliance|Azure\w+) .*removed", "this range has nothing in the subnet"),
    (r"destinationAddressPrefix: \S+ becomes \*", "only the VMs of the subnet can receive through an inbound rule"),
    (r"routes .*becomes \S+/\d+", "the route still contains the whole fleet"),
    (r"virtualNetworkLinks servicebus-servers", "servers do not use the queue"),
    (r"serviceEndpoints", "with private endpoints, no VM uses the service endpoint"),
)  # fmt: skip


def explain(mutant: Mutant) -> str:
    """Return why a surviving change breaks no need, or ``a gap``."""
    text = f"{mutant.operator} {mutant.text}"
    return next((reason for pattern, reason in REASONS if re.search(pattern, text)), GAP)


def sample(count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return random mutants: each operator is equally likely, and then each of its changes."""
    choose = random.Random(seed)
    by_operator: dict[tuple[str, str], list[Mutant]] = {}
    for state in STATES:
        document = _read(state)
        for mutant in mutants(document["store"], set(document["before"])):
            by_operator.setdefault((state, mutant.operator), []).append(mutant)
    chosen: dict[tuple[str, str], tuple[str, Mutant]] = {}
    while len(chosen) < count:
        state, operator = choose.choice(sorted(by_operator))
        mutant = choose.choice(by_operator[state, operator])
        chosen[state, mutant.text] = (state, mutant)
    return list(chosen.values())


def run(count: int, seed: int, show: Callable[[str], None]) -> float:
    """Evaluate mutants, print each outcome and the score, and return the detected ratio."""
    outcomes = []
    for state, mutant in sample(count, seed):
        outcomes.append(outcome := evaluate(state, mutant))
        show(f"{outcome.result:9} {state}: {mutant.text}: {outcome.reason}"[:LINE_MAX])
    caught = sum(outcome.result != "survived" for outcome in outcomes)
    detected = sum(outcome.result == "found" for outcome in outcomes)
    gaps = sum(outcome.reason == GAP for outcome in outcomes)
    show(
        f"mutants: seed {seed}, {caught} of {count} detected ({caught / count:.0%}): "
        f"{caught - detected} refused, {detected} found by the walk, {count - caught} survived, "
        f"{gaps} of them without a reason"
    )
    return caught / count
