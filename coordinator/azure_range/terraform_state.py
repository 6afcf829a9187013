"""Resources of a range from its Terraform state (``terraform show -json``).

Terraform's names and associations become the form of the Resource Manager. The state holds the
resources of the range only, so the resources of other owners are unknown.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from broadside.coordinator.azure_range.resources import Resources

ResourceValues = Mapping[str, Any]
ResourceBody = dict[str, Any]


def read_state(state: Mapping[str, Any]) -> Resources:
    """Return the resources of a Terraform state.

    Args:
        state: Parsed output of ``terraform show -json``.
    """
    by_id: dict[str, ResourceBody] = {}
    listed = list(_managed((state.get("values") or {}).get("root_module") or {}))
    for kind, values in listed:
        if kind in _BODIES:
            body = _resource(kind, values)
            by_id[str(body["id"]).lower()] = body
    for kind, values in listed:
        if join := _JOINS.get(kind):
            join(by_id, values)
        if kind == "azurerm_resource_group_template_deployment":
            for body in _deployed(values):
                by_id[body["id"].lower()] = body
    for body in by_id.values():
        _set_identities(by_id, body)
    blobs = frozenset(
        re.sub(r"^https://([^.]+)\.blob\.[^/]+", r"\1", values["url"])
        for kind, values in listed
        if kind == "azurerm_storage_blob"
    )
    return Resources(by_id=by_id, blobs=blobs or None, is_complete=False)


def _managed(module: ResourceValues) -> Iterator[tuple[str, ResourceValues]]:
    for item in module.get("resources") or ():
        if item["mode"] == "managed":
            yield item["type"], item["values"]
    for child in module.get("child_modules") or ():
        yield from _managed(child)


def _resource(kind: str, values: ResourceValues) -> ResourceBody:
    type_, fields = _BODIES[kind]
    resource_id = str(values.get("role_definition_resource_id") or values["id"])
    if kind == "azurerm_monitor_diagnostic_setting":
        target, _, name = resource_id.partition("|")
        resource_id = f"{target}/providers/Microsoft.Insights/diagnosticSettings/{name}"
    body: ResourceBody = {
        "id": resource_id, "name": values.get("name") or resource_id.rsplit("/", 1)[1],
        "type": type_, "properties": fields(values),
    }  # fmt: skip
    for name in ("location", "zones"):
        if values.get(name):
            body[name] = values[name]
    if "location" in values or kind.startswith("azurerm_private_dns_zone"):
        body["tags"] = values.get("tags") or {}
    identity = values.get("identity") or ()
    if identity:
        ids = identity[0].get("identity_ids") or ()
        body["identity"] = {"userAssignedIdentities": {one: {} for one in ids}}
    if size := values.get("sku") if kind.endswith("scale_set") else None:
        body["sku"] = {"name": size, "capacity": values["instances"]}
    return body


def _set_identities(by_id: Mapping[str, ResourceBody], body: ResourceBody) -> None:
    for identity_id, fields in (
        (body.get("identity") or {}).get("userAssignedIdentities") or {}
    ).items():
        known = (by_id.get(identity_id.lower()) or {}).get("properties") or {}
        fields.update({key: known[key] for key in ("clientId", "principalId") if key in known})


def _ref(value: Any) -> ResourceBody | None:
    return {"id": value} if value else None


def _configurations(values: ResourceValues, name: str = "ip_configuration") -> list[ResourceBody]:
    return [
        {
            "id": item.get("id"),
            "name": item.get("name"),
            "properties": {
                "subnet": _ref(item.get("subnet_id")),
                "publicIPAddress": _ref(item.get("public_ip_address_id")),
                "privateIPAddress": item.get("private_ip_address"),
                "loadBalancerBackendAddressPools": [],
            },
        }
        for item in values.get(name) or ()
    ]


def _machine(values: ResourceValues) -> ResourceBody:
    return {
        "osProfile": {"customData": values.get("custom_data")},
        "hardwareProfile": {"vmSize": values.get("size")},
        "networkProfile": {
            "networkInterfaces": [{"id": one} for one in values["network_interface_ids"]]
        },
    }


def _scale_set(values: ResourceValues) -> ResourceBody:
    interfaces = [
        {
            "properties": {
                "enableAcceleratedNetworking": item.get("accelerated_networking_enabled"),
                "networkSecurityGroup": _ref(item.get("network_security_group_id")),
                "ipConfigurations": _configurations(item),
            }
        }
        for item in values["network_interface"]
    ]
    return {
        "proximityPlacementGroup": _ref(values.get("proximity_placement_group_id")),
        "virtualMachineProfile": {
            "osProfile": {"customData": values.get("custom_data")},
            "networkProfile": {"networkInterfaceConfigurations": interfaces},
        },
    }


def _security_rule(values: ResourceValues) -> ResourceBody:
    names = {
        "sourceAddressPrefix": "source_address_prefix",
        "sourceAddressPrefixes": "source_address_prefixes",
        "destinationAddressPrefix": "destination_address_prefix",
        "destinationAddressPrefixes": "destination_address_prefixes",
        "sourcePortRange": "source_port_range", "sourcePortRanges": "source_port_ranges",
        "destinationPortRange": "destination_port_range",
        "destinationPortRanges": "destination_port_ranges",
        "protocol": "protocol", "access": "access", "direction": "direction",
        "priority": "priority",
    }  # fmt: skip
    return {key: values.get(name) for key, name in names.items()}


def _rule_collections(values: ResourceValues) -> ResourceBody:
    kinds = {"network": "NetworkRule", "application": "ApplicationRule", "nat": "NatRule"}
    collections = []
    for stem, kind in kinds.items():
        for item in values.get(f"{stem}_rule_collection") or ():
            rules = [
                {
                    "ruleType": kind, "name": rule["name"],
                    "ipProtocols": rule.get("protocols"),
                    "sourceAddresses": rule.get("source_addresses"),
                    "sourceIpGroups": rule.get("source_ip_groups"),
                    "destinationAddresses": rule.get("destination_addresses"),
                    "destinationIpGroups": rule.get("destination_ip_groups"),
                    "destinationFqdns": rule.get("destination_fqdns"),
                    "targetFqdns": rule.get("destination_fqdns"),
                    "destinationPorts": rule.get("destination_ports"),
                    "translatedAddress": rule.get("translated_address"),
                    "translatedPort": rule.get("translated_port"),
                    "protocols": [{"protocolType": one["type"], "port": one["port"]}
                                  for one in rule.get("protocols") or () if isinstance(one, dict)],
                }
                for rule in item["rule"]
            ]  # fmt: skip
            action = str(item["action"]).capitalize()
            collections.append(
                {"priority": item["priority"], "action": {"type": action}, "rules": rules}
            )
    return {"priority": values["priority"], "ruleCollections": collections}


def _account(values: ResourceValues) -> ResourceBody:
    rules = (values.get("network_rules") or [{}])[0]
    subnets = rules.get("virtual_network_subnet_ids") or ()
    return {
        "primaryEndpoints": {
            group: values.get(f"primary_{group}_endpoint") for group in ("blob", "table")
        },
        "publicNetworkAccess": "Enabled" if values["public_network_access_enabled"] else "Disabled",
        "allowSharedKeyAccess": values["shared_access_key_enabled"],
        "allowBlobPublicAccess": values["allow_nested_items_to_be_public"],
        "minimumTlsVersion": values["min_tls_version"],
        "networkAcls": {
            "defaultAction": rules.get("default_action"),
            "virtualNetworkRules": [{"id": one} for one in subnets],
        },
    }


def _endpoint(values: ResourceValues) -> ResourceBody:
    connections = [
        {
            "properties": {
                "privateLinkServiceId": item["private_connection_resource_id"],
                "groupIds": item["subresource_names"],
            }
        }
        for item in values["private_service_connection"]
    ]
    return {"subnet": _ref(values["subnet_id"]), "privateLinkServiceConnections": connections}


def _autoscale(values: ResourceValues) -> ResourceBody:
    profiles = [{"capacity": item["capacity"][0]} for item in values["profile"]]
    return {
        "enabled": values["enabled"], "targetResourceUri": values["target_resource_id"],
        "profiles": profiles,
    }  # fmt: skip


def _budget(values: ResourceValues) -> ResourceBody:
    listed = {
        str(index): {"enabled": item["enabled"], "contactEmails": item["contact_emails"]}
        for index, item in enumerate(values["notification"])
    }
    return {"amount": values["amount"], "notifications": listed}


_NETWORK: Final = "Microsoft.Network"
_BODIES: Final[Mapping[str, tuple[str, Callable[[ResourceValues], ResourceBody]]]] = {
    "azurerm_public_ip": (
        f"{_NETWORK}/publicIPAddresses", lambda v: {"ipAddress": v["ip_address"]}),
    "azurerm_virtual_network": (
        f"{_NETWORK}/virtualNetworks",
        lambda v: {"addressSpace": {"addressPrefixes": v["address_space"]},
                   "dhcpOptions": {"dnsServers": v.get("dns_servers") or []}},
    ),
    "azurerm_subnet": (
        f"{_NETWORK}/virtualNetworks/subnets",
        lambda v: {"addressPrefixes": v["address_prefixes"],
                   "defaultOutboundAccess": v.get("default_outbound_access_enabled"),
                   "privateEndpointNetworkPolicies": v.get("private_endpoint_network_policies"),
                   "serviceEndpoints": v.get("service_endpoint") or []},
    ),
    "azurerm_virtual_network_peering": (
        f"{_NETWORK}/virtualNetworks/virtualNetworkPeerings",
        lambda v: {"remoteVirtualNetwork": _ref(v["remote_virtual_network_id"]),
                   "allowVirtualNetworkAccess": v["allow_virtual_network_access"],
                   "allowForwardedTraffic": v["allow_forwarded_traffic"]},
    ),
    "azurerm_network_security_group": (f"{_NETWORK}/networkSecurityGroups", lambda _: {}),
    "azurerm_network_security_rule": (
        f"{_NETWORK}/networkSecurityGroups/securityRules", _security_rule),
    "azurerm_virtual_hub_connection": (
        f"{_NETWORK}/virtualHubs/hubVirtualNetworkConnections",
        lambda v: {"remoteVirtualNetwork": _ref(v["remote_virtual_network_id"]),
                   "enableInternetSecurity": v["internet_security_enabled"]},
    ),
    "azurerm_route_table": (
        f"{_NETWORK}/routeTables",
        lambda v: {"disableBgpRoutePropagation": not v["bgp_route_propagation_enabled"]},
    ),
    "azurerm_route": (
        f"{_NETWORK}/routeTables/routes",
        lambda v: {"addressPrefix": v["address_prefix"], "nextHopType": v["next_hop_type"],
                   "nextHopIpAddress": v.get("next_hop_in_ip_address")},
    ),
    "azurerm_nat_gateway": (f"{_NETWORK}/natGateways", lambda _: {"publicIpAddresses": []}),
    "azurerm_network_interface": (
        f"{_NETWORK}/networkInterfaces",
        lambda v: {"ipConfigurations": _configurations(v),
                   "enableIPForwarding": v["ip_forwarding_enabled"]},
    ),
    "azurerm_firewall": (
        f"{_NETWORK}/azureFirewalls",
        lambda v: {"firewallPolicy": _ref(v["firewall_policy_id"]),
                   "managementIpConfiguration": _configurations(v, "management_ip_configuration"),
                   "ipConfigurations": _configurations(v)},
    ),
    "azurerm_firewall_policy": (
        f"{_NETWORK}/firewallPolicies",
        lambda v: {"snat": {"privateRanges": v.get("private_ip_ranges") or None}},
    ),
    "azurerm_firewall_policy_rule_collection_group": (
        f"{_NETWORK}/firewallPolicies/ruleCollectionGroups", _rule_collections),
    "azurerm_bastion_host": (
        f"{_NETWORK}/bastionHosts",
        lambda v: {"enableTunneling": v["tunneling_enabled"],
                   "ipConfigurations": _configurations(v)},
    ),
    "azurerm_lb": (
        f"{_NETWORK}/loadBalancers",
        lambda v: {"frontendIPConfigurations": _configurations(v, "frontend_ip_configuration"),
                   "loadBalancingRules": [], "probes": []},
    ),
    "azurerm_private_dns_zone": (f"{_NETWORK}/privateDnsZones", lambda _: {}),
    "azurerm_private_dns_zone_virtual_network_link": (
        f"{_NETWORK}/privateDnsZones/virtualNetworkLinks",
        lambda v: {"virtualNetwork": _ref(v["virtual_network_id"])},
    ),
    "azurerm_private_endpoint": (f"{_NETWORK}/privateEndpoints", _endpoint),
    "azurerm_linux_virtual_machine": ("Microsoft.Compute/virtualMachines", _machine),
    "azurerm_linux_virtual_machine_scale_set": (
        "Microsoft.Compute/virtualMachineScaleSets", _scale_set),
    "azurerm_proximity_placement_group": (
        "Microsoft.Compute/proximityPlacementGroups", lambda _: {}),
    "azurerm_user_assigned_identity": (
        "Microsoft.ManagedIdentity/userAssignedIdentities",
        lambda v: {"clientId": v["client_id"], "principalId": v["principal_id"]},
    ),
    "azurerm_role_assignment": (
        "Microsoft.Authorization/roleAssignments",
        lambda v: {"principalId": v["principal_id"], "scope": v["scope"],
                   "roleDefinitionId": v["role_definition_id"]},
    ),
    "azurerm_role_definition": (
        "Microsoft.Authorization/roleDefinitions",
        lambda v: {"roleName": v["name"], "permissions": v["permissions"]},
    ),
    "azurerm_storage_account": ("Microsoft.Storage/storageAccounts", _account),
    "azurerm_storage_container": (
        "Microsoft.Storage/storageAccounts/blobServices/containers",
        lambda v: {"publicAccess": "None" if v["container_access_type"] == "private" else "Blob"},
    ),
    "azurerm_servicebus_namespace": (
        "Microsoft.ServiceBus/namespaces",
        lambda v: {"serviceBusEndpoint": v["endpoint"],
                   "minimumTlsVersion": v["minimum_tls_version"],
                   "disableLocalAuth": not v["local_auth_enabled"],
                   "publicNetworkAccess":
                   "Enabled" if v["public_network_access_enabled"] else "Disabled"},
    ),
    "azurerm_servicebus_queue": (
        "Microsoft.ServiceBus/namespaces/queues",
        lambda v: {"requiresDuplicateDetection": v["requires_duplicate_detection"],
                   "requiresSession": v["requires_session"],
                   "enablePartitioning": v["partitioning_enabled"]},
    ),
    "azurerm_monitor_autoscale_setting": ("Microsoft.Insights/autoScaleSettings", _autoscale),
    "azurerm_monitor_diagnostic_setting": (
        "Microsoft.Insights/diagnosticSettings",
        lambda v: {"workspaceId": v["log_analytics_workspace_id"],
                   "metrics": [{"enabled": True} for _ in v.get("enabled_metric") or ()]},
    ),
    "azurerm_log_analytics_workspace": (
        "Microsoft.OperationalInsights/workspaces", lambda _: {}),
    "azurerm_application_insights": (
        "Microsoft.Insights/components", lambda v: {"WorkspaceResourceId": v["workspace_id"]}),
    "azurerm_dev_test_global_vm_shutdown_schedule": (
        "Microsoft.DevTestLab/schedules",
        lambda v: {"targetResourceId": v["virtual_machine_id"],
                   "status": "Enabled" if v["enabled"] else "Disabled"},
    ),
    "azurerm_consumption_budget_resource_group": ("Microsoft.Consumption/budgets", _budget),
}  # fmt: skip


# Associations and parts that are resources of their own in Terraform ------------------------------


def _join_subnet(field: str, key: str) -> Callable[[dict[str, ResourceBody], ResourceValues], None]:
    def join(by_id: dict[str, ResourceBody], values: ResourceValues) -> None:
        if subnet := by_id.get(str(values["subnet_id"]).lower()):
            subnet["properties"][field] = _ref(values[key])

    return join


def _join_address(by_id: dict[str, ResourceBody], values: ResourceValues) -> None:
    gateway = by_id[str(values["nat_gateway_id"]).lower()]
    gateway["properties"]["publicIpAddresses"].append(_ref(values["public_ip_address_id"]))


def _join_pool(by_id: dict[str, ResourceBody], values: ResourceValues) -> None:
    nic = by_id[str(values["network_interface_id"]).lower()]
    for item in nic["properties"]["ipConfigurations"]:
        if item["name"] == values["ip_configuration_name"]:
            pools = item["properties"]["loadBalancerBackendAddressPools"]
            pools.append(_ref(values["backend_address_pool_id"]))


def _add_probe(by_id: dict[str, ResourceBody], values: ResourceValues) -> None:
    balancer = by_id[str(values["loadbalancer_id"]).lower()]
    balancer["properties"]["probes"].append({"id": values["id"], "name": values["name"]})


def _add_balancer_rule(by_id: dict[str, ResourceBody], values: ResourceValues) -> None:
    fields = {
        "protocol": values["protocol"], "frontendPort": values["frontend_port"],
        "backendPort": values["backend_port"], "probe": _ref(values["probe_id"]),
        "frontendIPConfiguration": _ref(values["frontend_ip_configuration_id"]),
        "backendAddressPools": [{"id": one} for one in values["backend_address_pool_ids"]],
    }  # fmt: skip
    balancer = by_id[str(values["loadbalancer_id"]).lower()]
    balancer["properties"]["loadBalancingRules"].append({"properties": fields})


def _add_zone_group(by_id: dict[str, ResourceBody], values: ResourceValues) -> None:
    for group in values.get("private_dns_zone_group") or ():
        group_id = f"{values['id']}/privateDnsZoneGroups/{group['name']}"
        zones = [{"properties": {"privateDnsZoneId": one}} for one in group["private_dns_zone_ids"]]
        by_id[group_id.lower()] = {
            "id": group_id, "name": group["name"],
            "type": f"{_NETWORK}/privateEndpoints/privateDnsZoneGroups",
            "properties": {"privateDnsZoneConfigs": zones},
        }  # fmt: skip


_JOINS: Final[Mapping[str, Callable[[dict[str, ResourceBody], ResourceValues], None]]] = {
    "azurerm_subnet_network_security_group_association": _join_subnet(
        "networkSecurityGroup", "network_security_group_id"
    ),
    "azurerm_subnet_route_table_association": _join_subnet("routeTable", "route_table_id"),
    "azurerm_subnet_nat_gateway_association": _join_subnet("natGateway", "nat_gateway_id"),
    "azurerm_nat_gateway_public_ip_association": _join_address,
    "azurerm_network_interface_backend_address_pool_association": _join_pool,
    "azurerm_lb_probe": _add_probe,
    "azurerm_lb_rule": _add_balancer_rule,
    "azurerm_private_endpoint": _add_zone_group,
}


def _deployed(values: ResourceValues) -> Iterator[ResourceBody]:
    """Yield the resources of a template deployment: the tables, and the morning start."""
    group = values["id"].split("/providers/")[0]
    for item in json.loads(values["template_content"])["resources"]:
        kinds, names = item["type"].split("/"), item["name"].split("/")
        parts = "/".join(f"{kind}/{name}" for kind, name in zip(kinds[1:], names, strict=True))
        resource_id = f"{group}/providers/{kinds[0]}/{parts}"
        fields = dict(item.get("properties") or {})
        if kinds[-1] == "roleAssignments":
            fields["scope"] = resource_id.split("/providers/Microsoft.Authorization/")[0]
        body = {"id": resource_id, "name": names[-1], "type": item["type"], "properties": fields}
        yield body | {key: item[key] for key in ("location", "tags", "identity") if key in item}
