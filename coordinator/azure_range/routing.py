"""Routes, peerings and security groups of Azure, for one flow at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from typing import Any, Final

from broadside.coordinator.azure_range.resources import (
    Resource,
    Resources,
    address_space,
    parent_id,
    prefixes,
    properties,
    reference,
    short,
)
from broadside.coordinator.azure_range.trace import Trace
from broadside.coordinator.azure_range.virtual_hubs import (
    connection_of,
    hub_routes,
    missing_hub,
    takes_hub_routes,
)

ANY_PORT: Final = (0, 65535)


@dataclass(frozen=True, slots=True)
class Tag:
    """Service tag of a region, such as ``Storage.eastus``."""

    service: str
    region: str = ""

    def __str__(self) -> str:
        return f"{self.service}.{self.region}" if self.region else self.service


RouteEnd = IPv4Network | Tag


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedFlow:
    """Packets of one protocol between two places.

    Attributes:
        protocol: ``tcp``, ``udp`` or ``icmp``.
        ports: First and last destination port.
        name: Host name of the target, for rules by FQDN.
    """

    protocol: str
    source: IPv4Network
    target: RouteEnd
    ports: tuple[int, int] = ANY_PORT
    name: str = ""

    def __str__(self) -> str:
        low, high = self.ports
        ports = "" if self.protocol == "icmp" else f":{low}" if low == high else f":{low}-{high}"
        return f"{self.protocol} {self.source} to {self.target}{ports}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveRoute:
    """Effective route.

    Attributes:
        kind: ``local``, ``peering``, ``appliance``, ``hub``, ``internet``, ``endpoint`` or
            ``none``.
        address: Address of the appliance or of the hub's firewall, or empty.
        source: Route in words.
    """

    kind: str
    address: str = ""
    source: str = ""


# Matching of rules --------------------------------------------------------------------------------


def covers_ports(texts: list[str], ports: tuple[int, int], *, partly: bool) -> bool:
    """Return True if ports of a rule contain a range, or with ``partly`` overlap it.

    Args:
        texts: Ports of a rule: ``*``, a port, or a range such as ``5201-5300``.
        ports: First and last port of the flow.
        partly: True if one common port is enough.
    """
    for text in texts:
        first, _, last = text.partition("-")
        low, high = ANY_PORT if text == "*" else (int(first), int(last or first))
        inside = low <= ports[0] and ports[1] <= high
        if inside or (partly and low <= ports[1] and ports[0] <= high):
            return True
    return False


def covers_place(text: str, place: RouteEnd, tagged: list[IPv4Network], *, partly: bool) -> bool:
    """Return True if an address prefix or tag of a rule contains a place, or overlaps it.

    Args:
        text: ``*``, a prefix, or a service tag.
        place: Place of the flow.
        tagged: Address ranges of the tag ``VirtualNetwork``.
        partly: Also match if the prefix only overlaps the place.
    """
    if text in ("*", "0.0.0.0/0", "Any"):
        return True
    if not text[:1].isdigit():
        service, _, region = text.partition(".")
        if isinstance(place, Tag):
            same = service == place.service and region in ("", place.region)
            return same or service in ("Internet", "AzureCloud")
        if service == "VirtualNetwork":
            return any(place.subnet_of(item) for item in tagged)
        inside = any(place.subnet_of(item) for item in tagged)
        return service == "Internet" and not inside and not place.is_private
    if isinstance(place, Tag):
        return False
    network = IPv4Network(text, strict=False)
    return place.subnet_of(network) or (partly and place.overlaps(network))


# Virtual networks ---------------------------------------------------------------------------------


def network_of(resources: Resources, subnet_id: str) -> Resource | None:
    """Return the virtual network of a subnet.

    Args:
        resources: All visible resources.
        subnet_id: Id of the subnet.

    Returns:
        The network, or None if it is not visible.
    """
    return resources.get(parent_id(subnet_id))


def peering(resources: Resources, near_id: str, far_id: str) -> Resource | None:
    """Return the peering of a network with another one.

    Args:
        resources: All visible resources.
        near_id: Network that owns the peering.
        far_id: Network that the peering leads to. Case is ignored.

    Returns:
        The peering. None if the networks are not peered.
    """
    for item in resources.children(near_id, "virtualNetworkPeerings"):
        remote = reference(properties(item), "remoteVirtualNetwork")
        if remote.lower() == far_id.lower():
            return item
    return None


def _peered(resources: Resources, near_id: str) -> Iterator[tuple[Resource, list[IPv4Network]]]:
    """Yield the working peerings of a network with the address space of the remote network."""
    for item in resources.children(near_id, "virtualNetworkPeerings"):
        remote_id = reference(properties(item), "remoteVirtualNetwork")
        back = peering(resources, remote_id, near_id)
        if back is not None and properties(item).get("allowVirtualNetworkAccess"):
            yield item, address_space(resources.get(remote_id))


def tagged_networks(resources: Resources, subnet_id: str) -> list[IPv4Network]:
    """Return the address ranges of the tag ``VirtualNetwork`` in a subnet.

    They are the network's own space, the spaces of its peers, and the prefixes of its routes.

    Args:
        resources: All visible resources.
        subnet_id: Subnet whose security group has the rule with the tag.
    """
    near_id = parent_id(subnet_id)
    ranges = list(address_space(resources.get(near_id)))
    for _, space in _peered(resources, near_id):
        ranges += space
    table_id = reference(properties(resources.get(subnet_id)), "routeTable")
    for route in resources.children(table_id, "routes"):
        prefix = properties(route)["addressPrefix"]
        if prefix[:1].isdigit() and prefix != "0.0.0.0/0":
            ranges.append(IPv4Network(prefix))
    return ranges


def effective_route(trace: Trace, subnet_id: str, target: RouteEnd) -> EffectiveRoute:
    """Return the route of a subnet to a place, like *effective routes* in the portal.

    The longest prefix wins, and a user route wins over a route of Azure with the same prefix. The
    route of a service endpoint wins over all of them.

    Args:
        trace: Trace to add a failed hop to.
        subnet_id: Subnet of the sender.
        target: Destination network or service tag.

    Raises:
        Stop: Subnet or route table is not visible, or a private target has no connection.
    """
    resources = trace.resources
    subnet = resources.get(subnet_id)
    if subnet is None:
        raise trace.fail("route", f"subnet {short(subnet_id)} is not visible", subnet_id)
    fields = properties(subnet)
    if isinstance(target, Tag) and target.service == "Storage":
        services = [item.get("service") for item in fields.get("serviceEndpoints") or ()]
        if "Microsoft.Storage" in services:
            return EffectiveRoute(kind="endpoint", source="service endpoint Microsoft.Storage")
    table_id = reference(fields, "routeTable")
    if table_id and resources.get(table_id) is None:
        raise trace.fail("route", f"route table {short(table_id)} is not visible", table_id)
    candidates = [(0, 0, EffectiveRoute(kind="internet", source="default route"))]
    for item in resources.children(table_id, "routes"):
        candidates += _user_route(trace, item, target)
    near_id = parent_id(subnet_id)
    connection = connection_of(resources, near_id)
    if properties(connection).get("enableInternetSecurity"):
        source = f"{(connection or {})['name']} sends internet traffic to its hub"
        candidates.append((0, 1, EffectiveRoute(kind="none", source=source)))
    if isinstance(target, IPv4Network):
        candidates += _network_candidates(resources, near_id, target)
        candidates += _hub_candidates(trace, near_id, table_id, target)
    best = max(candidates, key=lambda item: item[:2])[2]
    if best.kind == "internet" and isinstance(target, IPv4Network) and target.is_private:
        _require_connection(trace, subnet_id, table_id)
    return best


def _network_candidates(
    resources: Resources, network_id: str, target: IPv4Network
) -> Iterator[tuple[int, int, EffectiveRoute]]:
    for space in address_space(resources.get(network_id)):
        if target.subnet_of(space):
            yield space.prefixlen, 0, EffectiveRoute(kind="local", source="same network")
    for item, spaces in _peered(resources, network_id):
        for space in spaces:
            if target.subnet_of(space):
                route = EffectiveRoute(kind="peering", source=f"peering {item['name']}")
                yield space.prefixlen, 0, route


def _hub_candidates(
    trace: Trace, network_id: str, table_id: str, target: IPv4Network
) -> Iterator[tuple[int, int, EffectiveRoute]]:
    if takes_hub_routes(trace.resources, table_id):
        for prefix, address, source in hub_routes(trace, network_id):
            if target.subnet_of(prefix):
                yield (
                    prefix.prefixlen,
                    0,
                    EffectiveRoute(kind="hub", address=address, source=source),
                )


def _require_connection(trace: Trace, subnet_id: str, table_id: str) -> None:
    """Fail with the hub's owner if a table is made for the routes of a hub, and none gives any."""
    resources = trace.resources
    hub_id = missing_hub(resources)
    made_for_hub = bool(table_id) and takes_hub_routes(resources, table_id)
    if hub_id and made_for_hub and not resources.is_foreign(subnet_id):
        name = short(parent_id(subnet_id))
        raise trace.fail("route", f"{name} has no connection with the virtual hub", hub_id)


def _user_route(
    trace: Trace, item: Resource, target: RouteEnd
) -> Iterator[tuple[int, int, EffectiveRoute]]:
    fields = properties(item)
    prefix = fields["addressPrefix"]
    if not prefix[:1].isdigit():
        return
    network = IPv4Network(prefix, strict=False)
    if isinstance(target, IPv4Network):
        if network.overlaps(target) and not target.subnet_of(network):
            text = f"route {item['name']} ({prefix}) covers only a part of {target}"
            raise trace.fail("route", text, item["id"])
        if not target.subnet_of(network):
            return
    elif network.prefixlen:
        return
    kinds = {"VirtualAppliance": "appliance", "Internet": "internet", "VnetLocal": "local",
             "None": "none"}  # fmt: skip
    kind = kinds.get(fields["nextHopType"], "none")
    address = fields.get("nextHopIpAddress") or ""
    source = f"route {item['name']} of {short(parent_id(item['id']))}"
    yield network.prefixlen, 1, EffectiveRoute(kind=kind, address=address, source=source)


# Security groups ----------------------------------------------------------------------------------


def group_allows(
    resources: Resources, group_id: str, direction: str, flow: RoutedFlow, tagged: list[IPv4Network]
) -> tuple[bool, str]:
    """Return the decision of a security group on a flow.

    A rule that denies decides if it matches a part of the flow. A rule that allows has to match
    all of it.

    Args:
        resources: All visible resources.
        group_id: Id of the security group.
        direction: ``Outbound`` or ``Inbound``.
        flow: Flow to check.
        tagged: Address ranges of the tag ``VirtualNetwork``, from :func:`tagged_networks`.

    Returns:
        True if the flow is allowed, and the name of the deciding rule.
    """
    rules = [{**properties(item), "name": item["name"]}
             for item in resources.children(group_id, "securityRules")]  # fmt: skip
    for rule in sorted(rules, key=lambda rule: int(rule["priority"])):
        if rule["direction"] == direction and _matches(rule, flow, tagged):
            return rule["access"] == "Allow", str(rule["name"])
    source = _inside(flow.source, tagged)
    target = isinstance(flow.target, IPv4Network) and _inside(flow.target, tagged)
    if direction == "Inbound":
        return source and target, "Azure's default rules"
    return (source and target) or not target, "Azure's default rules"


def _inside(place: IPv4Network, tagged: list[IPv4Network]) -> bool:
    return any(place.subnet_of(item) for item in tagged)


def _matches(rule: Mapping[str, Any], flow: RoutedFlow, tagged: list[IPv4Network]) -> bool:
    partly = rule["access"] == "Deny"
    return (
        rule["protocol"].lower() in ("*", flow.protocol)
        and any(covers_place(text, flow.source, tagged, partly=partly)
                for text in _listed(rule, "sourceAddressPrefix", "es"))
        and any(covers_place(text, flow.target, tagged, partly=partly)
                for text in _listed(rule, "destinationAddressPrefix", "es"))
        and covers_ports(_listed(rule, "sourcePortRange", "s") or ["*"], ANY_PORT, partly=partly)
        and ((flow.protocol == "icmp" and "*" in _listed(rule, "destinationPortRange", "s"))
             or covers_ports(_listed(rule, "destinationPortRange", "s"), flow.ports, partly=partly))
    )  # fmt: skip


def _listed(rule: Mapping[str, Any], name: str, plural: str) -> list[str]:
    return [*([rule[name]] if rule.get(name) else []), *(rule.get(name + plural) or ())]


def pass_groups(
    trace: Trace, subnet_id: str, group_id: str, direction: str, flow: RoutedFlow
) -> None:
    """Check the groups of an interface and of its subnet.

    Args:
        trace: Trace to add the hop to.
        subnet_id: Subnet of the interface.
        group_id: Security group of the interface itself, or an empty string.
        direction: ``Outbound`` or ``Inbound``.
        flow: Flow to check.

    Raises:
        Stop: A group denies the flow, is not visible, or a subnet of the range has no group.
    """
    resources = trace.resources
    hop = "group out" if direction == "Outbound" else "group in"
    subnet_group = reference(properties(resources.get(subnet_id)), "networkSecurityGroup")
    names = []
    for one in filter(None, (subnet_group, group_id)):
        if resources.get(one) is None:
            raise trace.fail(hop, f"security group {short(one)} is not visible", one)
        tagged = tagged_networks(resources, subnet_id)
        allowed, rule = group_allows(resources, one, direction, flow, tagged)
        if not allowed:
            raise trace.fail(hop, f"{short(one)}: rule {rule} denies {flow}", one)
        names.append(f"{short(one)}: {rule}")
    if not names:
        subnet = resources.get(subnet_id)
        if subnet is not None and not resources.is_foreign(subnet_id):
            text = (
                f"subnet {short(subnet_id)} of {short(parent_id(subnet_id))} has no security group"
            )
            raise trace.fail(hop, text)
    trace.ok(hop, " and ".join(names) or "no group")


# From subnet to subnet ----------------------------------------------------------------------------


def cross_peering(trace: Trace, near_id: str, far_id: str, *, forwarded: bool) -> None:
    """Check the peering over which a packet enters a network.

    Args:
        trace: Trace to add the hop to.
        near_id: Network that the packet leaves.
        far_id: Network that the packet enters.
        forwarded: True if a device in the near network forwards the packet.

    Raises:
        Stop: A peering is missing in one direction, or does not accept the packet.
    """
    resources = trace.resources
    if near_id.lower() == far_id.lower():
        return
    names = f"{short(near_id)} and {short(far_id)}"
    for one, other in ((near_id, far_id), (far_id, near_id)):
        item = peering(resources, one, other)
        if item is None:
            text = f"no peering from {short(one)} to {short(other)}"
            raise trace.fail("peering", text, one)
        if not properties(item).get("allowVirtualNetworkAccess"):
            raise trace.fail(
                "peering", f"{item['name']} of {short(one)} has no network access", one
            )
    if forwarded and not properties(peering(resources, far_id, near_id)).get(
        "allowForwardedTraffic"
    ):
        raise trace.fail(
            "peering", f"{short(far_id)} accepts no forwarded traffic of {short(near_id)}", far_id
        )
    trace.ok("peering", names)


def subnet_of_address(resources: Resources, address: str) -> Resource | None:
    """Return the subnet of an address.

    Args:
        resources: All visible resources.
        address: IPv4 address.

    Returns:
        The subnet. None if no visible subnet contains the address.

    Raises:
        ValueError: The text is not an IPv4 address.
    """
    place = IPv4Network(address)
    for item in resources.of_kind("subnets"):
        if any(place.subnet_of(prefix) for prefix in prefixes(item)):
            return item
    return None


def translated(
    flow: RoutedFlow,
    *,
    source: IPv4Network | None = None,
    target: RouteEnd | None = None,
    port: int | None = None,
) -> RoutedFlow:
    """Return a flow after a device has translated its addresses.

    Args:
        flow: Flow as it arrives at the device.
        source: New source network. None does not change it.
        target: New destination. None does not change it.
        port: New destination port, instead of the range of ports. None does not change them.
    """
    return replace(
        flow,
        source=flow.source if source is None else source,
        target=flow.target if target is None else target,
        ports=flow.ports if port is None else (port, port),
    )
