"""Traffic between clients and servers, through the device under test and back."""

from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Network
from typing import Final

from broadside.coordinator.azure_range.appliances import device_subnet, forward
from broadside.coordinator.azure_range.machines import Machine
from broadside.coordinator.azure_range.resources import (
    Resources,
    parent_id,
    prefixes,
    properties,
    reference,
    short,
)
from broadside.coordinator.azure_range.routing import (
    RoutedFlow,
    RouteEnd,
    Tag,
    cross_peering,
    effective_route,
    group_allows,
    pass_groups,
    tagged_networks,
)
from broadside.coordinator.azure_range.trace import HopState, Trace, TraceRow, follow
from broadside.coordinator.azure_range.virtual_hubs import cross_hub

# Passive ports of the FTP server (exchange/engines/ftp.py), and the default port of VXLAN.
PASSIVE: Final = (50000, 59999)
VXLAN_PORT: Final = 4789
# A public address, and a port that no VM of a range offers.
_PUBLIC: Final = IPv4Network("1.1.1.1/32")
_UNUSED_PORT: Final = 3389


def traffic(resources: Resources, fleet: list[Machine]) -> Iterator[TraceRow]:
    """Yield a row for each flow of the engines, probes and tunnels, and for closed paths.

    Args:
        resources: All visible resources.
        fleet: The VMs, one of each role.
    """
    by_role = {machine.role: machine for machine in fleet}
    if {"client", "server"} <= by_role.keys():
        client, server = by_role["client"], by_role["server"]
        for need, protocol, ports in _offered(server):
            yield follow(resources, "client", need, partial(
                _deliver, protocol=protocol, ports=ports, near=client, far=server
            ))  # fmt: skip
        if networks := _translated_networks(client, server):
            yield follow(resources, "server", "sources that the firewall translates", partial(
                _accept_translated, server=server, networks=networks
            ))  # fmt: skip
        if "true" in (client.environment.get("BROADSIDE_AGENT_ALLOW_TUNNELS"),
                      server.environment.get("BROADSIDE_AGENT_ALLOW_TUNNELS")):  # fmt: skip
            port = _tunnel_port(resources, server, client)
            for near, far in ((client, server), (server, client)):
                yield follow(resources, near.role, f"vxlan to {far.role}, udp {port}", partial(
                    _tunnel, port=port, near=near, far=far
                ))  # fmt: skip
    for machine in fleet:
        yield follow(
            resources, machine.role, "nothing else", partial(_closed, machine=machine, fleet=fleet)
        )


def _offered(server: Machine) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield need, protocol and ports of everything that a server offers."""
    environment = server.environment
    for text in environment["BROADSIDE_AGENT_PORTS"].split(","):
        for protocol in ("tcp", "udp"):
            yield f"iperf3 {protocol} {text}", protocol, (int(text), int(text))
    for entry in environment.get("BROADSIDE_AGENT_SERVICES", "").split():
        engine, _, texts = entry.partition("=")
        for text in texts.split(","):
            yield f"{engine} tcp {text}", "tcp", (int(text), int(text))
        if engine == "ftp":
            yield "ftp passive ports", "tcp", PASSIVE
    port = int(environment["BROADSIDE_AGENT_ECHO_PORT"])
    yield f"probe echo udp {port}", "udp", (port, port)
    for text in environment.get("BROADSIDE_AGENT_CANARY_PORTS", "").split(",")[:1]:
        for protocol in ("tcp", "udp") if text else ():
            yield f"canary {protocol} {text}", protocol, (int(text), int(text))
    yield "icmp echo", "icmp", (0, 65535)


def _translated_networks(client: Machine, server: Machine) -> list[IPv4Network]:
    """Return the networks that servers accept beside the clients' own: the firewall's units.

    They are the sources while the switch ``snat`` is on.
    """
    listed = server.environment["BROADSIDE_AGENT_ALLOWED_NETWORKS"].split(",")
    networks = [IPv4Network(text) for text in listed if "." in text]
    return [item for item in networks if not any(item.overlaps(one) for one in client.places)]


def _accept_translated(trace: Trace, server: Machine, networks: list[IPv4Network]) -> None:
    _require_visible(trace, server)
    for network in networks:
        for _, protocol, ports in _offered(server):
            if protocol != "icmp":
                flow = RoutedFlow(
                    protocol=protocol, source=network, target=server.places[0], ports=ports
                )
                pass_groups(trace, server.subnet_id, server.group_id, "Inbound", flow)


def _tunnel_port(resources: Resources, near: Machine, far: Machine) -> int:
    """Return the port of the tunnels: the only UDP flow from servers to clients."""
    group_id = reference(properties(resources.get(near.subnet_id)), "networkSecurityGroup")
    for item in resources.children(group_id, "securityRules"):
        rule = properties(item)
        port = str(rule.get("destinationPortRange"))
        if rule["direction"] == "Outbound" and rule["protocol"] == "Udp" and port.isdecimal():
            return int(port)
    return VXLAN_PORT


def _deliver(
    trace: Trace, protocol: str, ports: tuple[int, int], near: Machine, far: Machine
) -> None:
    """Follow a flow from a fleet to the other one, and its answers back."""
    if protocol == "icmp" and not _any_icmp(trace.resources):
        trace.ok("given", "not enabled: no rule names ICMP")
        return
    _check_allowed(trace, near, far)
    flow = RoutedFlow(protocol=protocol, source=near.places[0], target=far.places[0], ports=ports)
    device, out = _follow_flow(trace, flow, near, far)
    _check_return(trace, near, far, device, out)
    _check_listener(trace, far, ports, protocol)


def _tunnel(trace: Trace, port: int, near: Machine, far: Machine) -> None:
    for machine in (near, far):
        unit = machine.files["/etc/systemd/system/broadside-agent.service"]
        if (
            machine.environment.get("BROADSIDE_AGENT_ALLOW_TUNNELS") != "true"
            or "CAP_NET_ADMIN" not in unit
        ):
            raise trace.fail("given", f"{machine.role}: tunnels need the setting and CAP_NET_ADMIN")
    _check_allowed(trace, near, far)
    flow = RoutedFlow(
        protocol="udp", source=near.places[0], target=far.places[0], ports=(port, port)
    )
    device, out = _follow_flow(trace, flow, near, far)
    _check_return(trace, near, far, device, out)


def _any_icmp(resources: Resources) -> bool:
    groups = any(properties(item)["protocol"].lower() == "icmp"
                 for item in resources.of_kind("securityRules"))  # fmt: skip
    return groups or any(
        "ICMP" in [str(protocol).upper() for protocol in rule.get("ipProtocols") or ()]
        for group in resources.of_kind("ruleCollectionGroups")
        for collection in properties(group).get("ruleCollections") or ()
        for rule in collection.get("rules") or ()
    )


def _require_visible(trace: Trace, machine: Machine) -> None:
    """Check that the addresses of a VM are known."""
    if not machine.places:
        text = f"subnet {short(machine.subnet_id)} of the {machine.role}s is not visible"
        raise trace.fail("route", text, machine.subnet_id)


def _check_allowed(trace: Trace, near: Machine, far: Machine) -> None:
    """Check that both agents accept each other's addresses."""
    for machine in (near, far):
        _require_visible(trace, machine)
    for machine, other in ((near, far), (far, near)):
        text = machine.environment["BROADSIDE_AGENT_ALLOWED_NETWORKS"]
        networks = [IPv4Network(item) for item in text.split(",")]
        if not any(other.places[0].subnet_of(network) for network in networks):
            text = f"BROADSIDE_AGENT_ALLOWED_NETWORKS {text} lacks {other.places[0]}"
            raise trace.fail("given", f"{machine.role}: {text}")


def _follow_flow(
    trace: Trace, flow: RoutedFlow, near: Machine, far: Machine
) -> tuple[str, RoutedFlow]:
    """Follow a flow, and return the device's address, or an empty string, and the flow after it."""
    near_id, far_id = parent_id(near.subnet_id), parent_id(far.subnet_id)
    pass_groups(trace, near.subnet_id, near.group_id, "Outbound", flow)
    route = effective_route(trace, near.subnet_id, flow.target)
    if route.kind not in ("appliance", "hub", "peering", "local"):
        text = f"{flow.target} has no route through an appliance or a peering ({route.source})"
        raise trace.fail("route", text, near.subnet_id)
    trace.ok("route", f"{route.source}{f' to {route.address}' if route.address else ''}")
    out = flow
    if route.kind == "appliance":
        subnet = device_subnet(trace, route.address)
        device_id = parent_id(subnet["id"])
        cross_peering(trace, near_id, device_id, forwarded=False)
        out = forward(trace, route.address, flow)
        onward = effective_route(trace, subnet["id"], out.target)
        if onward.kind not in ("peering", "local"):
            text = f"{short(subnet['id'])}: {out.target} is not in a peered network"
            raise trace.fail("route", text, device_id)
        cross_peering(trace, device_id, far_id, forwarded=True)
    elif route.kind == "hub":
        out = forward(trace, route.address, flow)
        cross_hub(trace, near_id, far_id)
    elif route.kind == "peering":
        cross_peering(trace, near_id, far_id, forwarded=False)
    pass_groups(trace, far.subnet_id, far.group_id, "Inbound", out)
    return route.address, out


def _check_return(trace: Trace, near: Machine, far: Machine, device: str, out: RoutedFlow) -> None:
    """Check that answers take the same device. A stateful device drops the others."""
    route = effective_route(trace, far.subnet_id, out.source)
    is_translated = out.source != near.places[0]
    if not is_translated and route.address != device:
        names = device or "no device", route.address or f"no device ({route.source})"
        raise trace.fail(
            "return", f"traffic passes {names[0]}, and its answers pass {names[1]}", far.subnet_id
        )
    if device and not is_translated and route.kind != "hub":
        subnet = device_subnet(trace, device)
        far_id, device_id = parent_id(far.subnet_id), parent_id(subnet["id"])
        cross_peering(trace, far_id, device_id, forwarded=False)
        cross_peering(trace, device_id, parent_id(near.subnet_id), forwarded=True)
    trace.ok("return", route.source)


def _check_listener(trace: Trace, far: Machine, ports: tuple[int, int], protocol: str) -> None:
    numbers = "" if protocol == "icmp" else f" {'-'.join(map(str, dict.fromkeys(ports)))}"
    if not properties(trace.resources.get(far.id)) or not far.bundle.get("service"):
        raise trace.fail("listener", f"no {far.role} offers {protocol}{numbers}")
    trace.ok("listener", f"{short(far.id)} offers {protocol}{numbers}")


# Closed paths -------------------------------------------------------------------------------------


def _closed(trace: Trace, machine: Machine, fleet: list[Machine]) -> None:
    """Check that a VM cannot send to, or receive from, places that no need names."""
    resources, subnet_id = trace.resources, machine.subnet_id
    if resources.is_foreign(subnet_id):
        trace.ok("closed", "decided by the owner of the subnet")
        return
    group_id = reference(properties(resources.get(subnet_id)), "networkSecurityGroup")
    tagged = tagged_networks(resources, subnet_id)
    mine, count = machine.places[0], 0
    for direction, flow in _forbidden(machine, fleet, resources):
        allowed, rule = group_allows(resources, group_id, direction, flow, tagged)
        count += 1
        if allowed:
            raise trace.fail("closed", f"{short(group_id)}: rule {rule} allows {direction} {flow}")
    for other in fleet:
        if {machine.role, other.role} == {"client", "server"}:
            _firewall_is_closed(trace, machine, other)
    trace.ok("closed", f"{count} flows of {mine} that are not needed are denied")


def _forbidden(
    machine: Machine, fleet: list[Machine], resources: Resources
) -> Iterator[tuple[str, RoutedFlow]]:
    """Yield flows of a VM that no need names: unused ports, and used ports of other places."""
    mine = machine.places[0]
    others = [place for other in fleet if other.role != machine.role for place in other.places]
    others += [place for item in resources.of_kind("subnets")
               if not resources.is_foreign(item["id"]) for place in prefixes(item)]  # fmt: skip
    unused = (_UNUSED_PORT, _UNUSED_PORT)
    tags = list(_tags(resources))
    targets: list[RouteEnd] = [_PUBLIC, *tags, *others]
    for protocol in ("tcp", "udp"):
        for target in targets:
            yield (
                "Outbound",
                RoutedFlow(protocol=protocol, source=mine, target=target, ports=unused),
            )
        for source in (_PUBLIC, *others):
            yield "Inbound", RoutedFlow(protocol=protocol, source=source, target=mine, ports=unused)
    for port in (443, 5671):
        yield (
            "Outbound",
            RoutedFlow(protocol="tcp", source=mine, target=_PUBLIC, ports=(port, port)),
        )
    # Servers offer their ports to clients only, and the coordinator its SSH to Bastion only.
    peers = [place for one in fleet if {one.role, machine.role} == {"client", "server"}
             for place in one.places]  # fmt: skip
    bastions = [place for item in resources.of_kind("subnets")
                if item["name"] == "AzureBastionSubnet" for place in prefixes(item)]  # fmt: skip
    peers += [place for client in fleet if (client.role, machine.role) == ("client", "server")
              for place in _translated_networks(client, machine)]  # fmt: skip
    for protocol, ports in _used(machine, fleet):
        for other in others:
            near = any(other.overlaps(place) for place in (*peers, *bastions, mine))
            if not near:
                yield (
                    "Inbound",
                    RoutedFlow(protocol=protocol, source=other, target=mine, ports=ports),
                )
                yield (
                    "Outbound",
                    RoutedFlow(protocol=protocol, source=mine, target=other, ports=ports),
                )


def _tags(resources: Resources) -> Iterator[Tag]:
    """Yield the tags of the services in use, and those of another region."""
    regions = {str(item.get("location", "")).lower() for kind in ("storageAccounts", "namespaces")
               for item in resources.of_kind(kind)}  # fmt: skip
    for service in ("Storage", "ServiceBus"):
        yield from (Tag(service, region) for region in sorted({*regions, "elsewhere"}))
    yield from (Tag("AzureResourceManager"), Tag("AzureActiveDirectory"))


def _used(machine: Machine, fleet: list[Machine]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield protocols and ports that the VM's security group allows to or from its peers."""
    if machine.role == "coordinator":
        yield "tcp", (22, 22)
        return
    for other in fleet:
        if other.role == "server":
            yield from {(protocol, ports) for _, protocol, ports in _offered(other)}
    if machine.environment.get("BROADSIDE_AGENT_ALLOW_TUNNELS") == "true":
        yield "udp", (VXLAN_PORT, VXLAN_PORT)


def _firewall_is_closed(trace: Trace, near: Machine, far: Machine) -> None:
    """Check that the firewall's rules of this range deny ports and places that no engine uses."""
    probe = Trace(resources=trace.resources)
    route = effective_route(probe, near.subnet_id, far.places[0])
    firewalls = [
        item for item in trace.resources.of_kind("azureFirewalls")
        if not trace.resources.is_foreign(item["id"])
        and any(one["properties"].get("privateIPAddress") == route.address
                for one in properties(item).get("ipConfigurations") or ())
    ]  # fmt: skip
    server = far if near.role == "client" else near
    flows = [
        RoutedFlow(protocol=protocol, source=near.places[0], target=target, ports=ports)
        for protocol in ("tcp", "udp")
        for target, ports in ((far.places[0], (_UNUSED_PORT, _UNUSED_PORT)), (_PUBLIC, (443, 443)))
    ]
    for _, protocol, ports in _offered(server):
        target = _PUBLIC if near.role == "client" else far.places[0]
        flows.append(
            RoutedFlow(protocol=protocol, source=near.places[0], target=target, ports=ports)
        )
        flows.append(
            RoutedFlow(protocol=protocol, source=_PUBLIC, target=far.places[0], ports=ports)
        )
    for item in firewalls:
        for flow in flows:
            step = partial(_forward_only, address=route.address, flow=flow)
            row = follow(trace.resources, near.role, "closed", step)
            if row.state is HopState.OK:
                text = f"{item['name']} allows {flow}: {row.hops[-1].text}"
                raise trace.fail("closed", text)


def _forward_only(trace: Trace, address: str, flow: RoutedFlow) -> None:
    forward(trace, address, flow)
