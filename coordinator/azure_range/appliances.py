"""Devices that forward traffic: Azure Firewall, and VMs behind an internal load balancer."""

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from typing import Any, Final

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
    covers_place,
    covers_ports,
    subnet_of_address,
    translated,
)
from broadside.coordinator.azure_range.trace import Trace

# Azure Firewall does not translate source addresses to these ranges (IANA RFC 1918 and RFC 6598).
NO_TRANSLATION: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
_WEB: Final[Mapping[str, str]] = {"Http": "tcp", "Https": "tcp", "Mssql": "tcp"}


def device_subnet(trace: Trace, address: str) -> Resource:
    """Return the subnet of a next hop.

    Args:
        trace: Trace to add a failed hop to.
        address: IPv4 address of the next hop. An empty one fails the hop.

    Raises:
        Stop: No visible subnet contains the address.
    """
    subnet = subnet_of_address(trace.resources, address) if address else None
    if subnet is None:
        unknown = "" if trace.resources.is_complete else "(another owner)"
        raise trace.fail(
            "appliance", f"next hop {address or 'without address'} is in no subnet", unknown
        )
    return subnet


def forward(trace: Trace, address: str, flow: RoutedFlow) -> RoutedFlow:
    """Return the flow as it leaves the device with an address.

    Args:
        trace: Trace to add the hop to.
        address: Private IPv4 address of the firewall or of the load balancer's frontend.
        flow: Flow as it arrives at the device.

    Returns:
        The flow with the addresses and ports after translation. A load balancer does not change it.

    Raises:
        Stop: No device has the address, or the device drops the flow.
    """
    for firewall in trace.resources.of_kind("azureFirewalls"):
        for item in properties(firewall).get("ipConfigurations") or ():
            if item["properties"].get("privateIPAddress") == address:
                return _through_firewall(trace, firewall, flow)
        if (properties(firewall).get("hubIPAddresses") or {}).get("privateIPAddress") == address:
            return _through_firewall(trace, firewall, flow)
    for balancer in trace.resources.of_kind("loadBalancers"):
        for item in properties(balancer).get("frontendIPConfigurations") or ():
            if item["properties"].get("privateIPAddress") == address:
                _through_balancer(trace, balancer, item)
                return flow
    unknown = "" if trace.resources.is_complete else "(another owner)"
    raise trace.fail(
        "appliance", f"no firewall or load balancer has the next hop {address}", unknown
    )


# Azure Firewall -----------------------------------------------------------------------------------


def _through_firewall(trace: Trace, firewall: Resource, flow: RoutedFlow) -> RoutedFlow:
    """Apply DNAT rules, then network rules, then application rules, each by priority."""
    resources, name = trace.resources, short(firewall["id"])
    policy_id = reference(properties(firewall), "firewallPolicy")
    policy = resources.get(policy_id)
    if policy is None:
        raise trace.fail("firewall", f"{name} has no policy", firewall["id"])
    collections = list(_collections(resources, policy))
    for rule, action in _rules(collections, "NatRule"):
        if _network_rule(resources, rule, flow, partly=action == "Deny"):
            flow = _translate(rule, flow)
    for kind, matches in (("NetworkRule", _network_rule), ("ApplicationRule", _application_rule)):
        for rule, action in _rules(collections, kind):
            if matches(resources, rule, flow, partly=action == "Deny"):
                if action == "Deny":
                    raise trace.fail(
                        "firewall", f"{name}: rule {rule['name']} denies {flow}", policy_id
                    )
                always = kind == "ApplicationRule"
                out = _source_translation(trace, firewall, policy, flow, always=always)
                note = "" if out == flow else f", source becomes {out.source}"
                trace.ok("firewall", f"{name}: rule {rule['name']}{note}")
                return out
    has_groups = any(not resources.is_foreign(item["id"])
              for item in resources.children(policy_id, "ruleCollectionGroups"))  # fmt: skip
    raise trace.fail("firewall", f"{name}: no rule allows {flow}", "" if has_groups else policy_id)


def _collections(resources: Resources, policy: Resource) -> Iterator[Mapping[str, Any]]:
    """Yield the rule collections in the order of processing. A base policy comes first."""
    base = resources.get(reference(properties(policy), "basePolicy"))
    if base is not None:
        yield from _collections(resources, base)
    groups = sorted(resources.children(policy["id"], "ruleCollectionGroups"),
                    key=lambda group: int(properties(group)["priority"]))  # fmt: skip
    for group in groups:
        listed = properties(group).get("ruleCollections") or ()
        yield from sorted(listed, key=lambda collection: int(collection["priority"]))


def _rules(
    collections: list[Mapping[str, Any]], kind: str
) -> Iterator[tuple[Mapping[str, Any], str]]:
    for collection in collections:
        action = str((collection.get("action") or {}).get("type"))
        for rule in collection.get("rules") or ():
            if rule["ruleType"] == kind:
                yield rule, action


def _addresses(resources: Resources, rule: Mapping[str, Any], side: str) -> list[str]:
    groups = [resources.get(item) for item in rule.get(f"{side}IpGroups") or ()]
    listed = [text for group in groups for text in properties(group).get("ipAddresses") or ()]
    return [*(rule.get(f"{side}Addresses") or ()), *listed]


def _network_rule(
    resources: Resources, rule: Mapping[str, Any], flow: RoutedFlow, *, partly: bool
) -> bool:
    protocols = {str(item).lower() for item in rule.get("ipProtocols") or ()}
    names = [str(item).lower() for item in rule.get("destinationFqdns") or ()]
    return (
        bool(protocols & {"any", flow.protocol})
        and any(covers_place(text, flow.source, [], partly=partly)
                for text in _addresses(resources, rule, "source"))
        and (flow.name.lower() in names
             or any(covers_place(text, flow.target, [], partly=partly)
                    for text in _addresses(resources, rule, "destination")))
        and (flow.protocol == "icmp"
             or covers_ports(list(rule.get("destinationPorts") or ()), flow.ports, partly=partly))
    )  # fmt: skip


def _application_rule(
    resources: Resources, rule: Mapping[str, Any], flow: RoutedFlow, *, partly: bool
) -> bool:
    """Match by host name. A client without a name is matched by ``*`` only."""
    names = [str(item).lower() for item in rule.get("targetFqdns") or ()]
    named = flow.name.lower()
    fits = any(
        item == "*" or (named and (named == item or (item[:1] == "*" and named.endswith(item[1:]))))
        for item in names
    )
    tags = bool(rule.get("fqdnTags")) and isinstance(flow.target, Tag)
    return (
        (fits or tags)
        and any(covers_place(text, flow.source, [], partly=partly)
                for text in _addresses(resources, rule, "source"))
        and any(_WEB.get(item["protocolType"]) == flow.protocol
                and flow.ports == (int(item["port"]),) * 2 for item in rule["protocols"])
    )  # fmt: skip


def _translate(rule: Mapping[str, Any], flow: RoutedFlow) -> RoutedFlow:
    address = rule.get("translatedAddress")
    port = rule.get("translatedPort")
    return translated(
        flow,
        target=IPv4Network(address) if address else None,
        port=int(port) if port else None,
    )


def _source_translation(
    trace: Trace, firewall: Resource, policy: Resource, flow: RoutedFlow, *, always: bool
) -> RoutedFlow:
    """Return the flow with the firewall's address as source, if the firewall translates it."""
    ranges = (properties(policy).get("snat") or {}).get("privateRanges") or NO_TRANSLATION
    listed = [text for item in ranges
              for text in (NO_TRANSLATION if item == "IANAPrivateRanges" else (item,))]  # fmt: skip
    is_private = any(covers_place(text, flow.target, [], partly=False) for text in listed)
    if is_private and not always:
        return flow
    if hub_addresses := properties(firewall).get("hubIPAddresses"):
        return translated(flow, source=IPv4Network(hub_addresses["privateIPAddress"]))
    configuration = properties(firewall)["ipConfigurations"][0]["properties"]
    subnet = trace.resources.get(reference(configuration, "subnet"))
    if subnet is None:
        raise trace.fail("firewall", "the firewall's subnet is not visible", firewall["id"])
    return translated(flow, source=prefixes(subnet)[0])


# Load balancer with virtual appliances ------------------------------------------------------------


def _through_balancer(trace: Trace, balancer: Resource, frontend: Mapping[str, Any]) -> None:
    fields, name = properties(balancer), short(balancer["id"])
    rule = next(
        (item["properties"] for item in fields.get("loadBalancingRules") or ()
         if reference(item["properties"], "frontendIPConfiguration").lower()
         == str(frontend["id"]).lower()),
        None,
    )  # fmt: skip
    if rule is None or rule["protocol"] != "All" or rule["frontendPort"] or rule["backendPort"]:
        raise trace.fail(
            "appliance", f"{name} has no rule for all ports (HA ports)", balancer["id"]
        )
    probes = [str(item["id"]).lower() for item in fields.get("probes") or ()]
    if reference(rule, "probe").lower() not in probes:
        raise trace.fail("appliance", f"{name}: the rule has no health probe", balancer["id"])
    pools = rule.get("backendAddressPools") or [rule.get("backendAddressPool") or {}]
    pool_ids = {str(item.get("id", "")).lower() for item in pools}
    members = [
        nic for nic in trace.resources.of_kind("networkInterfaces")
        for item in properties(nic).get("ipConfigurations") or ()
        for pool in item["properties"].get("loadBalancerBackendAddressPools") or ()
        if str(pool["id"]).lower() in pool_ids
    ]  # fmt: skip
    if not members:
        raise trace.fail(
            "appliance", f"{name}: no interface is in the backend pool", balancer["id"]
        )
    for nic in trace.resources.of_kind("networkInterfaces"):
        outside = properties(nic).get("enableIPForwarding") and nic not in members
        if outside and not trace.resources.is_foreign(nic["id"]):
            text = f"{nic['name']} forwards and is not in the backend pool of {name}"
            raise trace.fail("appliance", text, nic["id"])
    network_id = parent_id(reference(frontend["properties"], "subnet")).lower()
    for nic in members:
        configuration = properties(nic)["ipConfigurations"][0]["properties"]
        if parent_id(reference(configuration, "subnet")).lower() != network_id:
            text = f"{nic['name']} is not in the network of {name}"
            raise trace.fail("appliance", text, nic["id"])
        if not properties(nic).get("enableIPForwarding"):
            raise trace.fail("appliance", f"{nic['name']} has no IP forwarding", nic["id"])
        if not any(
            str(item["id"]).lower() == str(nic["id"]).lower()
            for machine in trace.resources.of_kind("virtualMachines")
            for item in properties(machine)["networkProfile"]["networkInterfaces"]
        ):
            raise trace.fail("appliance", f"{nic['name']} belongs to no VM", nic["id"])
    trace.ok("appliance", f"{name}: {len(members)} appliances")
