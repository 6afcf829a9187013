"""Secured virtual WAN hubs, whose routing intent gives their connections the routes."""

from collections.abc import Iterator
from ipaddress import IPv4Network

from broadside.coordinator.azure_range.resources import (
    Resource,
    Resources,
    parent_id,
    properties,
    reference,
    short,
)
from broadside.coordinator.azure_range.trace import Trace


def takes_hub_routes(resources: Resources, table_id: str) -> bool:
    """Return True if a subnet with this route table takes the routes of gateways and hubs.

    Args:
        resources: All visible resources.
        table_id: Id of the route table. An empty id is a subnet without one.
    """
    return not properties(resources.get(table_id)).get("disableBgpRoutePropagation")


def connection_of(resources: Resources, network_id: str) -> Resource | None:
    """Return the connection of a network with a virtual hub.

    Args:
        resources: All visible resources.
        network_id: Id of the virtual network. Case is ignored.

    Returns:
        The connection. None if the network has none.
    """
    for item in resources.of_kind("hubVirtualNetworkConnections"):
        remote = reference(properties(item), "remoteVirtualNetwork")
        if remote.lower() == network_id.lower():
            return item
    return None


def hub_routes(trace: Trace, network_id: str) -> Iterator[tuple[IPv4Network, str, str]]:
    """Yield prefix, next hop's address and name of the routes that a network gets from its hub.

    Args:
        trace: Trace to add a failed hop to.
        network_id: Id of the virtual network. Without a connection it gets no routes.

    Yields:
        Prefix, private IPv4 address of the next hop (empty if it has none), and name of each route.

    Raises:
        Stop: The hub of the connection is not visible.
    """
    connection = connection_of(trace.resources, network_id)
    if connection is None:
        return
    hub_id = parent_id(connection["id"])
    if trace.resources.get(hub_id) is None:
        raise trace.fail("route", f"virtual hub {short(hub_id)} is not visible", hub_id)
    for table in trace.resources.children(hub_id, "hubRouteTables"):
        for route in properties(table).get("routes") or ():
            firewall = trace.resources.get(route["nextHop"])
            address = (properties(firewall).get("hubIPAddresses") or {}).get("privateIPAddress")
            for prefix in route["destinations"]:
                name = f"{route['name']} of virtual hub {short(hub_id)}"
                yield IPv4Network(prefix), address or "", name


def missing_hub(resources: Resources) -> str | None:
    """Return the owner's hub that a network without a connection lacks, or None without any.

    In a Terraform state, the hubs of other owners are not visible.
    """
    if not resources.is_complete:
        return "(another owner)"
    return next((str(item["id"]) for item in resources.of_kind("virtualHubs")), None)


def cross_hub(trace: Trace, near_id: str, far_id: str) -> None:
    """Check that two networks are connections of one virtual hub.

    Args:
        trace: Trace to add the hop to.
        near_id: Network that the packet leaves.
        far_id: Network that the packet enters.

    Raises:
        Stop: A network has no connection, or the hubs differ.
    """
    near, far = (connection_of(trace.resources, one) for one in (near_id, far_id))
    if near is None or far is None:
        network_id = near_id if near is None else far_id
        hub_id = missing_hub(trace.resources) or ""
        text = f"{short(network_id)} has no connection with a virtual hub"
        raise trace.fail("peering", text, hub_id)
    if parent_id(near["id"]).lower() != parent_id(far["id"]).lower():
        text = f"{near['name']} and {far['name']} are connections of different hubs"
        raise trace.fail("peering", text, near["id"])
    trace.ok("peering", f"{near['name']} and {far['name']} of {short(parent_id(near['id']))}")
