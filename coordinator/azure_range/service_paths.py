"""Services of Azure: their names, private endpoints, and whether they accept a VM."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from broadside.coordinator.azure_range.appliances import device_subnet, forward
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
from broadside.coordinator.azure_range.routing import (
    RoutedFlow,
    Tag,
    cross_peering,
    effective_route,
    network_of,
    pass_groups,
)
from broadside.coordinator.azure_range.trace import Trace

HTTPS, AMQPS = 443, 5671
# Services that belong to Azure and not to the subscription, by the end of the host name.
_PLATFORM: Final = (
    ("management.azure.com", "AzureResourceManager"),
    ("management.usgovcloudapi.net", "AzureResourceManager"),
    ("management.chinacloudapi.cn", "AzureResourceManager"),
    ("api.loganalytics.azure.com", "AzureMonitor"),
    ("api.loganalytics.us", "AzureMonitor"),
    ("api.loganalytics.azure.cn", "AzureMonitor"),
    ("login.microsoftonline.com", "AzureActiveDirectory"),
    ("login.microsoftonline.us", "AzureActiveDirectory"),
    ("login.chinacloudapi.cn", "AzureActiveDirectory"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedService:
    """Service behind a host name.

    Attributes:
        tag: Service tag for security groups.
        group: Private endpoint group: ``blob``, ``table``, ``namespace``, or empty.
        resource: Storage account or namespace, or None for Azure's own services.
    """

    tag: Tag
    group: str = ""
    resource: Resource | None = None


def host_of(text: str) -> str:
    """Return the host of a URL or of a host name."""
    return (urlsplit(text).hostname if "://" in text else text) or ""


def find_service(trace: Trace, host: str, wanted: str) -> NamedService:
    """Return the service with a host name.

    Args:
        trace: Trace to add the hop to.
        host: Host name that the VM is given.
        wanted: ``blob``, ``table``, ``namespace`` or ``platform``.

    Raises:
        Stop: The host name is unknown, or is an endpoint of another kind.
    """
    for end, tag in _PLATFORM:
        if host == end and wanted == "platform":
            return NamedService(tag=Tag(tag))
    for item in trace.resources.of_kind("storageAccounts"):
        for group, url in (properties(item).get("primaryEndpoints") or {}).items():
            if host_of(url) == host:
                if group != wanted:
                    raise trace.fail("name", f"{host} is the {group} endpoint, not {wanted}")
                return NamedService(tag=Tag("Storage", _region(item)), group=group, resource=item)
    for item in trace.resources.of_kind("namespaces"):
        if host_of(str(properties(item).get("serviceBusEndpoint"))) == host:
            if wanted != "namespace":
                raise trace.fail("name", f"{host} is a Service Bus namespace, not {wanted}")
            return NamedService(
                tag=Tag("ServiceBus", _region(item)), group="namespace", resource=item
            )
    raise trace.fail("name", f"{host or 'an empty name'} is not {wanted} of this range")


def _region(item: Resource) -> str:
    return str(item.get("location", "")).lower().replace(" ", "")


def reach(trace: Trace, machine: Machine, host: str, wanted: str, port: int) -> NamedService:
    """Check the path from a VM to a service of Azure.

    Args:
        trace: Trace to add the hops to.
        machine: VM that connects.
        host: Host name of the service.
        wanted: Kind of the endpoint: ``blob``, ``table``, ``namespace`` or ``platform``.
        port: TCP port of the service.

    Returns:
        The service with its resource. The resource is None for a service of the platform.

    Raises:
        Stop: A hop of the path fails.
    """
    service = find_service(trace, host, wanted)
    endpoint = _resolve(trace, machine, host, service)
    if endpoint is not None:
        _reach_endpoint(trace, machine, endpoint, service, port)
    else:
        _reach_public(trace, machine, host, service, port)
    return service


# Names --------------------------------------------------------------------------------------------


def _resolve(trace: Trace, machine: Machine, host: str, service: NamedService) -> Resource | None:
    """Return the private endpoint to which a name resolves in the VM's network, None if public."""
    resources = trace.resources
    network = network_of(resources, machine.subnet_id)
    if network is None:
        raise trace.fail(
            "name", f"network of {short(machine.subnet_id)} is not visible", machine.subnet_id
        )
    servers = (properties(network).get("dhcpOptions") or {}).get("dnsServers") or ()
    if servers:
        text = f"{network['name']} uses the DNS servers {', '.join(servers)}, which are not visible"
        raise trace.fail("name", text, "" if resources.is_complete else "(another owner)")
    label, _, rest = host.partition(".")
    for zone in _linked_zones(resources, network):
        if zone["name"] == rest or host == zone["name"]:
            raise trace.fail(
                "name", f"zone {zone['name']} is linked to {network['name']} without {label}"
            )
    endpoints = [item for item in resources.of_kind("privateEndpoints")
                 if service.resource is not None and _is_to(item, service.resource)]  # fmt: skip
    if not endpoints:
        trace.ok("name", f"{host} is public")
        return None
    wanted = f"privatelink.{rest}"
    record = _record(trace, network, wanted, endpoints)
    trace.ok("name", f"{host} is {record['name']} by zone {wanted}")
    return record


def _record(trace: Trace, network: Resource, zone_name: str, endpoints: list[Resource]) -> Resource:
    """Return the private endpoint with a record in the zone that is linked to a network."""
    resources = trace.resources
    linked = {str(zone["id"]).lower() for zone in _linked_zones(resources, network)
              if zone["name"] == zone_name}  # fmt: skip
    hidden, others = "", []
    for endpoint in endpoints:
        for group in resources.children(endpoint["id"], "privateDnsZoneGroups"):
            for item in properties(group).get("privateDnsZoneConfigs") or ():
                zone_id = item["properties"]["privateDnsZoneId"]
                if zone_id.lower() in linked:
                    return endpoint
                if resources.get(zone_id) is None and short(zone_id) == zone_name:
                    hidden = zone_id
                others.append(short(zone_id))
    if linked:
        text = f"zone {zone_name} has no record: no private endpoint has it in its DNS zone group"
        raise trace.fail("name", f"{text}; the groups have {', '.join(others) or 'no zone'}")
    if hidden:
        text = f"zone {zone_name} belongs to another owner; link it to the network"
        raise trace.fail("name", text, "(another owner)")
    text = f"zone {zone_name} is not linked to {network['name']}, so the name is public"
    raise trace.fail("name", f"{text}, and public access is disabled")


def _linked_zones(resources: Resources, network: Resource) -> list[Resource]:
    zones = []
    for link in resources.of_kind("virtualNetworkLinks"):
        target = reference(properties(link), "virtualNetwork")
        zone = resources.get(parent_id(link["id"]))
        if target.lower() == str(network["id"]).lower() and zone is not None:
            zones.append(zone)
    return zones


def _connections(endpoint: Resource) -> list[Resource]:
    fields = properties(endpoint)
    listed = [*(fields.get("privateLinkServiceConnections") or ()),
              *(fields.get("manualPrivateLinkServiceConnections") or ())]  # fmt: skip
    return [item["properties"] for item in listed]


def _is_to(endpoint: Resource, target: Resource) -> bool:
    return any(item["privateLinkServiceId"].lower() == str(target["id"]).lower()
               for item in _connections(endpoint))  # fmt: skip


# Ways ---------------------------------------------------------------------------------------------


def _reach_endpoint(
    trace: Trace, machine: Machine, endpoint: Resource, service: NamedService, port: int
) -> None:
    resources = trace.resources
    subnet_id = reference(properties(endpoint), "subnet")
    subnet = resources.get(subnet_id)
    if subnet is None:
        raise trace.fail("route", f"subnet {short(subnet_id)} is not visible", subnet_id)
    target = prefixes(subnet)[0]
    flow = RoutedFlow(protocol="tcp", source=machine.places[0], target=target, ports=(port, port))
    pass_groups(trace, machine.subnet_id, machine.group_id, "Outbound", flow)
    route = effective_route(trace, machine.subnet_id, target)
    if route.kind not in ("local", "peering"):
        raise trace.fail(
            "route", f"{route.source}: {target} is not in a peered network", machine.subnet_id
        )
    trace.ok("route", route.source)
    cross_peering(trace, parent_id(machine.subnet_id), parent_id(subnet_id), forwarded=False)
    if properties(subnet).get("privateEndpointNetworkPolicies") in (
        "Enabled", "NetworkSecurityGroupEnabled",
    ):  # fmt: skip
        pass_groups(trace, subnet_id, "", "Inbound", flow)
    for item in _connections(endpoint):
        if service.group not in item["groupIds"]:
            text = f"{endpoint['name']} serves {', '.join(item['groupIds'])}, not {service.group}"
            raise trace.fail("listener", text, endpoint["id"])
        state = (item.get("privateLinkServiceConnectionState") or {}).get("status", "Approved")
        if state != "Approved":
            raise trace.fail("listener", f"{endpoint['name']} is {state}", "(another owner)")
    trace.ok("listener", f"{endpoint['name']} serves {service.group}")


def _reach_public(
    trace: Trace, machine: Machine, host: str, service: NamedService, port: int
) -> None:
    flow = RoutedFlow(
        protocol="tcp", source=machine.places[0], target=service.tag, ports=(port, port), name=host
    )
    pass_groups(trace, machine.subnet_id, machine.group_id, "Outbound", flow)
    route = effective_route(trace, machine.subnet_id, service.tag)
    if route.kind == "none":
        raise trace.fail("route", f"{route.source} drops the traffic", machine.subnet_id)
    if route.kind == "appliance":
        subnet = device_subnet(trace, route.address)
        networks = parent_id(machine.subnet_id), parent_id(subnet["id"])
        cross_peering(trace, *networks, forwarded=False)
        forward(trace, route.address, flow)
    if route.kind == "internet":
        _check_outbound(trace, machine)
    trace.ok("route", route.source)
    if service.resource is not None:
        _accepts(trace, machine, service, is_endpoint=route.kind == "endpoint")


def _check_outbound(trace: Trace, machine: Machine) -> None:
    """Check the public source address: a NAT gateway, or Azure's default address."""
    resources = trace.resources
    fields = properties(resources.get(machine.subnet_id))
    gateway_id = reference(fields, "natGateway")
    if not gateway_id and fields.get("defaultOutboundAccess", True):
        trace.ok("outbound", "default address of Azure")
        return
    gateway = resources.get(gateway_id)
    if gateway is None:
        text = f"subnet {short(machine.subnet_id)} of {short(parent_id(machine.subnet_id))}"
        raise trace.fail("outbound", f"{text} has no NAT gateway", gateway_id or machine.subnet_id)
    addresses = properties(gateway).get("publicIpAddresses") or ()
    if not any(resources.get(item["id"]) for item in addresses):
        raise trace.fail("outbound", f"NAT gateway {gateway['name']} has no address", gateway_id)
    trace.ok("outbound", str(gateway["name"]))


def _accepts(trace: Trace, machine: Machine, service: NamedService, *, is_endpoint: bool) -> None:
    """Check the public network access and the network rules of a service."""
    resource = service.resource or {}
    fields, name = properties(resource), str(resource.get("name"))
    if fields.get("publicNetworkAccess", "Enabled") != "Enabled":
        raise trace.fail(
            "listener", f"{name} has no public access and no private endpoint for {service.group}"
        )
    rules = fields.get("networkAcls") or {}
    if rules.get("defaultAction") != "Deny":
        trace.ok("listener", name)
        return
    subnets = [item["id"].lower() for item in rules.get("virtualNetworkRules") or ()]
    subnet_text = f"subnet {short(machine.subnet_id)} of {short(parent_id(machine.subnet_id))}"
    if not is_endpoint:
        # A rule by address does not apply to addresses of the same region.
        raise trace.fail(
            "listener", f"{name}: {subnet_text} has no service endpoint", machine.subnet_id
        )
    if machine.subnet_id.lower() not in subnets:
        raise trace.fail(
            "listener", f"{name}: its network rules do not allow {subnet_text}", str(resource["id"])
        )
    trace.ok("listener", f"{name} allows {subnet_text}")
