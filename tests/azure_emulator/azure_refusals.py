"""Rules of Azure beyond the published types. Each rule raises :class:`Refused`."""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network, ip_network
from typing import Any, Final

from tests.azure_emulator.resource_ids import group_of, references
from tests.azure_emulator.service_limits import violations

Resource = dict[str, Any]
# Resources by id in lower case.
Store = dict[str, Resource]

ZONED: Final = frozenset({"eastus", "eastus2", "westeurope", "northeurope", "germanywestcentral"})
REGIONS: Final = ZONED | {"westus", "northcentralus", "germanynorth"}
SERVICE_TAGS: Final = frozenset(
    {"VirtualNetwork", "AzureLoadBalancer", "Internet", "Storage", "ServiceBus", "AzureMonitor",
     "AzureResourceManager", "AzureActiveDirectory"}
)  # fmt: skip
# Longest allowed prefix of the subnets with names from Azure.
SMALLEST: Final = {
    "azurefirewallsubnet": 26, "azurefirewallmanagementsubnet": 26, "azurebastionsubnet": 26,
}  # fmt: skip
NO_GROUPS: Final = frozenset({"azurefirewallsubnet", "azurefirewallmanagementsubnet"})
GROUPS_OF_DEBIAN: Final = frozenset(
    {"operator", "backup", "games", "list", "mail", "man", "news", "proxy", "staff", "sudo",
     "users", "audio", "video", "disk", "kmem", "src", "voice", "www-data", "broadside"}
)  # fmt: skip
# Publisher, offer and SKU of the known images.
IMAGES: Final = frozenset(
    {("debian", "debian-13", "13-gen2"), ("cisco", "cisco-c8000v-byol", "17_15_01a-byol")}
)
# Kinds that cannot be deleted while another resource refers to them.
HELD: Final = frozenset(
    {"publicipaddresses", "subnets", "networksecuritygroups", "routetables", "natgateways",
     "firewallpolicies", "networkinterfaces", "proximityplacementgroups", "virtualnetworks",
     "privatednszones"}
)  # fmt: skip


class Refused(Exception):
    """Response with status 4xx."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message


def refuse(store: Store, path: str, kind: str, body: Resource) -> None:
    """Check the rules of a kind, and raise :class:`Refused` on a violation."""
    _location(kind, body)
    _references(store, path, body)
    for code, message in violations(store, path, kind, body):
        raise Refused(400, code, message)
    if rule := _RULES.get(kind.lower().partition("/")[2]):
        rule(store, path, body)


def refuse_delete(store: Store, path: str, kind: str) -> None:
    """Raise :class:`Refused` if a lock or a reference prevents the deletion."""
    key = path.lower()
    for item in store.values():
        if item["type"].lower() == "microsoft.authorization/locks" and not kind.endswith("/locks"):
            scope = item["id"].lower().split("/providers/microsoft.authorization/locks/")[0]
            if (key + "/").startswith(scope + "/"):
                raise Refused(409, "ScopeLocked", f"{path} cannot be deleted: lock {item['id']}")
    if kind.rsplit("/", 1)[1].lower() not in HELD:
        return
    mine = [item for item in store if item == key or item.startswith(key + "/")]
    for other, resource in store.items():
        if other in mine or "/virtualnetworkpeerings/" in other:
            continue
        for place, target in references({k: v for k, v in resource.items() if k != "id"}):
            if any(target.lower() == one or target.lower().startswith(one + "/") for one in mine):
                raise Refused(400, "InUse", f"{path} is in use by {resource['id']}{place}")


def exists(store: Store, path: str) -> bool:
    key = path.lower().rstrip("/")
    if key in store or re.fullmatch(r"/subscriptions/[^/]+", key):
        return True
    # The services of an account exist with it.
    account, _, rest = re.sub(
        r"/(blob|table|queue|file)services/default", "\n/services", key
    ).partition("\n")
    return rest == "/services" and account in store


def _location(kind: str, body: Resource) -> None:
    location = body.get("location")
    if location is None or location == "global":
        return
    if location not in REGIONS:
        raise Refused(
            400, "LocationNotAvailableForResourceType",
            f"The provided location '{location}' is not available for resource type '{kind}'.",
        )  # fmt: skip
    if body.get("zones") and location not in ZONED:
        raise Refused(400, "AvailabilityZoneNotSupported", f"{location} has no availability zones")
    sku = (body.get("sku") or {}).get("name", "")
    if kind.lower().endswith("/storageaccounts") and "ZRS" in sku and location not in ZONED:
        raise Refused(400, "RedundancyConfigurationNotAvailableInRegion", f"{sku} in {location}")


def _references(store: Store, path: str, body: Resource) -> None:
    for place, target in references(body):
        stem = re.sub(
            r"/(frontendIPConfigurations|backendAddressPools|probes|ipConfigurations)/[^/]+$",
            "", target, flags=re.IGNORECASE,
        )  # fmt: skip
        if "/roledefinitions/" in target.lower() or "serializedData" in place:
            continue
        if "/providers/microsoft.keyvault/" in target.lower() or not _is_id(stem):
            continue
        # A part of the resource itself.
        if f"{stem.lower()}/".startswith(f"{path.lower()}/"):
            continue
        if not exists(store, stem):
            raise Refused(
                400,
                "InvalidResourceReference",
                f"{path}{place} refers to {target}, which is not there",
            )


def _is_id(text: str) -> bool:
    return text.count("/") % 2 == 0 and text.count(" ") == 0


def _networks(prefixes: list[str]) -> list[IPv4Network]:
    try:
        return [IPv4Network(prefix) for prefix in prefixes]
    except ValueError as error:
        raise Refused(400, "InvalidCIDRNotation", str(error)) from error


def _children(store: Store, parent: str, kind: str) -> Iterator[Resource]:
    for key, item in store.items():
        if key.startswith(f"{parent}/{kind}/") and item["type"].lower().endswith("/" + kind):
            yield item


def _prefixes(subnet: Mapping[str, Any]) -> list[str]:
    return subnet.get("addressPrefixes") or [subnet["addressPrefix"]]


def _subnet(store: Store, path: str, body: Resource) -> None:
    network = store[path.lower().rsplit("/", 2)[0]]
    space = _networks(network["properties"]["addressSpace"]["addressPrefixes"])
    mine = _networks(_prefixes(body["properties"]))
    name = path.lower().rsplit("/", 1)[1]
    for item in mine:
        if not any(item.subnet_of(complete) for complete in space):
            raise Refused(400, "NetcfgInvalidSubnet", f"{item} is not within {space}")
        for other in _children(store, network["id"].lower(), "subnets"):
            if other["id"].lower() != path.lower() and any(
                item.overlaps(theirs) for theirs in _networks(_prefixes(other["properties"]))
            ):
                raise Refused(400, "NetcfgSubnetRangesOverlap", f"{path} and {other['id']}")
        if item.prefixlen > SMALLEST.get(name, 29):
            raise Refused(400, "SubnetTooSmall", f"{path}: {item}, at least /{SMALLEST[name]}")
    if name in NO_GROUPS and body["properties"].get("networkSecurityGroup"):
        raise Refused(400, "SubnetCannotHaveNetworkSecurityGroup", path)


def _peering(store: Store, path: str, body: Resource) -> None:
    near = store[path.lower().rsplit("/", 2)[0]]
    far = store[body["properties"]["remoteVirtualNetwork"]["id"].lower()]
    for one in _networks(near["properties"]["addressSpace"]["addressPrefixes"]):
        for other in _networks(far["properties"]["addressSpace"]["addressPrefixes"]):
            if one.overlaps(other):
                raise Refused(
                    400, "VnetAddressSpacesOverlap",
                    f"{near['name']} ({one}) and {far['name']} ({other}) overlap",
                )  # fmt: skip
    for other_peering in _children(store, near["id"].lower(), "virtualnetworkpeerings"):
        remote = other_peering["properties"]["remoteVirtualNetwork"]["id"].lower()
        if remote == far["id"].lower() and other_peering["id"].lower() != path.lower():
            raise Refused(400, "VnetPeeringAlreadyExists", f"{path} and {other_peering['id']}")


def _security_rule(store: Store, path: str, body: Resource) -> None:
    reported = body["properties"]
    for key in ("sourceAddressPrefix", "destinationAddressPrefix"):
        if prefix := reported.get(key):
            _address_or_tag(path, prefix)
    for key in ("sourcePortRanges", "destinationPortRanges"):
        if "*" in (reported.get(key) or ()):
            raise Refused(400, "SecurityRuleInvalidPortRange", f"{path}: {key} takes no '*'")
    if not (reported.get("destinationPortRange") or reported.get("destinationPortRanges")):
        raise Refused(400, "SecurityRuleNoPortRange", path)
    if not 100 <= reported["priority"] <= 4096:
        raise Refused(400, "SecurityRuleInvalidPriority", f"{path}: {reported['priority']}")
    for other in _children(store, path.lower().rsplit("/", 2)[0], "securityrules"):
        theirs = other["properties"]
        same = (theirs["priority"], theirs["direction"]) == (
            reported["priority"],
            reported["direction"],
        )
        if same and other["id"].lower() != path.lower():
            raise Refused(400, "SecurityRuleConflict", f"{path} and {other['id']}")


def _address_or_tag(path: str, prefix: str) -> None:
    name, _, region = prefix.partition(".")
    if prefix == "*" or (name in SERVICE_TAGS and (not region or region in REGIONS)):
        return
    try:
        ip_network(prefix)
    except ValueError as error:
        raise Refused(
            400, "SecurityRuleInvalidAddressPrefix",
            f"{path}: {prefix!r} is neither an address nor a service tag of a region",
        ) from error  # fmt: skip


def _firewall(store: Store, path: str, body: Resource) -> None:
    reported = body["properties"]
    for item in reported.get("ipConfigurations") or ():
        subnet = (item["properties"].get("subnet") or {}).get("id", "")
        if subnet and not subnet.endswith("/AzureFirewallSubnet"):
            raise Refused(400, "AzureFirewallSubnetNameInvalid", f"{path}: {subnet}")
        address = store[item["properties"]["publicIPAddress"]["id"].lower()]
        if set(body.get("zones") or ()) - set(address.get("zones") or body.get("zones") or ()):
            raise Refused(400, "ZonesMismatch", f"{path} and {address['id']}")
    if not reported.get("ipConfigurations") and reported.get("managementIpConfiguration"):
        raise Refused(400, "AzureFirewallManagementWithoutData", path)
    policy = (reported.get("firewallPolicy") or {}).get("id")
    if policy:
        tier, theirs = reported["sku"]["tier"], store[policy.lower()]["properties"]["sku"]["tier"]
        order = ["Basic", "Standard", "Premium"]
        if order.index(theirs) > order.index(tier):
            raise Refused(400, "AzureFirewallPolicyTierMismatch", f"{tier} with a {theirs} policy")


def _policy(store: Store, path: str, body: Resource) -> None:
    reported = body["properties"]
    tier = (reported.get("sku") or {}).get("tier", "Standard")
    if reported.get("intrusionDetection") and tier != "Premium":
        raise Refused(400, "FirewallPolicyIDPSNeedsPremium", path)
    if tier == "Basic" and reported.get("threatIntelMode") == "Deny":
        raise Refused(400, "FirewallPolicyThreatIntelModeNotSupported", path)


def _rule_groups(store: Store, path: str, body: Resource) -> None:
    for other in _children(store, path.lower().rsplit("/", 2)[0], "rulecollectiongroups"):
        if (
            other["id"].lower() != path.lower()
            and other["properties"]["priority"] == body["properties"]["priority"]
        ):
            raise Refused(400, "FirewallPolicyRuleCollectionGroupSamePriority", other["id"])


def _bastion(store: Store, path: str, body: Resource) -> None:
    for item in body["properties"].get("ipConfigurations") or ():
        if not item["properties"]["subnet"]["id"].endswith("/AzureBastionSubnet"):
            raise Refused(400, "BastionSubnetNameInvalid", path)


def _namespace(_store: Store, path: str, body: Resource) -> None:
    if body["sku"]["name"] == "Standard" and body["properties"].get("publicNetworkAccess") in (
        "Disabled", "SecuredByPerimeter",
    ):  # fmt: skip
        raise Refused(400, "BadRequest", f"{path}: Standard cannot be private")


def _endpoint(store: Store, path: str, body: Resource) -> None:
    groups = {"blob", "table", "namespace"}
    for item in body["properties"].get("privateLinkServiceConnections") or ():
        reported = item["properties"]
        target = store[reported["privateLinkServiceId"].lower()]
        if set(reported["groupIds"]) - groups:
            raise Refused(400, "PrivateEndpointGroupIdInvalid", f"{path}: {reported['groupIds']}")
        # Only Service Bus has this SKU here.
        if (target.get("sku") or {}).get("name") == "Standard":
            raise Refused(400, "PrivateEndpointNotSupportedBySku", f"{path}: {target['id']}")


def _account(store: Store, path: str, body: Resource) -> None:
    name = path.rsplit("/", 1)[1]
    if not re.fullmatch(r"[a-z0-9]{3,24}", name):
        raise Refused(400, "AccountNameInvalid", f"{name} is not a valid storage account name")
    taken = [
        key for key, item in store.items()
        if item["type"].lower().endswith("/storageaccounts") and item["name"] == name
    ]  # fmt: skip
    if taken and taken != [path.lower()]:
        raise Refused(409, "StorageAccountAlreadyTaken", name)
    for rule in ((body.get("properties") or {}).get("networkAcls") or {}).get("ipRules") or ():
        if re.search(r"/(3[12])$", rule["value"]) or (
            ip_network(rule["value"]).is_private
            and not (rule["value"].startswith(("203.0.113.", "198.51.100.")))
        ):
            raise Refused(400, "InvalidNetworkRule", f"{path}: {rule['value']}")


def _table(_store: Store, path: str, _body: Resource) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{2,62}", path.rsplit("/", 1)[1]):
        raise Refused(400, "InvalidResourceName", path)


def _role(store: Store, path: str, body: Resource) -> None:
    reported = body["properties"]
    principals = {
        item["properties"].get("principalId") for item in store.values() if "properties" in item
    }
    if reported["principalId"] not in principals | {"22222222-2222-2222-2222-222222222222"}:
        raise Refused(400, "PrincipalNotFound", reported["principalId"])
    scope = path.lower().split("/providers/microsoft.authorization")[0]
    for other in store.values():
        if other["type"].lower() != "microsoft.authorization/roleassignments":
            continue
        theirs = other["properties"]
        if (
            theirs["scope"].lower() == scope
            and theirs["principalId"] == reported["principalId"]
            and theirs["roleDefinitionId"].lower() == reported["roleDefinitionId"].lower()
            and other["id"].lower() != path.lower()
        ):
            raise Refused(
                409, "RoleAssignmentExists",
                f"The role assignment already exists. The ID of the existing role assignment is "
                f"{other['name'].replace('-', '')}.",
            )  # fmt: skip


def _machine(store: Store, path: str, body: Resource) -> None:
    profile = body["properties"].get("virtualMachineProfile") or body["properties"]
    _login(path, profile.get("osProfile") or {})
    _image(path, (profile.get("storageProfile") or {}).get("imageReference") or {})
    _check_free_addresses(store, path, profile, body)
    plan = body.get("plan")
    if plan and not any(
        "/microsoft.marketplaceordering/" in key and f"/plans/{plan['name'].lower()}" in key
        and item["properties"].get("accepted")
        for key, item in store.items()
    ):  # fmt: skip
        raise Refused(
            400, "MarketplacePurchaseEligibilityFailed",
            f"{path}: legal terms of {plan['publisher']}:{plan['product']}:{plan['name']} have not "
            "been accepted for this subscription",
        )  # fmt: skip


def _image(path: str, image: Mapping[str, Any]) -> None:
    named = tuple(str(image.get(key, "")).lower() for key in ("publisher", "offer", "sku"))
    if named not in IMAGES:
        raise Refused(404, "PlatformImageNotFound", f"{path}: {':'.join(named)} was not found")


def _check_free_addresses(
    store: Store, path: str, profile: Mapping[str, Any], body: Resource
) -> None:
    """Check free addresses: one for each VM of a scale set. Azure reserves five of a subnet."""
    networks = (profile.get("networkProfile") or {}).get("networkInterfaceConfigurations") or ()
    for nic in networks:
        for item in nic["properties"]["ipConfigurations"]:
            subnet = store[item["properties"]["subnet"]["id"].lower()]
            (prefix,) = _networks(_prefixes(subnet["properties"]))
            wanted = int((body.get("sku") or {}).get("capacity") or 0)
            if wanted > prefix.num_addresses - 5:
                raise Refused(400, "SubnetIsFull", f"{path}: {wanted} addresses of {prefix}")


def _login(path: str, profile: Mapping[str, Any]) -> None:
    """Reject a login that Azure accepts but the VM does not: useradd of cloud-init exits with 9."""
    if profile.get("adminUsername") in GROUPS_OF_DEBIAN:
        raise Refused(
            400, "RehearsalLoginTaken",
            f"{path}: {profile['adminUsername']!r} is a group of Debian: useradd would end with 9",
        )  # fmt: skip


def _budget(_store: Store, path: str, body: Resource) -> None:
    if not body["properties"]["timePeriod"]["startDate"][8:].startswith("01T00:00:00"):
        raise Refused(400, "BudgetStartDateInvalid", path)


def _autoscale(_store: Store, path: str, body: Resource) -> None:
    for profile in body["properties"]["profiles"]:
        capacity = {key: int(value) for key, value in profile["capacity"].items()}
        if not capacity["minimum"] <= capacity["default"] <= capacity["maximum"]:
            raise Refused(400, "InvalidAutoscaleCapacity", f"{path}: {capacity}")


def _route(_store: Store, path: str, body: Resource) -> None:
    address = body["properties"].get("nextHopIpAddress")
    if (body["properties"]["nextHopType"] == "VirtualAppliance") != bool(address):
        raise Refused(400, "InvalidNextHop", f"{path}: {address!r}")


def _diagnostics(store: Store, path: str, body: Resource) -> None:
    workspace = body["properties"].get("workspaceId", "").lower()
    target = path.lower().split("/providers/microsoft.insights/diagnosticsettings")[0]
    if group_of(workspace) is None or not exists(store, target):
        raise Refused(400, "BadRequest", path)


_RULES: Final[Mapping[str, Callable[[Store, str, Resource], None]]] = {
    "virtualnetworks/subnets": _subnet,
    "virtualnetworks/virtualnetworkpeerings": _peering,
    "networksecuritygroups/securityrules": _security_rule,
    "azurefirewalls": _firewall,
    "firewallpolicies": _policy,
    "firewallpolicies/rulecollectiongroups": _rule_groups,
    "bastionhosts": _bastion,
    "namespaces": _namespace,
    "privateendpoints": _endpoint,
    "storageaccounts": _account,
    "storageaccounts/tableservices/tables": _table,
    "roleassignments": _role,
    "virtualmachines": _machine,
    "virtualmachinescalesets": _machine,
    "budgets": _budget,
    "autoscalesettings": _autoscale,
    "routetables/routes": _route,
    "diagnosticsettings": _diagnostics,
}
