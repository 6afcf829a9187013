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
    return [each for each in store.values() if each["type"].lower().endswith("/" + kind)]


def written_files(profile: Resource) -> dict[str, str]:
    """Return the files that cloud-init writes on a machine, by path."""
    told = yaml.safe_load(base64.b64decode(profile["osProfile"]["customData"]))
    return {each["path"]: each["content"] for each in told["write_files"]}


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
    for each in of_kind(mine, "virtualmachinescalesets"):
        profile = each["properties"]["virtualMachineProfile"]
        nic = profile["networkProfile"]["networkInterfaceConfigurations"][0]["properties"]
        role = f"{environment(profile)['BROADSIDE_AGENT_ROLE']}s"
        yield from _home(store, mine, role, nic)
    for each in of_kind(mine, "networkinterfaces"):
        if each["name"].endswith("coordinator"):
            yield from _home(store, mine, "coordinator", each["properties"])


def _home(store: Store, mine: Store, role: str, nic: Resource) -> Iterator[tuple[str, Resource]]:
    key = nic["ipConfigurations"][0]["properties"]["subnet"]["id"].lower()
    if key in mine:
        yield role, store[key]


def _traffic(store: Store, mine: Store, homes: Mapping[str, Resource]) -> Iterator[str]:
    if not {"clients", "servers"} <= homes.keys():
        return
    clients, servers = homes["clients"], homes["servers"]
    one, other = _address(clients), _address(servers)
    told = {
        f"{environment(profile)['BROADSIDE_AGENT_ROLE']}s": environment(profile)
        for each in of_kind(mine, "virtualmachinescalesets")
        for profile in [each["properties"]["virtualMachineProfile"]]
    }
    for role, far in (("clients", other), ("servers", one)):
        networks = told[role]["BROADSIDE_AGENT_ALLOWED_NETWORKS"].split(",")
        if not any(ip_address(far) in ip_network(each) for each in networks):
            yield f"{role}: BROADSIDE_AGENT_ALLOWED_NETWORKS {networks}: without {far}"
    ports = [int(port) for port in told["servers"]["BROADSIDE_AGENT_PORTS"].split(",")]
    flows = [(protocol, port) for protocol in ("Tcp", "Udp") for port in ports]
    flows.append(("Udp", int(told["servers"]["BROADSIDE_AGENT_ECHO_PORT"])))
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
    found = [
        each["properties"] for each in of_kind(store, "virtualnetworkpeerings")
        if each["id"].lower().startswith(_network(near) + "/")
        and each["properties"]["remoteVirtualNetwork"]["id"].lower() == _network(by)
    ]  # fmt: skip
    if not found:
        yield f"{near['id']}: no peering with {_network(by)}"
    elif not found[0].get("allowVirtualNetworkAccess"):
        yield f"{near['id']}: its peering with {_network(by)} lets nothing in"
    elif hop is not None and not found[0].get("allowForwardedTraffic"):
        yield f"{near['id']}: its peering with {_network(by)} lets in no forwarded traffic"


def _appliance(store: Store, mine: Store, flow: Flow, hop: str) -> Iterator[str]:
    """Check a firewall's rules if the range wrote them."""
    for firewall in of_kind(store, "azurefirewalls"):
        addresses = [
            each["properties"].get("privateIPAddress")
            for each in firewall["properties"].get("ipConfigurations") or ()
        ]
        policy = (firewall["properties"].get("firewallPolicy") or {}).get("id", "").lower()
        groups = [
            each for each in of_kind(mine, "rulecollectiongroups")
            if each["id"].lower().startswith(f"{policy}/")
        ]  # fmt: skip
        if hop in addresses and groups and not any(_passes(each, flow) for each in groups):
            yield f"{firewall['id']}: no rule for {flow}"


def _passes(group: Resource, flow: Flow) -> bool:
    return any(
        flow.protocol.upper() in {each.upper() for each in rule["ipProtocols"]}
        and any(_is(each, flow.source) for each in rule["sourceAddresses"])
        and any(_is(each, flow.target) for each in rule["destinationAddresses"])
        and any(_has_port(each, flow.port) for each in rule["destinationPorts"])
        for collection in group["properties"]["ruleCollections"]
        if (collection.get("action") or {}).get("type") == "Allow"
        for rule in collection["rules"]
        if rule["ruleType"] == "NetworkRule"
    )


def _exchange(store: Store, mine: Store, role: str, subnet: Resource) -> Iterator[str]:
    endpoints = of_kind(mine, "privateendpoints")
    told = subnet["properties"]
    gate = (told.get("natGateway") or {}).get("id", "none").lower()
    has_gate = bool(store.get(gate, {}).get("properties", {}).get("publicIpAddresses"))
    if _hop(store, subnet, "Internet") is not None:
        yield f"{subnet['id']}: what goes to Azure's services is routed to the appliance"
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
        told = account["properties"]
        rules = told.get("networkAcls") or {}
        if rules.get("defaultAction") != "Deny" or told.get("allowSharedKeyAccess") is not False:
            yield f"{account['id']}: open: {rules.get('defaultAction')}, shared keys"
        allowed = {each["id"].lower() for each in rules.get("virtualNetworkRules") or ()}
        for role, subnet in homes.items():
            if not of_kind(mine, "privateendpoints") and subnet["id"].lower() not in allowed:
                yield f"{account['id']}: lets {role} not in"


def _bastions(store: Store, mine: Store, homes: Mapping[str, Resource]) -> Iterator[str]:
    for each in of_kind(mine, "bastionhosts"):
        told = each["properties"]
        if not told.get("enableTunneling"):
            yield f"{each['id']}: no tunnel to the coordinator"
        near = store[told["ipConfigurations"][0]["properties"]["subnet"]["id"].lower()]
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
            (each["properties"] for each in of_kind(store, "securityrules")
             if key and each["id"].lower().startswith(f"{key}/")),
            key=lambda rule: int(rule["priority"]),
        )  # fmt: skip
        told = (rule for rule in rules if rule["direction"] == direction)
        met = next((rule for rule in told if _meets(rule, flow)), None)
        if met is not None and met["access"] == "Deny":
            yield f"{key.rsplit('/', 1)[1]}: {direction}: refuses {flow}"


def _meets(rule: Resource, flow: Flow) -> bool:
    return (
        rule["protocol"].lower() in ("*", flow.protocol.lower())
        and any(_is(each, flow.source) for each in _some(rule, "sourceAddressPrefix"))
        and any(_is(each, flow.target) for each in _some(rule, "destinationAddressPrefix"))
        and any(_has_port(each, flow.port) for each in _some(rule, "destinationPortRange"))
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
        each["properties"]
        for each in of_kind(store, "routes")
        if key and each["id"].lower().startswith(f"{key}/")
    ]
    fits = [
        route for route in routes
        if route["addressPrefix"] == "0.0.0.0/0"
        or (place[0].isdigit() and _is(route["addressPrefix"], place))
    ]  # fmt: skip
    best = max(fits, key=lambda each: ip_network(each["addressPrefix"]).prefixlen, default=None)
    return None if best is None else best.get("nextHopIpAddress")


def _prefix(subnet: Resource) -> IPv4Network:
    told = subnet["properties"]
    return IPv4Network(told.get("addressPrefix") or told["addressPrefixes"][0])


def _address(subnet: Resource) -> str:
    # Azure reserves the first four addresses.
    return str(_prefix(subnet)[4])


def _network(subnet: Resource) -> str:
    return str(subnet["id"].lower().rsplit("/", 2)[0])


def _home_of(store: Store, address: str) -> Resource | None:
    """Return the subnet of an address."""
    found = (each for each in of_kind(store, "subnets") if ip_address(address) in _prefix(each))
    return next(found, None)
