"""Thirty-six planted mistakes in the Terraform files, and the checks that should detect them.

To run it, use ``python -m tests.planted_mistakes``.

The rules of ``make deploy-check`` run first. If a mistake passes them, the Azure emulator is used.
The exit code is 1 if fewer than nine in ten are detected, and 4 if the tools of the emulator are
missing.
"""

# ruff: noqa: E501 - a mistake is one row of a table

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.azure_emulator.applied import applied, faults
from tests.azure_emulator.range_cases import Case, plan_again
from tests.azure_emulator.stage import Missing, Tools, find_tools, set_stage
from tests.deploy_check.__main__ import SCHEMA, range_faults, read_files
from tests.deploy_check.schema import Schema
from tests.deploy_check.tools import AZURE

CAUGHT_MIN_RATIO: Final = 0.9
CASE: Final = Case(name="scale-180g", arguments=("--vars", "examples/scale-180g.tfvars"))
NETWORK, SECURITY = "modules/network/main.tf", "modules/network/security.tf"
PEERING, EGRESS = "modules/network/peering.tf", "modules/network/egress.tf"
STORAGE, IDENTITY = "modules/exchange/storage.tf", "modules/identity/main.tf"
COORDINATOR, FLEET = "modules/coordinator/main.tf", "modules/fleet/main.tf"


@dataclass(frozen=True, slots=True)
class Mistake:
    """Mistake in one file."""

    name: str
    path: str
    original: str
    broken: str


MISTAKES: Final = (
    Mistake("name of a Debian group as login", "variables.tf", '"rangeadmin"', '"operator"'),
    Mistake("wrong name of a firewall subnet", NETWORK, '"AzureFirewallSubnet"', '"Firewall"'),
    Mistake("argument of an older provider", FLEET, "accelerated_networking_enabled =", "enable_accelerated_networking ="),
    Mistake("networks without tags", NETWORK, "  address_space       = [var.cidrs.hub]\n  tags                = var.context.tags\n", "  address_space       = [var.cidrs.hub]\n"),
    Mistake("a queue without duplicate detection", "modules/exchange/service_bus.tf", "requires_duplicate_detection            = true", "requires_duplicate_detection            = false"),
    Mistake("all ports through the firewall", "modules/rules/main.tf", "destination_ports     = rule.value.ports", 'destination_ports     = ["*"]'),
    Mistake("a public address on the coordinator", COORDINATOR, '    private_ip_address_allocation = "Dynamic"', '    private_ip_address_allocation = "Dynamic"\n    public_ip_address_id          = azurerm_public_ip.bastion[0].id'),
    Mistake("a table by the provider's own resource", STORAGE, 'resource "azurerm_storage_container"', 'resource "azurerm_storage_table" "t" {\n  name               = "more"\n  storage_account_id = azurerm_storage_account.this.id\n}\n\nresource "azurerm_storage_container"'),
    Mistake("two subnets that overlap", NETWORK, "address_prefixes                = [cidrsubnet(var.cidrs.hub, 10, 4)]", "address_prefixes                = [cidrsubnet(var.cidrs.hub, 10, 3)]"),
    Mistake("same priority for all rules", SECURITY, "priority = 100 + 10 * index", "priority = 100"),
    Mistake("display name in a service tag", SECURITY, '"Storage.${var.context.location}"', '"Storage.East US"'),
    Mistake("missing resource provider", "clouds.tf", '    "Microsoft.DevTestLab",\n', ""),
    Mistake("unknown role", IDENTITY, 'role = "Storage Table Data Reader"', 'role = "Storage Table Data Viewer"'),
    Mistake("role on an unknown table", "modules/exchange/outputs.tf", "/tables/${name}", "/tables/x${name}"),
    Mistake("agents without read access to the package", IDENTITY, 'resource "azurerm_role_assignment" "package" {\n  for_each = azurerm_user_assigned_identity.this', 'resource "azurerm_role_assignment" "package" {\n  for_each = { for role, it in azurerm_user_assigned_identity.this : role => it if role == "coordinator" }'),
    Mistake("peering in one direction only", PEERING, '"hub_to_servers" {\n  count = local.peered ? 1 : 0', '"hub_to_servers" {\n  count = 0'),
    Mistake("next hop without a device", "main.tf", "  next_hop_address = local.next_hop_address\n", '  next_hop_address = "10.70.0.99"\n'),
    Mistake("no egress to Service Bus", EGRESS, "  subnet_id      = each.value\n", "  subnet_id      = values(local.nat)[0]\n"),
    Mistake("a package in another container", "modules/exchange/outputs.tf", "${azurerm_storage_container.agent.name}/", "packages/"),
    Mistake("shutdown profile with a minimum of one VM", "modules/fleet/shutdown.tf", "        minimum = 0\n", "        minimum = 1\n"),
    Mistake("spoke that rejects forwarded traffic", PEERING, '  remote_virtual_network_id = azurerm_virtual_network.hub[0].id\n  allow_forwarded_traffic   = true', '  remote_virtual_network_id = azurerm_virtual_network.hub[0].id\n  allow_forwarded_traffic   = false'),
    Mistake("coordinator without access to the firewall's metrics", IDENTITY, 'count = var.metrics_granted ? 1 : 0', 'count = 0'),
    Mistake("storage that rejects the agents", STORAGE, "virtual_network_subnet_ids = concat(var.subnet_ids, var.operators.subnet_ids)", "virtual_network_subnet_ids = var.operators.subnet_ids"),
    Mistake("a NAT gateway without an address", EGRESS, 'resource "azurerm_nat_gateway_public_ip_association" "this" {\n  for_each = local.nat', 'resource "azurerm_nat_gateway_public_ip_association" "this" {\n  for_each = {}'),
    Mistake("firewall rules in the wrong direction", "modules/rules/main.tf", "source_addresses      = [rule.value.from]\n        destination_addresses = [rule.value.to]", "source_addresses      = [rule.value.to]\n        destination_addresses = [rule.value.from]"),
    Mistake("fleet without its identity", FLEET, '  identity {\n    type         = "UserAssigned"\n    identity_ids = [var.identity.id]\n  }\n', ""),
    Mistake("unknown image", "variables_fleet.tf", '"13-gen2"', '"13-gen3"'),
    Mistake("scale that the next plan reverts", FLEET, 'ignore_changes = [instances]', 'ignore_changes = [tags]'),
    Mistake("a spoke without its route table", "modules/routes/main.tf", 'resource "azurerm_subnet_route_table_association" "this" {\n  for_each = var.spokes', 'resource "azurerm_subnet_route_table_association" "this" {\n  for_each = { clients = var.spokes["clients"] }'),
    Mistake("SSH from the wrong subnet", SECURITY, 'ports = ["22"], from = local.prefixes.bastion', 'ports = ["22"], from = local.prefixes.endpoints'),
    Mistake("a Bastion that cannot tunnel", "modules/coordinator/bastion.tf", 'tunneling_enabled   = true', 'tunneling_enabled   = false'),
    Mistake("fleets with their own network as target", "main.tf", 'target_prefix                  = each.key == "client" ? module.network.prefixes.servers : join', 'target_prefix                  = each.key == "client" ? module.network.prefixes.clients : join'),
    Mistake("upload before its role is effective", STORAGE, '  depends_on = [terraform_data.role_settles]\n', ''),
    Mistake("budget that begins in the middle of a month", "modules/budget/main.tf", 'YYYY-MM-01', 'YYYY-MM-15'),
    Mistake("wrong name of the coordinator's queue", "main.tf", 'BROADSIDE_SERVICEBUS_QUEUE     = module.exchange.queue_name', 'BROADSIDE_SERVICEBUS_QUEUE     = "job"'),
    Mistake("public storage", STORAGE, 'default_action             = "Deny"', 'default_action             = "Allow"'),
)  # fmt: skip


def broken(mistake: Mistake) -> dict[str, str]:
    """Return the files with the mistake, by path."""
    files = read_files(AZURE)
    if mistake.original not in files[mistake.path]:
        raise ValueError(f"{mistake.name}: {mistake.path} does not contain {mistake.original!r}")
    return files | {mistake.path: files[mistake.path].replace(mistake.original, mistake.broken, 1)}


def caught_by(mistake: Mistake, tools: Tools) -> str | None:
    """Return the detecting check and the start of its message, or None."""
    files = broken(mistake)
    if rules := list(range_faults(files, Schema.read(SCHEMA))):
        return f"deploy-check: {rules[0]}"
    with (
        tempfile.TemporaryDirectory(prefix="mistake-") as folder,
        set_stage(tools, Path(folder)) as stage,
    ):
        (stage.directory / mistake.path).write_text(files[mistake.path])
        done = stage.broadside("up", *CASE.arguments, "--yes")
        if done.returncode:
            lines = re.sub(r"\x1b\[[0-9;]*m", "", done.output).splitlines()
            text = next((line for line in lines if "Error: " in line), lines[-1])
            return f"up: {text.partition('Error: ')[2]}"
        if result := list(faults(applied(stage))):
            return f"after up: {result[0]}"
        for verb in ("up", "scale"):
            if verb == "scale" and (done := stage.broadside("scale", "5")).returncode:
                return f"scale: {done.output.splitlines()[-1]}"
            if plan_again(stage, CASE).returncode:
                return f"plan after {verb}: it is never done"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.planted_mistakes", description=__doc__)
    parser.add_argument("--only", help="part of a mistake's name")
    only = parser.parse_args().only
    try:
        tools = find_tools()
    except Missing as missing:
        sys.stdout.write(f"planted mistakes: not run: {missing}\n")
        return 4
    chosen = [item for item in MISTAKES if only is None or only in item.name]
    caught = 0
    for mistake in chosen:
        by = caught_by(mistake, tools)
        caught += by is not None
        sys.stdout.write(f"{'caught ' if by else 'MISSED '} {mistake.name}: {(by or '')[:160]}\n")
        sys.stdout.flush()
    sys.stdout.write(f"planted mistakes: {caught} of {len(chosen)} caught\n")
    return 0 if caught >= CAUGHT_MIN_RATIO * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
