"""Catalogue of requests that Azure rejects, each with its source.

The sources are pages of learn.microsoft.com (``learn:``, read in November 2026), Microsoft's
published types (``types:``, Azure/bicep-types-az at 1f896de2), and recorded errors in public issues
(``github:``). A code in brackets is the emulator's own, because no source states it.
"""

# ruff: noqa: E501 - a rule is one row of a table

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final

from tests.azure_emulator.resource_ids import parent_of

Resource = dict[str, Any]
Store = Mapping[str, Resource]
Check = Callable[[Store, str, Resource], str | None]
OWN: Final = "(RehearsalRule)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of Azure for kinds of resources.

    Attributes:
        name: What the rule is about.
        code: Error code of Azure.
        kinds: Kinds of resources, in lower case and without namespace.
        source: Page, type or issue that states the rule.
        check: Returns the error message, or None.
    """

    name: str
    code: str
    kinds: tuple[str, ...]
    source: str
    check: Check


def violations(store: Store, path: str, kind: str, body: Resource) -> Iterator[tuple[str, str]]:
    """Yield code and message of each violated rule."""
    short = kind.lower().rpartition("/")[2]
    for rule in CATALOGUE:
        if (short in rule.kinds or "*" in rule.kinds) and (
            message := rule.check(store, path, body)
        ):
            yield rule.code, f"{path}: {message}"


def _fields(body: Resource | None) -> Resource:
    return (body or {}).get("properties") or {}


def _get(store: Store, fields: Mapping[str, Any], name: str) -> Resource:
    return store.get(str((fields.get(name) or {}).get("id", "")).lower()) or {}


# Sizes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a VM by its name: family, vCPUs, features and version."""

    family: str
    vcpus: int
    features: str
    version: int

    @property
    def has_premium_disks(self) -> bool:
        return "s" in self.features

    @property
    def has_accelerated_networking(self) -> bool:
        """All sizes of version 4 and newer have it. Version 3 needs four vCPUs, version 2 two."""
        least = {0: 1000, 1: 1000, 2: 2, 3: 4}.get(self.version, 1)
        if self.family == "B":
            return self.version >= 2
        return self.family != "A" and self.vcpus >= least

    @property
    def has_trusted_launch(self) -> bool:
        """Sizes without generation 2 do not have it: A, Dv2 and Dv3 without premium disks."""
        return self.family != "A" and (self.version >= 4 or self.family == "B" or
                                       (self.has_premium_disks and self.version >= 2))  # fmt: skip


def size_of(name: str) -> Size | None:
    """Return a size by its name (``Standard_D4s_v5``), or None if the name is none."""
    match = re.fullmatch(r"Standard_([A-Z]+)(\d+)(?:-\d+)?([a-z]*)(?:_v(\d+))?", name)
    return Size(match[1], int(match[2]), match[3], int(match[4] or 1)) if match else None


def _machine_size(body: Resource) -> str:
    return str(
        (body.get("sku") or {}).get("name")
        or (_fields(body).get("hardwareProfile") or {}).get("vmSize", "")
    )


def _profile(body: Resource) -> Resource:
    return _fields(body).get("virtualMachineProfile") or _fields(body)


def _known_size(_store: Store, _path: str, body: Resource) -> str | None:
    name = _machine_size(body)
    return None if size_of(name) else f"the VM size {name!r} is not available"


def _disk(_store: Store, _path: str, body: Resource) -> str | None:
    size = size_of(_machine_size(body))
    disk = (_profile(body).get("storageProfile") or {}).get("osDisk") or {}
    kind = str((disk.get("managedDisk") or {}).get("storageAccountType", ""))
    if kind.startswith(("UltraSSD", "PremiumV2")):
        return f"{kind} is not supported for an OS disk"
    if kind.startswith("Premium") and size and not size.has_premium_disks:
        return f"the VM size {_machine_size(body)} does not support the storage account type {kind}"
    return None


def _accelerated(store: Store, _path: str, body: Resource) -> str | None:
    size, profile = size_of(_machine_size(body)), _profile(body).get("networkProfile") or {}
    nics = [item["properties"] for item in profile.get("networkInterfaceConfigurations") or ()]
    nics += [
        _fields(store.get(item["id"].lower())) for item in profile.get("networkInterfaces") or ()
    ]
    if (
        size
        and not size.has_accelerated_networking
        and any(nic.get("enableAcceleratedNetworking") for nic in nics)
    ):
        return f"{_machine_size(body)} is not permitted to enable accelerated networking"
    return None


def _trusted(_store: Store, _path: str, body: Resource) -> str | None:
    security = (_profile(body).get("securityProfile") or {}).get("uefiSettings") or {}
    size = size_of(_machine_size(body))
    if any(security.values()) and size and not size.has_trusted_launch:
        return f"{_machine_size(body)} cannot boot hypervisor generation 2, which secure boot needs"
    return None


def _basic_tier(_store: Store, _path: str, body: Resource) -> str | None:
    tier = (body.get("sku") or {}).get("tier")
    return f"tier {tier} of {_machine_size(body)}" if tier not in (None, "Standard") else None


# Zones --------------------------------------------------------------------------------------------

# Zones in which no new Azure Firewall can be made (physical zones; the emulator's are the same).
FIREWALL_ZONES_CLOSED: Final[Mapping[str, frozenset[str]]] = {
    "northeurope": frozenset({"2"}), "southeastasia": frozenset({"3"}),
    "southcentralus": frozenset({"3"}),
}  # fmt: skip


def _all_zones(value: Any) -> Iterator[list[str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "zones" and isinstance(inner, list):
                yield inner
            else:
                yield from _all_zones(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _all_zones(inner)


def _zones(_store: Store, _path: str, body: Resource) -> str | None:
    for zones in _all_zones({name: value for name, value in body.items() if name != "type"}):
        if set(zones) - {"1", "2", "3"} or len(set(zones)) != len(zones):
            return f"zones {zones} must be of 1, 2 and 3"
    return None


def _address_zones(store: Store, _path: str, body: Resource) -> str | None:
    for item in _fields(body).get("ipConfigurations") or ():
        address = _get(store, item["properties"], "publicIPAddress")
        if set(body.get("zones") or ()) != set(address.get("zones") or body.get("zones") or ()):
            return f"zones {body.get('zones')}, and its public address {address.get('zones')}"
    return None


def _firewall_zones(_store: Store, _path: str, body: Resource) -> str | None:
    region = str(body.get("location", "")).lower().replace(" ", "")
    closed = FIREWALL_ZONES_CLOSED.get(region, frozenset()) & set(body.get("zones") or ())
    return f"no new firewall in zone {', '.join(sorted(closed))} of {region}" if closed else None


# Networks -----------------------------------------------------------------------------------------


def _gateways(store: Store, _path: str, body: Resource) -> str | None:
    fields = _fields(body)
    if not fields.get("useRemoteGateways"):
        return None
    remote = str(fields["remoteVirtualNetwork"]["id"]).lower()
    has_gateway = any(
        item["type"].lower().endswith("/virtualnetworkgateways") and remote in str(item).lower()
        for item in store.values()
    )
    return None if has_gateway else f"UseRemoteGateway: {remote.rsplit('/', 1)[1]} has no gateways"


def _gateway_flags(_store: Store, _path: str, body: Resource) -> str | None:
    fields = _fields(body)
    if fields.get("useRemoteGateways") and fields.get("allowGatewayTransit"):
        return "useRemoteGateways and allowGatewayTransit exclude each other"
    return None


def _one_hub(store: Store, path: str, body: Resource) -> str | None:
    """Reject a second hub of a network, and a network that overlaps the hub."""
    remote = _get(store, _fields(body), "remoteVirtualNetwork")
    for key, item in store.items():
        other = str((_fields(item).get("remoteVirtualNetwork") or {}).get("id", "")).lower()
        is_connection = "/hubvirtualnetworkconnections/" in key and key != path.lower()
        if is_connection and other == str(remote.get("id", "")).lower():
            return f"{remote.get('name')} is already connected by {item['name']}"
    hub = _fields(store.get(path.lower().rsplit("/", 2)[0]))
    for space in (_fields(remote).get("addressSpace") or {}).get("addressPrefixes") or ():
        if ip_network(space).overlaps(ip_network(hub["addressPrefix"])):
            return f"{space} overlaps the hub's {hub['addressPrefix']}"
    return None


def _subnets_of(body: Resource) -> Iterator[str]:
    """Yield the ids of the subnets of a resource's interfaces."""
    fields = _fields(body)
    profile = (fields.get("virtualMachineProfile") or {}).get("networkProfile") or {}
    nics = [item["properties"] for item in profile.get("networkInterfaceConfigurations") or ()]
    for part in (fields, *nics):
        for item in part.get("ipConfigurations") or ():
            yield str(((item.get("properties") or {}).get("subnet") or {}).get("id", ""))
    if fields.get("privateLinkServiceConnections"):
        yield str((fields.get("subnet") or {}).get("id", ""))


def _delegation(store: Store, _path: str, body: Resource) -> str | None:
    for subnet_id in _subnets_of(body):
        for item in _fields(store.get(subnet_id.lower())).get("delegations") or ():
            service = (item.get("properties") or {}).get("serviceName")
            return f"{subnet_id.rsplit('/', 1)[1]} is delegated to {service}"
    return None


def _reserved_subnet(_store: Store, _path: str, body: Resource) -> str | None:
    for subnet_id in _subnets_of(body):
        name = subnet_id.rsplit("/", 1)[-1].lower()
        if name in ("azurefirewallsubnet", "azurefirewallmanagementsubnet", "azurebastionsubnet"):
            return f"{name} is for its service only"
    return None


def _interface_subnet(_store: Store, _path: str, body: Resource) -> str | None:
    if any(not subnet_id for subnet_id in _subnets_of(body)) or not list(_subnets_of(body)):
        return "an IP configuration has no subnet"
    return None


def _subnet_or_parked(store: Store, path: str, body: Resource) -> str | None:
    return _interface_subnet(store, path, body) if _fields(body).get("ipConfigurations") else None


def _frontend(_store: Store, _path: str, body: Resource) -> str | None:
    for item in _fields(body).get("frontendIPConfigurations") or ():
        if not (item["properties"].get("subnet") or item["properties"].get("publicIPAddress")):
            return f"frontend {item.get('name')} has neither a subnet nor a public address"
    return None


def _frontend_address(store: Store, _path: str, body: Resource) -> str | None:
    for item in _fields(body).get("frontendIPConfigurations") or ():
        address = item["properties"].get("privateIPAddress")
        subnet = _fields(_get(store, item["properties"], "subnet"))
        prefixes = subnet.get("addressPrefixes") or [subnet.get("addressPrefix")]
        if (
            address
            and prefixes[0]
            and not any(ip_address(address) in ip_network(one) for one in prefixes)
        ):
            return f"{address} is not in the subnet {prefixes}"
    return None


def _ha_ports(_store: Store, _path: str, body: Resource) -> str | None:
    basic = (body.get("sku") or {}).get("name") != "Standard"
    for item in _fields(body).get("loadBalancingRules") or ():
        fields = item["properties"]
        all_ports = fields.get("protocol") == "All"
        if all_ports and (basic or fields.get("frontendPort") or fields.get("backendPort")):
            return "a rule for all protocols needs the Standard SKU and port 0 on both sides"
        if not all_ports and not fields.get("frontendPort"):
            return "port 0 needs the protocol All"
    return None


def _standard_address(store: Store, _path: str, body: Resource) -> str | None:
    fields = _fields(body)
    addresses = [_get(store, {"x": item}, "x") for item in fields.get("publicIpAddresses") or ()]
    listed = [item.get("properties") or {} for item in fields.get("ipConfigurations") or ()]
    addresses += [_get(store, item, "publicIPAddress") for item in listed]
    for address in addresses:
        if address and (address.get("sku") or {}).get("name") != "Standard":
            return f"{address.get('name')} is no Standard address"
    return None


def _required(*names: str) -> Check:
    """Return a check that properties are set."""

    def check(_store: Store, _path: str, body: Resource) -> str | None:
        missing = [name for name in names if not _fields(body).get(name)]
        return f"{', '.join(missing)}: required" if missing else None

    return check


def _bastion_address(_store: Store, _path: str, body: Resource) -> str | None:
    for item in _fields(body).get("ipConfigurations") or ():
        if not (item["properties"].get("publicIPAddress") or {}).get("id"):
            return "an IP configuration has no public address"
    return None


def _nat_sku(_store: Store, _path: str, body: Resource) -> str | None:
    name = (body.get("sku") or {}).get("name")
    return None if name in ("Standard", "StandardV2") else f"SKU {name}"


def _sku(*allowed: str, field: str = "name") -> Check:
    def check(_store: Store, _path: str, body: Resource) -> str | None:
        value = (body.get("sku") or {}).get(field)
        return None if value in (None, *allowed) else f"sku.{field} {value!r} must be of {allowed}"

    return check


def _tunnel(_store: Store, _path: str, body: Resource) -> str | None:
    sku = (body.get("sku") or {}).get("name")
    if _fields(body).get("enableTunneling") and sku not in ("Standard", "Premium"):
        return f"enableTunneling needs the Standard SKU, not {sku}"
    return None


# Firewalls ----------------------------------------------------------------------------------------


def _tls(_store: Store, _path: str, body: Resource) -> str | None:
    tier = (_fields(body).get("sku") or {}).get("tier", "Standard")
    if _fields(body).get("transportSecurity") and tier != "Premium":
        return f"TLS inspection needs Premium, not {tier}"
    return None


def _firewall_tier(_store: Store, _path: str, body: Resource) -> str | None:
    fields = _fields(body)
    tier = (fields.get("sku") or {}).get("tier")
    if tier not in ("Basic", "Standard", "Premium"):
        return f"tier {tier}"
    if tier == "Basic" and not fields.get("managementIpConfiguration"):
        return "Basic needs a management IP configuration"
    return None


def _application_tls(store: Store, path: str, body: Resource) -> str | None:
    policy = store.get(path.lower().rsplit("/", 2)[0]) or {}
    tier = (_fields(policy).get("sku") or {}).get("tier", "Standard")
    for collection in _fields(body).get("ruleCollections") or ():
        for rule in collection.get("rules") or ():
            if rule.get("terminateTLS") and tier != "Premium":
                return f"rule {rule['name']} terminates TLS, which needs Premium"
            if rule.get("ruleType") == "NetworkRule" and not (
                rule.get("destinationAddresses") or rule.get("destinationFqdns") or rule.get("destinationIpGroups")
            ):  # fmt: skip
                return f"rule {rule['name']} has no destination"
            if rule.get("ruleType") == "NetworkRule" and not rule.get("destinationPorts"):
                return f"rule {rule['name']} has no ports"
    return None


# Storage and Service Bus --------------------------------------------------------------------------


def _endpoints_of_rules(store: Store, _path: str, body: Resource) -> str | None:
    rules = (_fields(body).get("networkAcls") or {}).get("virtualNetworkRules") or ()
    for item in rules:
        subnet = store.get(str(item["id"]).lower()) or {}
        services = [one.get("service") for one in _fields(subnet).get("serviceEndpoints") or ()]
        if subnet and "Microsoft.Storage" not in services:
            return f"SubnetsHaveNoServiceEndpointsConfigured: {item['id']}"
    return None


def _groups(store: Store, _path: str, body: Resource) -> str | None:
    kinds = {
        "storageaccounts": {"blob", "table", "queue", "file", "web", "dfs"},
        "namespaces": {"namespace"},
    }
    for item in _fields(body).get("privateLinkServiceConnections") or ():
        target = store.get(str(item["properties"].get("privateLinkServiceId", "")).lower()) or {}
        allowed = kinds.get(str(target.get("type", "")).lower().rsplit("/", 1)[-1], set())
        groups = item["properties"].get("groupIds") or []
        if target and (len(groups) != 1 or set(groups) - allowed):
            return f"groups {groups} of {target.get('type')}"
    return None


def _bus_tier(_store: Store, _path: str, body: Resource) -> str | None:
    sku = body.get("sku") or {}
    if sku.get("tier") not in (None, sku.get("name")):
        return f"tier {sku.get('tier')} of SKU {sku.get('name')}"
    capacity = int(sku.get("capacity") or 0)
    premium = sku.get("name") == "Premium"
    if premium and capacity not in (1, 2, 4, 8, 16):
        return f"capacity {capacity}: Premium has 1, 2, 4, 8 or 16 messaging units"
    return f"capacity {capacity} of SKU {sku.get('name')}" if capacity and not premium else None


def _queue(store: Store, path: str, body: Resource) -> str | None:
    fields = _fields(body)
    tier = ((store.get(path.lower().rsplit("/", 2)[0]) or {}).get("sku") or {}).get("name")
    if tier == "Basic" and (
        fields.get("requiresDuplicateDetection") or fields.get("requiresSession")
    ):
        return "Basic has neither duplicate detection nor sessions"
    match = re.fullmatch(r"PT(?:(\d+)M)?(?:(\d+)S)?", fields.get("lockDuration") or "PT1M")
    seconds = 60 * int((match and match[1]) or 0) + int((match and match[2]) or 0)
    return None if 0 < seconds <= 300 else f"lockDuration {fields.get('lockDuration')}: up to PT5M"


# Names, counts, ports and offers ------------------------------------------------------------------

# Length of names, by kind.
NAMES: Final[Mapping[str, tuple[int, int]]] = {
    "resourcegroups": (1, 90), "virtualnetworks": (2, 64), "subnets": (1, 80),
    "networksecuritygroups": (1, 80), "securityrules": (1, 80), "routetables": (1, 80),
    "routes": (1, 80), "publicipaddresses": (1, 80), "natgateways": (1, 80),
    "azurefirewalls": (1, 56), "firewallpolicies": (1, 80), "bastionhosts": (1, 80),
    "loadbalancers": (1, 80), "networkinterfaces": (1, 80), "privateendpoints": (2, 64),
    "privatednszones": (1, 63), "virtualnetworklinks": (1, 80), "virtualnetworkpeerings": (1, 80),
    "virtualmachines": (1, 64), "virtualmachinescalesets": (1, 64), "userassignedidentities": (3, 128),
    "proximityplacementgroups": (1, 80), "storageaccounts": (3, 24), "containers": (3, 63),
    "tables": (3, 63), "namespaces": (6, 50), "queues": (1, 260), "workspaces": (4, 63),
    "components": (1, 260), "workflows": (1, 43), "autoscalesettings": (1, 260),
    "diagnosticsettings": (1, 260), "deployments": (1, 64), "budgets": (1, 63),
}  # fmt: skip
# Most children of a parent, or resources of a subscription (without a parent), by kind.
MOST: Final[Mapping[str, int]] = {
    "virtualnetworkpeerings": 500, "subnets": 3000, "securityrules": 1000, "routes": 400,
    "rulecollectiongroups": 60, "publicipaddresses": 20, "virtualnetworks": 1000,
    "networksecuritygroups": 5000, "routetables": 200, "storageaccounts": 250, "roleassignments": 4000,
}  # fmt: skip
# TCP ports that Azure reserves on each VM.
RESERVED_PORTS: Final = frozenset({65330})
NO_BUDGETS: Final = ("MS-AZR-0036P", "MS-AZR-0145P", "MS-AZR-0146P", "MS-AZR-0159P", "MS-AZR-0120P")


def _name(_store: Store, path: str, _body: Resource) -> str | None:
    parts = path.rstrip("/").split("/")
    low, high = NAMES.get(parts[-2].lower(), (1, 1000))
    return (
        None
        if low <= len(parts[-1]) <= high
        else f"{len(parts[-1])} characters, not {low} to {high}"
    )


def _count(store: Store, path: str, _body: Resource) -> str | None:
    kind, parent = path.split("/")[-2].lower(), (parent_of(path) or "").lower()
    is_part = parent.count("/") > 4 and kind != "roleassignments"
    count = sum(
        key.split("/")[-2] == kind and (not is_part or key.startswith(f"{parent}/"))
        for key in store if key != path.lower()
    )  # fmt: skip
    return (
        f"{count + 1} {kind}, of at most {MOST[kind]}" if count >= MOST.get(kind, 10**6) else None
    )


def _reserved_ports(_store: Store, _path: str, body: Resource) -> str | None:
    data = (_profile(body).get("osProfile") or {}).get("customData")
    try:
        text = base64.b64decode(data or "").decode()
    except ValueError:
        return None
    for name in ("PORTS", "ECHO_PORT", "SERVICES"):
        match = re.search(rf"BROADSIDE_AGENT_{name}=(.*)", text)
        used = (
            RESERVED_PORTS & {int(port) for port in re.findall(r"\d+", match[1])}
            if match
            else set()
        )
        if used:
            return f"BROADSIDE_AGENT_{name}: Azure reserves port {', '.join(map(str, used))}"
    if "ip_local_port_range" in text and "ip_local_reserved_ports = 65330" not in text:
        return "ip_local_port_range includes port 65330, which Azure reserves"
    return None


def _offer(store: Store, _path: str, _body: Resource) -> str | None:
    """Reject budgets if the planted subscription has an offer without Cost Management."""
    offers = [_fields(item).get("offerId") for item in store.values()
              if item["type"].lower() == "rehearsal/offers"]  # fmt: skip
    wrong = [offer for offer in offers if offer in NO_BUDGETS]
    if wrong:
        return (
            "Cost Management supports only Enterprise Agreement, Web direct and Microsoft Customer "
            f"Agreement offer types. offerId: {wrong[0]} is associated with offerType: None"
        )
    return None


def _rule(name: str, code: str, kinds: str | Iterable[str], source: str, check: Check) -> Rule:
    listed = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    return Rule(name=name, code=code, kinds=listed, source=source, check=check)


_MACHINES: Final = ("virtualmachines", "virtualmachinescalesets")
_LEARN: Final = "learn:azure"
CATALOGUE: Final = (
    _rule("VM size", "InvalidParameter", _MACHINES, f"{_LEARN}/virtual-machines/vm-naming-conventions", _known_size),
    _rule("size against disk", "InvalidParameter", _MACHINES, f"{_LEARN}/virtual-machines/vm-naming-conventions (s: premium storage); github:Azure/azure-xplat-cli#3008", _disk),
    _rule("accelerated networking", "VMSizeIsNotPermittedToEnableAcceleratedNetworking", _MACHINES, f"{_LEARN}/virtual-network/accelerated-networking-overview; github:hashicorp/terraform-provider-azurerm#1383", _accelerated),
    _rule("trusted launch", "BadRequest", _MACHINES, f"{_LEARN}/virtual-machines/trusted-launch, generation-2", _trusted),
    _rule("tier of a size", "InvalidParameter", "virtualmachinescalesets", f"{_LEARN}/virtual-machines/sizes (Basic: A sizes only, retired)", _basic_tier),
    _rule("zones", "InvalidAvailabilityZone", "*", f"{_LEARN}/reliability/availability-zones-overview", _zones),
    _rule("zones of an address", "ZonesMismatch", "azurefirewalls", f"{_LEARN}/firewall/deploy-availability-zone-powershell", _address_zones),
    _rule("firewall zones by region", "AzureFirewallZoneNotAvailable", "azurefirewalls", f"{_LEARN}/firewall/firewall-known-issues (current capacity restrictions); code {OWN}", _firewall_zones),
    _rule("gateway of a peering", "RemoteVnetHasNoGateways", "virtualnetworkpeerings", "github:hashicorp/terraform#30569", _gateways),
    _rule("peering flags", "InvalidPeeringFlags", "virtualnetworkpeerings", f"{_LEARN}/virtual-network/virtual-network-manage-peering; code {OWN}", _gateway_flags),
    _rule("network of a hub connection", "HubVirtualNetworkConnectionInvalid", "hubvirtualnetworkconnections", f"{_LEARN}/virtual-wan/virtual-wan-faq (a network connects to one hub; no overlapping spaces); code {OWN}", _one_hub),
    _rule("required properties", "InvalidRequestContent", "hubvirtualnetworkconnections", "types:Microsoft.Network/virtualHubs/hubVirtualNetworkConnections", _required("remoteVirtualNetwork")),
    _rule("delegation", "SubnetIsDelegated", (*_MACHINES, "networkinterfaces", "privateendpoints", "bastionhosts", "azurefirewalls"), f"{_LEARN}/virtual-network/subnet-delegation-overview; github:MicrosoftDocs/azure-docs#47048; code {OWN}", _delegation),
    _rule("reserved subnet", "SubnetReserved", ("networkinterfaces", "virtualmachinescalesets", "privateendpoints"), f"{_LEARN}/firewall/firewall-faq; {_LEARN}/bastion/configuration-settings#subnet; code {OWN}", _reserved_subnet),
    _rule("subnet of an interface", "InvalidRequestFormat", "networkinterfaces", "types:Microsoft.Network/networkInterfaces", _interface_subnet),
    _rule("subnet of a firewall", "InvalidRequestFormat", ("azurefirewalls", "bastionhosts"), "types:Microsoft.Network/azureFirewalls", _subnet_or_parked),
    _rule("subnet of a scale set", "InvalidParameter", "virtualmachinescalesets", "types:Microsoft.Compute/virtualMachineScaleSets", _interface_subnet),
    _rule("frontend", "LoadBalancerFrontendIPConfigurationInvalid", "loadbalancers", f"{_LEARN}/load-balancer/components; code {OWN}", _frontend),
    _rule("address of a frontend", "PrivateIPAddressNotInSubnet", "loadbalancers", f"{_LEARN}/virtual-network/ip-services/private-ip-addresses", _frontend_address),
    _rule("HA ports", "LoadBalancingRuleInvalidPorts", "loadbalancers", f"{_LEARN}/load-balancer/load-balancer-ha-ports-overview; code {OWN}", _ha_ports),
    _rule("SKU of an address", "PublicIPAddressSkuNotSupported", ("natgateways", "azurefirewalls", "bastionhosts"), f"{_LEARN}/virtual-network/ip-services/public-ip-addresses; code {OWN}", _standard_address),
    _rule("SKU values", "InvalidSku", "publicipaddresses", "types:Microsoft.Network/publicIPAddresses sku", _sku("Basic", "Standard", "StandardV2")),
    _rule("SKU tier values", "InvalidSku", ("publicipaddresses", "loadbalancers"), "types:Microsoft.Network/publicIPAddresses sku.tier", _sku("Regional", "Global", field="tier")),
    _rule("SKU of Bastion", "InvalidSku", "bastionhosts", "types:Microsoft.Network/bastionHosts sku", _sku("Basic", "Standard", "Developer", "Premium")),
    _rule("SKU of a load balancer", "InvalidSku", "loadbalancers", "types:Microsoft.Network/loadBalancers sku", _sku("Basic", "Standard", "Gateway")),
    _rule("SKU of storage", "InvalidSku", "storageaccounts", "types:Microsoft.Storage/storageAccounts sku", _sku("Standard_LRS", "Standard_ZRS", "Standard_GRS", "Standard_RAGRS", "Standard_GZRS", "Standard_RAGZRS", "Premium_LRS", "Premium_ZRS")),
    _rule("SKU of a NAT gateway", "InvalidSku", "natgateways", f"{_LEARN}/nat-gateway/nat-sku", _nat_sku),
    _rule("tunnel of Bastion", "BastionHostSkuDoesNotSupportFeature", "bastionhosts", f"{_LEARN}/bastion/configuration-settings#skus; code {OWN}", _tunnel),
    _rule("address of Bastion", "BastionPublicIPRequired", "bastionhosts", f"{_LEARN}/bastion/configuration-settings#public-ip; code {OWN}", _bastion_address),
    _rule("required properties", "InvalidRequestContent", "virtualnetworkpeerings", "types:Microsoft.Network/virtualNetworks/virtualNetworkPeerings", _required("remoteVirtualNetwork")),
    _rule("required properties", "InvalidRequestContent", "virtualnetworklinks", "types:Microsoft.Network/privateDnsZones/virtualNetworkLinks", _required("virtualNetwork")),
    _rule("required properties", "InvalidRequestContent", "privateendpoints", "types:Microsoft.Network/privateEndpoints", _required("subnet", "privateLinkServiceConnections")),
    _rule("required properties", "InvalidRequestContent", "autoscalesettings", "types:Microsoft.Insights/autoscalesettings", _required("profiles", "targetResourceUri")),
    _rule("required properties", "InvalidRequestContent", "diagnosticsettings", "types:Microsoft.Insights/diagnosticSettings", _required("workspaceId")),
    _rule("TLS inspection by tier", "FirewallPolicyTransportSecurityNeedsPremium", "firewallpolicies", f"{_LEARN}/firewall/premium-features; code {OWN}", _tls),
    _rule("tier of a firewall", "AzureFirewallTierInvalid", "azurefirewalls", f"{_LEARN}/firewall/deploy-firewall-basic-portal-policy; code {OWN}", _firewall_tier),
    _rule("rules of a policy", "FirewallPolicyRuleInvalid", "rulecollectiongroups", f"{_LEARN}/firewall/policy-rule-sets; code {OWN}", _application_tls),
    _rule("network rules of storage", "NetworkAclsValidationFailure", "storageaccounts", "github:hashicorp/terraform-provider-azurerm#3730", _endpoints_of_rules),
    _rule("group of an endpoint", "PrivateEndpointGroupIdInvalid", "privateendpoints", f"{_LEARN}/private-link/private-endpoint-overview#private-link-resource; code {OWN}", _groups),
    _rule("tier of Service Bus", "BadRequest", "namespaces", f"{_LEARN}/service-bus-messaging/service-bus-premium-messaging; types:Microsoft.ServiceBus/namespaces sku", _bus_tier),
    _rule("queue by tier", "BadRequest", "queues", f"{_LEARN}/service-bus-messaging/service-bus-quotas", _queue),
    _rule("name length", "InvalidResourceName", tuple(NAMES), f"{_LEARN}/azure-resource-manager/management/resource-name-rules", _name),
    _rule("quota", "QuotaExceeded", tuple(MOST), f"{_LEARN}/azure-resource-manager/management/azure-subscription-service-limits", _count),
    _rule("reserved ports", "RehearsalPortReserved", _MACHINES, "deploy/azure/modules/boot/files/sysctl.conf; no page of Microsoft states it", _reserved_ports),
    _rule("budget by offer", "400", "budgets", "github:mivano/azure-cost-cli#24, Azure/azure-powershell#11642", _offer),
)  # fmt: skip
