"""Fields that Azure adds to a resource: addresses, ids, endpoints and defaults."""

from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import Any, Final

from tests.azure_emulator.azure_refusals import Refused, Resource, Store
from tests.azure_emulator.resource_ids import guid

TENANT: Final = "11111111-1111-1111-1111-111111111111"
_STATELESS: Final = ("microsoft.authorization/", "microsoft.consumption/", "microsoft.insights/dia")


def complete(store: Store, me: Resource) -> None:
    """Add the computed fields to a resource in place, and create dependent resources."""
    kind = me["type"].lower()
    reported: dict[str, Any] = me.setdefault("properties", {})
    if not kind.startswith(_STATELESS):
        reported["provisioningState"] = "Succeeded"
    if adder := _ADDERS.get(kind.partition("/")[2]):
        adder(store, me, reported)
    _identities(store, me)


def _identities(store: Store, me: Resource) -> None:
    given = (me.get("identity") or {}).get("userAssignedIdentities") or {}
    for key in given:
        if answer := store.get(key.lower()):
            given[key] = {name: answer["properties"][name] for name in ("clientId", "principalId")}


def _public_ip(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    digits = guid(me["id"])
    properties.setdefault("ipAddress", f"20.{int(digits[:2], 16)}.{int(digits[2:4], 16)}.7")


def _free_address(store: Store, subnet_id: str) -> str:
    subnet = store[subnet_id.lower()]
    reported = subnet["properties"]
    network = ip_network(reported.get("addressPrefix") or reported["addressPrefixes"][0])
    taken = subnet.setdefault("_taken", [])
    # Azure reserves the first four addresses.
    for index in range(4, network.num_addresses - 1):
        if (address := str(network[index])) not in taken:
            taken.append(address)
            return address
    raise Refused(400, "SubnetIsFull", subnet_id)


def _configurations(
    store: Store, me: Resource, key: str = "ipConfigurations", name: str = "ipConfigurations"
) -> None:
    for item in me["properties"].get(key) or ():
        item["id"] = f"{me['id']}/{name}/{item.get('name')}"
        reported = item.setdefault("properties", {})
        if reported.get("subnet") and not reported.get("privateIPAddress"):
            reported["privateIPAddress"] = _free_address(store, reported["subnet"]["id"])
        reported["provisioningState"] = "Succeeded"


def _firewall(store: Store, me: Resource, properties: dict[str, Any]) -> None:
    _configurations(store, me, name="azureFirewallIpConfigurations")
    if management := properties.get("managementIpConfiguration"):
        management["id"] = f"{me['id']}/azureFirewallIpConfigurations/{management['name']}"


def _interfaces(store: Store, me: Resource, properties: dict[str, Any]) -> None:
    _configurations(store, me)
    for item in properties.get("ipConfigurations") or ():
        item["properties"].setdefault("primary", True)


def _load_balancer(store: Store, me: Resource, properties: dict[str, Any]) -> None:
    _configurations(store, me, "frontendIPConfigurations", "frontendIPConfigurations")
    for key in ("backendAddressPools", "probes", "loadBalancingRules", "inboundNatRules",
                "inboundNatPools", "outboundRules"):  # fmt: skip
        properties[key] = properties.get(key) or []
        for item in properties[key]:
            item["id"] = f"{me['id']}/{key}/{item['name']}"


def _identity(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    properties |= {
        "tenantId": TENANT,
        "principalId": guid("p" + me["id"]),
        "clientId": guid(me["id"]),
    }


def _account(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    services = ("blob", "table", "queue", "file", "dfs", "web")
    properties |= {
        "primaryLocation": me.get("location"),
        "statusOfPrimary": "available",
        "creationTime": "2026-11-22T00:00:00Z",
        "primaryEndpoints": {
            service: f"https://{me['name']}.{service}.core.windows.net/" for service in services
        },
    }  # fmt: skip


def _namespace(store: Store, me: Resource, properties: dict[str, Any]) -> None:
    properties |= {
        "serviceBusEndpoint": f"https://{me['name']}.servicebus.windows.net:443/",
        "status": "Active",
    }
    if me["sku"].get("name") == "Standard":
        properties["premiumMessagingPartitions"] = 0
    me["sku"].setdefault("capacity", 0)
    root = f"{me['id']}/authorizationRules/RootManageSharedAccessKey"
    store[root.lower()] = {
        "id": root, "name": "RootManageSharedAccessKey",
        "type": "Microsoft.ServiceBus/namespaces/authorizationRules",
        "properties": {"rights": ["Listen", "Manage", "Send"]},
    }  # fmt: skip


def _queue(_store: Store, _me: Resource, properties: dict[str, Any]) -> None:
    properties |= {"status": properties.get("status", "Active"), "maxMessageSizeInKilobytes": 256}
    properties["countDetails"] = {}


def _workspace(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    properties["customerId"] = guid(me["id"])
    properties.setdefault("workspaceCapping", {})


def _insights(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    key = guid(me["id"])
    properties |= {
        "AppId": guid("a" + key), "InstrumentationKey": key, "ApplicationId": me["name"],
        "Name": me["name"], "ConnectionString": f"InstrumentationKey={key};IngestionEndpoint=https://x/",
    }  # fmt: skip


def _budget(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    me["eTag"] = '"1"'
    properties["currentSpend"] = {"amount": 0, "unit": "USD"}


def _machine(store: Store, me: Resource, properties: dict[str, Any]) -> None:
    _drop_disabled(properties)
    properties["vmId"] = guid(me["id"])
    disk = properties["storageProfile"]["osDisk"]
    disk.setdefault("name", f"{me['name']}_OsDisk")
    disk.setdefault("diskSizeGB", 30)
    disk.setdefault("osType", "Linux")
    group = me["id"].split("/providers/")[0]
    disk_id = f"{group}/providers/Microsoft.Compute/disks/{disk['name']}"
    disk.setdefault("managedDisk", {})["id"] = disk_id
    store[disk_id.lower()] = {
        "id": disk_id, "name": disk["name"], "type": "Microsoft.Compute/disks",
        "location": me["location"], "managedBy": me["id"], "tags": me.get("tags") or {},
        "properties": {"diskSizeGB": 30, "provisioningState": "Succeeded"},
    }  # fmt: skip


def _scale_set(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    _drop_disabled(properties)
    profile = properties.get("virtualMachineProfile") or {}
    _drop_disabled(profile)
    if profile:
        # The OS type comes from the image.
        profile["storageProfile"]["osDisk"].setdefault("osType", "Linux")
    properties["uniqueId"] = guid(me["id"])


def _drop_disabled(properties: dict[str, Any]) -> None:
    """Remove capabilities that are all off, which Azure does not return."""
    if not any((properties.get("additionalCapabilities") or {}).values()):
        properties.pop("additionalCapabilities", None)


def _role_assignment(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    properties.setdefault("scope", me["id"].split("/providers/Microsoft.Authorization")[0])
    properties.setdefault("principalType", "ServicePrincipal")


def _role_definition(_store: Store, _me: Resource, properties: dict[str, Any]) -> None:
    properties.setdefault("type", "CustomRole")


def _endpoint(_store: Store, _me: Resource, properties: dict[str, Any]) -> None:
    properties.setdefault("networkInterfaces", [])
    properties["customDnsConfigs"] = []
    for item in properties.get("privateLinkServiceConnections") or ():
        item["properties"]["privateLinkServiceConnectionState"] = {"status": "Approved"}


def _peering(store: Store, me: Resource, properties: dict[str, Any]) -> None:
    """Set a peering to connected once both directions exist."""
    near = me["id"].lower().rsplit("/", 2)[0]
    properties["peeringState"] = "Initiated"
    for key, other in store.items():
        if "/virtualnetworkpeerings/" not in key or key.rsplit("/", 2)[0] == near:
            continue
        if key.rsplit("/", 2)[0] == properties["remoteVirtualNetwork"]["id"].lower() and (
            other["properties"]["remoteVirtualNetwork"]["id"].lower() == near
        ):
            properties["peeringState"] = other["properties"]["peeringState"] = "Connected"


def _hub_connection(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    """Set the routing of a connection. With routing intent, it propagates to no table."""
    table = f"{me['id'].rsplit('/', 2)[0]}/hubRouteTables"
    properties.setdefault("routingConfiguration", {
        "associatedRouteTable": {"id": f"{table}/defaultRouteTable"},
        "propagatedRouteTables": {"ids": [{"id": f"{table}/noneRouteTable"}], "labels": ["none"]},
        "vnetRoutes": {"staticRoutes": [], "staticRoutesConfig": {
            "propagateStaticRoutes": True, "vnetLocalRouteOverrideCriteria": "Contains"}},
    })  # fmt: skip


def _subnet(_store: Store, _me: Resource, properties: dict[str, Any]) -> None:
    if not properties.get("addressPrefix") and len(properties.get("addressPrefixes") or ()) == 1:
        properties["addressPrefix"] = properties["addressPrefixes"][0]
    properties.setdefault("privateEndpointNetworkPolicies", "Disabled")
    properties.setdefault("privateLinkServiceNetworkPolicies", "Enabled")
    properties.setdefault("defaultOutboundAccess", True)
    properties.setdefault("delegations", [])
    for item in properties.setdefault("serviceEndpoints", []) or ():
        item["provisioningState"] = "Succeeded"


def _workflow(_store: Store, me: Resource, properties: dict[str, Any]) -> None:
    properties.setdefault("state", "Enabled")
    properties["accessEndpoint"] = (
        f"https://prod-00.eastus.logic.azure.com/workflows/{guid(me['id'])}"
    )
    properties["version"] = "1"


_ADDERS: Final[Mapping[str, Callable[[Store, Resource, dict[str, Any]], None]]] = {
    "publicipaddresses": _public_ip,
    "azurefirewalls": _firewall,
    "bastionhosts": _interfaces,
    "networkinterfaces": _interfaces,
    "loadbalancers": _load_balancer,
    "userassignedidentities": _identity,
    "storageaccounts": _account,
    "namespaces": _namespace,
    "namespaces/queues": _queue,
    "workspaces": _workspace,
    "components": _insights,
    "budgets": _budget,
    "virtualmachines": _machine,
    "virtualmachinescalesets": _scale_set,
    "roleassignments": _role_assignment,
    "roledefinitions": _role_definition,
    "privateendpoints": _endpoint,
    "virtualnetworks/virtualnetworkpeerings": _peering,
    "virtualnetworks/subnets": _subnet,
    "virtualhubs/hubvirtualnetworkconnections": _hub_connection,
    "workflows": _workflow,
}
