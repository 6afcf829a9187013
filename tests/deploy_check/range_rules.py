"""Rules of the range beyond names and types. Each rule is a function that yields faults.

A rule checks literal values and the targets of plain references. It skips unknown values.
Terraform's validations and tests cover these (``deploy/azure/tests``).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.deploy_check.hcl import ROOT, Block, Module, called_folder, expressions
from tests.deploy_check.schema import Schema
from tests.deploy_check.values import UNKNOWN, Target, Values

# The keys are folders.
Modules = Mapping[str, Module]

# Accepted texts of a service by resource type and argument. The schema does not have them.
TAKEN: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("azurerm_firewall", "sku_tier"): frozenset({"Basic", "Standard", "Premium"}),
    ("azurerm_firewall", "sku_name"): frozenset({"AZFW_VNet", "AZFW_Hub"}),
    ("azurerm_firewall_policy", "sku"): frozenset({"Basic", "Standard", "Premium"}),
    ("azurerm_firewall_policy", "threat_intelligence_mode"): frozenset({"Off", "Alert", "Deny"}),
    ("azurerm_servicebus_namespace", "sku"): frozenset({"Standard", "Premium"}),
    # Other SKUs cannot tunnel.
    ("azurerm_bastion_host", "sku"): frozenset({"Standard", "Premium"}),
    # HA ports need this SKU.
    ("azurerm_lb", "sku"): frozenset({"Standard"}),
    ("azurerm_public_ip", "sku"): frozenset({"Standard"}),
    ("azurerm_route", "next_hop_type"): frozenset({"VirtualAppliance"}),
    ("azurerm_linux_virtual_machine_scale_set", "upgrade_mode"): frozenset({"Manual"}),
}
IDPS_MODES: Final = frozenset({"Off", "Alert", "Deny"})

# Required subnet name by the referring type, block and argument.
SUBNETS: Final[Mapping[tuple[str, str, str], str]] = {
    ("azurerm_firewall", "ip_configuration", "subnet_id"): "AzureFirewallSubnet",
    (
        "azurerm_firewall",
        "management_ip_configuration",
        "subnet_id",
    ): "AzureFirewallManagementSubnet",
    ("azurerm_bastion_host", "ip_configuration", "subnet_id"): "AzureBastionSubnet",
}

# Arguments that must be present with this value to prevent access.
SHUT: Final[Mapping[tuple[str, str], Any]] = {
    ("azurerm_storage_account", "allow_nested_items_to_be_public"): False,
    ("azurerm_storage_container", "container_access_type"): "private",
    ("azurerm_servicebus_namespace", "local_auth_enabled"): False,
    ("azurerm_linux_virtual_machine", "disable_password_authentication"): True,
    ("azurerm_linux_virtual_machine_scale_set", "disable_password_authentication"): True,
    ("azurerm_linux_virtual_machine_scale_set", "overprovision"): False,
}

# Groups of Debian's base-passwd, and names that Azure rejects. cloud-init creates a group with the
# name of the login. With the login "operator", useradd exits with 9 and login is impossible.
TAKEN_LOGINS: Final = frozenset(
    {
        "admin", "administrator", "backup", "broadside", "daemon", "games", "guest", "list",
        "mail", "man", "news", "nobody", "operator", "proxy", "root", "staff", "sudo", "sys",
        "user", "users",
    }
)  # fmt: skip

LOCK_MAX_S: Final = 300
# Limits from the queue's contract (exchange/ports.py), and of Azure.
DUPLICATES_S: Final = (600, 604_800)
# Default port of a run (exchange/messages).
VXLAN_PORT: Final = "4789"
VXLAN_WAYS: Final = (("clients", "servers"), ("servers", "clients"))
ANYWHERE: Final = frozenset({"*", "Internet", "0.0.0.0/0"})
_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_ONE_OF: Final = re.compile(r"contains\(\s*(\[[^\]]*\])\s*,\s*var\.(\w+)\s*\)")
_ALLOW_OBJECT: Final = re.compile(r"\bto\s*=\s*\"(\*|Internet|0\.0\.0\.0/0)\"")
_EVERY_PORT: Final = re.compile(r'protocol = "(?!Icmp)\w+", ports = \["\*"\]')
_LOCAL: Final = re.compile(r"\blocal\.(\w+)")
_WAY: Final = re.compile(r"\bfrom = local\.prefixes\.(\w+), to = local\.prefixes\.(\w+)")
_REFERENCE: Final = re.compile(
    r"(?<![\w.\"])(?:(var|local)\.(\w+)|module\.(\w+)(?:\[[^\]]*\])?\.(\w+)|(azurerm_\w+)\.(\w+))"
)

_USE: Final = re.compile(r"(?<![\w.\"])var\.(\w+)(?:\.(\w+))?")
_OBJECT: Final = re.compile(r"\$\{object\(\{(.*)\}\)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """All modules with the values from one set of variables."""

    modules: Modules
    values: Values
    schema: Schema

    def resources_of(self, kind: str) -> Iterator[tuple[str, Module, Block]]:
        """Yield every resource of a type with its position."""
        for module in self.modules.values():
            for (result, name), block in module.resources.items():
                if result == kind:
                    yield f"{module}: {kind}.{name}", module, block


def faults(range_: Range) -> Iterator[str]:
    """Yield the faults of these values, one per line."""
    for rule in RULES:
        yield from rule(range_)


def name_faults(range_: Range) -> Iterator[str]:
    """Yield the faults that do not depend on values, one per line."""
    for rule in NAME_RULES:
        yield from rule(range_)


def seconds(duration: object) -> float | None:
    """Return the seconds of an ISO 8601 duration, or None if it is invalid."""
    result = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if result is None or not any(result.groups()):
        return None
    sizes_s = (86_400, 3600, 60, 1)
    return float(sum(int(n) * s for n, s in zip(result.groups("0"), sizes_s, strict=True)))


# Rules -------------------------------------------------------------------------------------------


def _texts(range_: Range) -> Iterator[str]:
    for (kind, argument), taken in TAKEN.items():
        for place, module, block in range_.resources_of(kind):
            value = range_.values.of(module, block.arguments.get(argument))
            if isinstance(value, str) and value not in taken:
                yield f"{place}: {argument} {value!r}: must be {', '.join(sorted(taken))}"


def _subnets(range_: Range) -> Iterator[str]:
    for (kind, block_name, argument), name in SUBNETS.items():
        for place, module, block in range_.resources_of(kind):
            for inner in block.blocks.get(block_name, ()):
                subnet = range_.values.of(module, inner.arguments.get(argument))
                if isinstance(subnet, Target) and subnet.kind == "azurerm_subnet":
                    result = range_.values.of(subnet.module, subnet.block.arguments.get("name"))
                    if result != name:
                        yield f"{place}.{block_name}: subnet {result!r}: must be named {name}"
                elif subnet is not UNKNOWN or inner.arguments.get(argument) is None:
                    yield f"{place}.{block_name}: {argument} names no subnet"


def _public_access(range_: Range) -> Iterator[str]:
    for (kind, argument), must in SHUT.items():
        for place, module, block in range_.resources_of(kind):
            value = range_.values.of(module, block.arguments.get(argument))
            if value != must:
                shown = "not said" if argument not in block.arguments else repr(value)
                yield f"{place}: {argument}: must be {must}, is {shown}"


def _queue(range_: Range) -> Iterator[str]:
    for place, module, block in range_.resources_of("azurerm_servicebus_queue"):

        def setting(name: str, module: Module = module, block: Block = block) -> Any:
            return range_.values.of(module, block.arguments.get(name))

        lock_s = seconds(setting("lock_duration"))
        if lock_s is None or not 5 <= lock_s <= LOCK_MAX_S:
            yield f"{place}: lock_duration {setting('lock_duration')!r}: must be PT5S to PT5M"
        window_s = seconds(setting("duplicate_detection_history_time_window"))
        least_s, most_s = DUPLICATES_S
        if setting("requires_duplicate_detection") is not True:
            yield f"{place}: requires_duplicate_detection: must be true; jobs are sent again"
        elif window_s is None or not least_s <= window_s <= most_s:
            yield f"{place}: duplicate_detection_history_time_window: must be PT10M to P7D"
        if setting("dead_lettering_on_message_expiration") is not False:
            yield f"{place}: dead_lettering_on_message_expiration: must be false; late is not dead"
        if setting("requires_session") is True:
            yield f"{place}: requires_session: must be false; agents compete for jobs"


def _public_addresses(range_: Range) -> Iterator[str]:
    for place, _, block in range_.resources_of("azurerm_network_interface"):
        for inner in block.blocks.get("ip_configuration", ()):
            if inner.arguments.get("public_ip_address_id") is not None:
                yield f"{place}: public_ip_address_id: no VM has a public address"
    for kind in (
        "azurerm_linux_virtual_machine_scale_set",
        "azurerm_orchestrated_virtual_machine_scale_set",
    ):
        for place, _, block in range_.resources_of(kind):
            for interface in block.blocks.get("network_interface", ()):
                for inner in interface.blocks.get("ip_configuration", ()):
                    if "public_ip_address" in inner.blocks:
                        yield f"{place}: public_ip_address: no VM has a public address"


def _security_groups(range_: Range) -> Iterator[str]:
    """Check that no rule allows traffic to any destination."""
    for place, module, block in range_.resources_of("azurerm_network_security_rule"):
        fields = {name: range_.values.of(module, value) for name, value in block.arguments.items()}
        if fields.get("access") == "Allow":
            yield from _too_wide(place, fields)
    for place, _, block in range_.resources_of("azurerm_network_security_group"):
        for rule in block.arguments.get("security_rule") or ():
            if isinstance(rule, dict) and rule.get("access") == "Allow":
                yield from _too_wide(place, rule)
    for module in range_.modules.values():
        for name, value in module.locals.items():
            for text in _flat(value):
                if match := _ALLOW_OBJECT.search(text):
                    yield f"{module}: local.{name}: a rule to {match[1]}: name the destination"
                if _EVERY_PORT.search(text):
                    yield f"{module}: local.{name}: a rule for every port: name the traffic's"


def _too_wide(prefix: str, fields: Mapping[str, Any]) -> Iterator[str]:
    to = fields.get("destination_address_prefix")
    if to in ANYWHERE or ANYWHERE & set(_listed(fields.get("destination_address_prefixes"))):
        yield f"{prefix}: allows everything to {to or 'anywhere'}: name the destination"
    if fields.get("source_address_prefix") in ANYWHERE and fields.get("direction") == "Inbound":
        yield f"{prefix}: lets anybody in: name the source"


def _firewall_rules(range_: Range) -> Iterator[str]:
    for place, module, block in range_.resources_of(
        "azurerm_firewall_policy_rule_collection_group"
    ):
        for collection in block.blocks.get("network_rule_collection", ()):
            if collection.arguments.get("action") != "Allow":
                continue
            for rule in collection.blocks.get("rule", ()):
                name = f"{place}: rule {rule.arguments.get('name')}"
                for argument in ("source_addresses", "destination_addresses", "destination_fqdns"):
                    if ANYWHERE & set(
                        _listed(range_.values.of(module, rule.arguments.get(argument)))
                    ):
                        yield f"{name}: {argument}: anywhere; name the spokes"
                ports = _listed(range_.values.of(module, rule.arguments.get("destination_ports")))
                if "*" in ports and rule.arguments.get("protocols") != ["ICMP"]:
                    yield f"{name}: destination_ports: every port; name the traffic's"
        if "nat_rule_collection" in block.blocks:
            yield f"{place}: nat_rule_collection: nothing comes in from the internet"


def _tunnels(range_: Range) -> Iterator[str]:
    """Check that VXLAN is allowed in both directions.

    The source port of an outer packet is a hash of the inner packet. Return traffic is a flow of
    its own, and not a reply for a stateful rule.
    """
    for module in range_.modules.values():
        if not any(kind == "azurerm_network_security_rule" for kind, _ in module.resources):
            continue
        allowed = module.locals.get("allowed", {})
        for source, target in VXLAN_WAYS:
            for place, text in (
                # All firewall rules come from this output.
                ("output flows", module.outputs.get("flows")),
                (f"local.allowed.{source}.Outbound", allowed.get(source, {}).get("Outbound")),
                (f"local.allowed.{target}.Inbound", allowed.get(target, {}).get("Inbound")),
            ):
                if (source, target) not in _vxlan_directions(module, str(text)):
                    yield f"{module}: {place}: no rule for VXLAN from {source} to {target}"
    if VXLAN_PORT in _listed(range_.values.of(range_.modules[ROOT], "${var.extra_udp_ports}")):
        yield f"extra_udp_ports {VXLAN_PORT!r}: is let through one way only; set vxlan_port"


def _vxlan_directions(module: Module, setting: str) -> set[tuple[str, str]]:
    """Return the directions in which the named lists of rules allow tunnels."""
    named = [str(module.locals.get(name)) for name in _LOCAL.findall(setting)]
    return {method for text in named if "vxlan_port" in text for method in _WAY.findall(text)}


def _intrusion_detection(range_: Range) -> Iterator[str]:
    for place, module, block in range_.resources_of("azurerm_firewall_policy"):
        tier = range_.values.of(module, block.arguments.get("sku"))
        for inner in block.blocks.get("intrusion_detection", ()):
            mode = range_.values.of(module, inner.arguments.get("mode"))
            if isinstance(mode, str) and mode not in IDPS_MODES:
                yield f"{place}: intrusion_detection: mode {mode!r}: must be Off, Alert or Deny"
            if not inner.dynamic and isinstance(tier, str) and tier != "Premium":
                yield f"{place}: intrusion_detection: a {tier} firewall has none"
    root = range_.modules[ROOT]
    mode = range_.values.of(root, "${var.idps_mode}")
    tier = range_.values.of(root, "${var.firewall_tier}")
    if isinstance(mode, str) and mode != "Off" and isinstance(tier, str) and tier != "Premium":
        yield f"idps_mode {mode!r}: a {tier} firewall detects no intrusions; take Premium"


def _tags(range_: Range) -> Iterator[str]:
    """Check tags, because `broadside down` finds remaining resources by tag."""
    for module in range_.modules.values():
        for (kind, name), block in module.resources.items():
            if range_.schema.takes(kind, "tags") and "tags" not in block.arguments:
                yield f"{module}: {kind}.{name}: has no tags; `broadside down` would not find it"


def _tables(range_: Range) -> Iterator[str]:
    """Check tables. A table of the provider needs the account's shared key for its ACL."""
    accounts = [block for _, _, block in range_.resources_of("azurerm_storage_account")]
    if any(block.literal("shared_access_key_enabled") is False for block in accounts):
        for place, _, _ in range_.resources_of("azurerm_storage_table"):
            yield (
                f"{place}: cannot be made, for shared_access_key_enabled is false and the provider "
                "sets a table's ACL with the key; make it by the Resource Manager"
            )


def _logins(range_: Range) -> Iterator[str]:
    for kind in ("azurerm_linux_virtual_machine", "azurerm_linux_virtual_machine_scale_set"):
        for place, module, block in range_.resources_of(kind):
            name = range_.values.of(module, block.arguments.get("admin_username"))
            if name in TAKEN_LOGINS:
                yield f"{place}: admin_username {name!r}: Debian or Azure has taken that name"


def _registration(range_: Range) -> Iterator[str]:
    """Check provider registration. azurerm 5 registers none, and an empty subscription has none."""
    for name, block in range_.modules[ROOT].providers.items():
        if name == "azurerm" and "resource_providers_to_register" not in block.arguments:
            yield "root: provider azurerm: resource_providers_to_register: not said"


def _documented(range_: Range) -> Iterator[str]:
    for module in range_.modules.values():
        for what, blocks in (("variable", module.variables), ("output", module.outputs)):
            for name, block in blocks.items():
                if not block.arguments.get("description"):
                    yield f"{module}: {what} {name} has no description"
        for name, block in module.variables.items():
            if "type" not in block.arguments:
                yield f"{module}: variable {name} has no type"


def references(range_: Range) -> Iterator[str]:
    """Check that every referenced name exists and that calls are complete."""
    for module in range_.modules.values():
        # Variables and the used members of their objects. "" means the whole object.
        used: dict[str, set[str]] = {}
        parts = (
            module.resources, module.data, module.calls, module.outputs, module.locals,
            module.providers,
        )  # fmt: skip
        for part in parts:
            for text in expressions(part):
                for name, member in _USE.findall(text):
                    used.setdefault(name, set()).add(member)
                for result in _REFERENCE.finditer(text):
                    if fault := _dangling(range_, module, result):
                        yield f"{module}: {fault}"
        for name, variable in sorted(module.variables.items()):
            if name not in used:
                yield f"{module}: variable {name} is not used"
            elif "" not in used[name]:
                for member in sorted(_members(variable) - used[name]):
                    yield f"{module}: variable {name}: {member} is not used"
        for name, call in module.calls.items():
            yield from _call_faults(range_, module, name, call)


def _members(variable: Block) -> set[str]:
    """Return the member names of a variable's object type."""
    match = _OBJECT.fullmatch(str(variable.arguments.get("type")))
    inner = re.sub(r"object\(\{[^}]*\}\)", "object", match[1]) if match else ""
    return set(re.findall(r"(\w+) =", inner))


def _dangling(range_: Range, module: Module, reference: "re.Match[str]") -> str | None:
    kind, name, called, output, resource, resource_name = reference.groups()
    if kind == "var" and name not in module.variables:
        return f"var.{name} is not declared"
    if kind == "local" and name not in module.locals:
        return f"local.{name} is not declared"
    if resource:
        named = (resource, resource_name)
        if named not in module.resources and named not in module.data:
            return f"{resource}.{resource_name} is not declared"
    if called:
        if called not in module.calls:
            return f"module.{called} is not declared"
        target = range_.modules.get(called_folder(module, module.calls[called]))
        if target is not None and output not in target.outputs:
            return f"module.{called} has no output {output}"
    return None


def _call_faults(range_: Range, module: Module, name: str, call: Block) -> Iterator[str]:
    text = f"{module}: module {name}"
    target = range_.modules.get(called_folder(module, call))
    if target is None:
        yield f"{text}: {call.arguments['source']} is no module"
        return
    given = call.arguments.keys() - {"source", "count", "for_each", "depends_on", "providers"}
    for argument in sorted(given - target.variables.keys()):
        yield f"{text}: {target} has no variable {argument}"
    for variable, block in target.variables.items():
        if "default" not in block.arguments and variable not in given:
            yield f"{text}: {variable} is missing"


RULES: Final[tuple[Callable[[Range], Iterator[str]], ...]] = (
    _texts,
    _subnets,
    _public_access,
    _queue,
    _public_addresses,
    _security_groups,
    _firewall_rules,
    _tunnels,
    _intrusion_detection,
    _tags,
    _tables,
    _logins,
)
NAME_RULES: Final[tuple[Callable[[Range], Iterator[str]], ...]] = (
    _registration,
    _documented,
    references,
)


# Variables ---------------------------------------------------------------------------------------


def variable_faults(root: Module, given: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield faults of values for root variables: unknown names and invalid texts."""
    for name in sorted(given.keys() - root.variables.keys()):
        yield f"{prefix}: there is no variable {name}"
    for name, block in root.variables.items():
        value = given.get(name, block.arguments.get("default"))
        for validation in block.blocks.get("validation", ()):
            for result in _ONE_OF.finditer(validation.arguments["condition"]):
                taken = re.findall(r'"([^"]*)"', result[1])
                if result[2] == name and value is not None and value not in taken:
                    yield f"{prefix}: {name} {value!r}: must be {', '.join(taken)}"


def _listed(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _flat(value: Any) -> Iterator[str]:
    """Yield the texts of a local's value, with objects in Terraform's syntax."""
    match value:
        case str():
            yield value
        case Mapping():
            yield " ".join(
                f'{key} = "{inner}"' for key, inner in value.items() if isinstance(inner, str)
            )
            for inner in value.values():
                yield from _flat(inner)
        case list():
            for inner in value:
                yield from _flat(inner)
