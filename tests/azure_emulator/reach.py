"""Reachability checks of a range: security groups, routes, peerings and firewall rules.

The flows come from the environment of the VMs (ports). Each is followed like in Azure: out of the
sender's subnet, by its routes, through the device under test, and into the receiver's subnet.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address, ip_network
from typing import Final

import yaml

from tests.azure_emulator.azure_refusals import Resource, Store

# Service tags and ports by service.
EXCHANGE: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "clients": (("Storage", 443), ("ServiceBus", 5671)),
    "servers": (("Storage", 443),),
    "coordinator": (("Storage", 443), ("ServiceBus", 5671), ("AzureResourceManager", 443),
                    ("AzureActiveDirectory", 443)),
}  # fmt: skip
PRIVATE: Final = frozenset({"Storage", "ServiceBus"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Packets from an address to an address or a service tag."""

    protocol: str
    source: str
    target: str
    port: int

    def __str__(self) -> str:
        return f"{self.protocol} {self.source} to {self.target}:{self.port}"


def of_kind(store: Store, kind: str) -> list[Resource]:
    return [item for item in store.values() if item["type"].lower().endswith("/" + kind)]


def written_files(profile: Resource) -> dict[str, str]:
    """Return the files that cloud-init writes on a machine, by path."""
    reported = yaml.safe_load(base64.b64decode(profile["osProfile"]["customData"]))
    return {item["path"]: item["content"] for item in reported["write_files"]}


def environment(profile: Resource) -> dict[str, str]:
    """Return the environment of a machine's service."""
    lines = written_files(profile)["/etc/broadside/environment"].split("\n")
    return dict(line.split("=", 1) for line in lines if line)


def faults(store: Store, mine: Store) -> Iterator[str]:
    """Yield blocked flows. ``mine`` holds the range's resources by id."""
    homes = dict(_homes(store, mine))
    yield from _traffic(store, mine, homes)
    for role, subnet in homes.items():
        yield from _exchange(store, mine, role, subnet)
    yield from _accounts(mine, homes)
    yield from _bastions(store, mine, homes)


def _homes(store: Store, mine: Store) -> Iterator[tuple[str, Resource]]:
    """Yield the range's subnets of clients, servers and coordinator."""
    for item in of_kind(mine, "virtualmachinescalesets"):
        profile = item["properties"]["virtualMachineProfile"]
        nic = profile["networkProfile"]["networkInterfaceConfigurations"][0]["properties"]
        role = f"{environment(profile)['BROADSIDE_AGENT_ROLE']}s"
        yield from _home(store, mine, role, nic)
    for item in of_kind(mine, "networkinterfaces"):
        if item["name"].endswith("coordinator"):
            yield from _home(store, mine, "coordinator", item["properties"])


def _home(store: Store, mine: Store, role: str, nic: Resource) -> Iterator[tuple[str, Resource]]:
    key = nic["ipConfigurations"][0]["properties"]["subnet"]["id"].lower()
    if key in mine:
        yield role, store[key]


def _traffic(store: Store, mine: Store, homes: Mapping[str, Resource]) -> Iterator[str]:
    if not {"clients", "servers"} <= homes.keys():
        return
    clients, servers = homes["clients"], homes["servers"]
    one, other = _address(clients), _address(servers)
    fields = {
        f"{environment(profile)['BROADSIDE_AGENT_ROLE']}s": environment(profile)
        for item in of_kind(mine, "virtualmachinescalesets")
        for profile in [item["properties"]["virtualMachineProfile"]]
    }
    for role, far in (("clients", other), ("servers", one)):
        networks = fields[role]["BROADSIDE_AGENT_ALLOWED_NETWORKS"].split(",")
        if not any(ip_address(far) in ip_network(item) for item in networks):
            yield f"{role}: BROADSIDE_AGENT_ALLOWED_NETWORKS {networks}: without {far}"
    ports = [int(port) for port in fields["servers"]["BROADSIDE_AGENT_PORTS"].split(",")]
    flows = [(protocol, port) for protocol in ("Tcp", "Udp") for port in ports]
    flows.append(("Udp", int(fields["servers"]["BROADSIDE_AGENT_ECHO_PORT"])))
    hop, back = _hop(store, clients, other), _hop(store, servers, one)
    if hop != back:
        yield f"clients reach servers by {hop}, servers clients by {back}"
    for protocol, port in flows:
        flow = Flow(protocol=protocol, source=one, target=other, port=port)
        yield from _groups(store, flow, clients, servers)
        if hop is not None:
            yield from _appliance(store, mine, flow, hop)
    yield from _joined(store, clients, servers, hop)
    yield from _joined(store, servers, clients, back)


def _joined(store: Store, near: Resource, far: Resource, hop: str | None) -> Iterator[str]:
    """Check peerings from a spoke to the next network, including forwarded traffic."""
    by = far if hop is None else _home_of(store, hop)
    if by is None or _network(by) == _network(near):
        return
    results = [
        item["properties"] for item in of_kind(store, "virtualnetworkpeerings")
        if item["id"].lower().startswith(_network(near) + "/")
        and item["properties"]["remoteVirtualNetwork"]["id"].lower() == _network(by)
    ]  # fmt: skip
    if not results:
        yield f"{near['id']}: no peering with {_network(by)}"
    elif not results[0].get("allowVirtualNetworkAccess"):
        yield f"{near['id']}: its peering with {_network(by)} lets nothing in"
    elif hop is not None and not results[0].get("allowForwardedTraffic"):
        yield f"{near['id']}: its peering with {_network(by)} lets in no forwarded traffic"


def _appliance(store: Store, mine: Store, flow: Flow, hop: str) -> Iterator[str]:
    """Check a firewall's rules if the range wrote them."""
    for firewall in of_kind(store, "azurefirewalls"):
        addresses = [
            item["properties"].get("privateIPAddress")
            for item in firewall["properties"].get("ipConfigurations") or ()
        ]
        policy = (firewall["properties"].get("firewallPolicy") or {}).get("id", "").lower()
        groups = [
            item for item in of_kind(mine, "rulecollectiongroups")
            if item["id"].lower().startswith(f"{policy}/")
        ]  # fmt: skip
        if hop in addresses and groups and not any(_passes(item, flow) for item in groups):
            yield f"{firewall['id']}: no rule for {flow}"


def _passes(group: Resource, flow: Flow) -> bool:
    return any(
        flow.protocol.upper() in {item.upper() for item in rule["ipProtocols"]}
        and any(_is(item, flow.source) for item in rule["sourceAddresses"])
        and any(_is(item, flow.target) for item in rule["destinationAddresses"])
        and any(_has_port(item, flow.port) for item in rule["destinationPorts"])
        for collection in group["properties"]["ruleCollections"]
        if (collection.get("action") or {}).get("type") == "Allow"
        for rule in collection["rules"]
        if rule["ruleType"] == "NetworkRule"
    )


def _exchange(store: Store, mine: Store, role: str, subnet: Resource) -> Iterator[str]:
    endpoints = of_kind(mine, "privateendpoints")
    reported = subnet["properties"]
    gate = (reported.get("natGateway") or {}).get("id", "none").lower()
    has_gate = bool(store.get(gate, {}).get("properties", {}).get("publicIpAddresses"))
    if _hop(store, subnet, "Internet") is not None:
        yield f"{subnet['id']}: traffic to Azure's services is routed to the appliance"
    for service, port in EXCHANGE[role]:
        private = endpoints and service in PRIVATE
        target = (
            _address(store[endpoints[0]["properties"]["subnet"]["id"].lower()])
            if private else service
        )  # fmt: skip
        flow = Flow(protocol="Tcp", source=_address(subnet), target=target, port=port)
        yield from _groups(store, flow, subnet, None)
        if not private and service != "Storage" and not has_gate:
            yield f"{subnet['id']}: no NAT gateway with an address: no way to {service}"


def _accounts(mine: Store, homes: Mapping[str, Resource]) -> Iterator[str]:
    for account in of_kind(mine, "storageaccounts"):
        reported = account["properties"]
        rules = reported.get("networkAcls") or {}
        if (
            rules.get("defaultAction") != "Deny"
            or reported.get("allowSharedKeyAccess") is not False
        ):
            yield f"{account['id']}: open: {rules.get('defaultAction')}, shared keys"
        allowed = {item["id"].lower() for item in rules.get("virtualNetworkRules") or ()}
        for role, subnet in homes.items():
            if not of_kind(mine, "privateendpoints") and subnet["id"].lower() not in allowed:
                yield f"{account['id']}: lets {role} not in"


def _bastions(store: Store, mine: Store, homes: Mapping[str, Resource]) -> Iterator[str]:
    for item in of_kind(mine, "bastionhosts"):
        reported = item["properties"]
        if not reported.get("enableTunneling"):
            yield f"{item['id']}: no tunnel to the coordinator"
        near = store[reported["ipConfigurations"][0]["properties"]["subnet"]["id"].lower()]
        if home := homes.get("coordinator"):
            flow = Flow(protocol="Tcp", source=_address(near), target=_address(home), port=22)
            yield from _groups(store, flow, None, home)


def _groups(store: Store, flow: Flow, near: Resource | None, far: Resource | None) -> Iterator[str]:
    """Check security groups, where the first matching rule decides."""
    for direction, subnet in (("Outbound", near), ("Inbound", far)):
        if subnet is None:
            continue
        key = (subnet["properties"].get("networkSecurityGroup") or {}).get("id", "").lower()
        rules = sorted(
            (item["properties"] for item in of_kind(store, "securityrules")
             if key and item["id"].lower().startswith(f"{key}/")),
            key=lambda rule: int(rule["priority"]),
        )  # fmt: skip
        reported = (rule for rule in rules if rule["direction"] == direction)
        met = next((rule for rule in reported if _meets(rule, flow)), None)
        if met is not None and met["access"] == "Deny":
            yield f"{key.rsplit('/', 1)[1]}: {direction}: refuses {flow}"


def _meets(rule: Resource, flow: Flow) -> bool:
    return (
        rule["protocol"].lower() in ("*", flow.protocol.lower())
        and any(_is(item, flow.source) for item in _some(rule, "sourceAddressPrefix"))
        and any(_is(item, flow.target) for item in _some(rule, "destinationAddressPrefix"))
        and any(_has_port(item, flow.port) for item in _some(rule, "destinationPortRange"))
    )


def _some(rule: Resource, key: str) -> list[str]:
    plural = f"{key}es" if key.endswith("Prefix") else f"{key}s"
    return [*([rule[key]] if rule.get(key) else []), *(rule.get(plural) or ())]


def _is(prefix: str, place: str) -> bool:
    """Return whether a prefix or tag of a rule contains an address or service tag."""
    if prefix == "*":
        return True
    if not place[0].isdigit():
        return prefix.partition(".")[0] == place or prefix == "Internet"
    if not prefix[0].isdigit():
        # All addresses here are in peered networks.
        return prefix == "VirtualNetwork"
    return ip_address(place) in ip_network(prefix)


def _has_port(ports: str, port: int) -> bool:
    low, _, high = ports.partition("-")
    return ports == "*" or int(low) <= port <= int(high or low)


def _hop(store: Store, subnet: Resource, place: str) -> str | None:
    """Return the next hop of the longest matching route, or None for Azure's default routes."""
    key = (subnet["properties"].get("routeTable") or {}).get("id", "").lower()
    routes = [
        item["properties"]
        for item in of_kind(store, "routes")
        if key and item["id"].lower().startswith(f"{key}/")
    ]
    fits = [
        route for route in routes
        if route["addressPrefix"] == "0.0.0.0/0"
        or (place[0].isdigit() and _is(route["addressPrefix"], place))
    ]  # fmt: skip
    best = max(fits, key=lambda item: ip_network(item["addressPrefix"]).prefixlen, default=None)
    return None if best is None else best.get("nextHopIpAddress")


def _prefix(subnet: Resource) -> IPv4Network:
    reported = subnet["properties"]
    return IPv4Network(reported.get("addressPrefix") or reported["addressPrefixes"][0])


def _address(subnet: Resource) -> str:
    # Azure reserves the first four addresses.
    return str(_prefix(subnet)[4])


def _network(subnet: Resource) -> str:
    return str(subnet["id"].lower().rsplit("/", 2)[0])


def _home_of(store: Store, address: str) -> Resource | None:
    """Return the subnet of an address."""
    result = (item for item in of_kind(store, "subnets") if ip_address(address) in _prefix(item))
    return next(result, None)
