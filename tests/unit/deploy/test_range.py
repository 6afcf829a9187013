"""What is planted in the Terraform files is found, and nothing else is."""

# ruff: noqa: E501 - a planted fault is one row of a table

import dataclasses
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest
import yaml

from broadside.agent.agent_settings import AgentSettings
from broadside.coordinator.cli import load
from broadside.coordinator.cli.range_commands import RangeOutputs
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.documented_limits import DOCUMENTED
from broadside.coordinator.device import policy_switch as firewall_policy
from broadside.coordinator.device.resource_manager import Resource
from broadside.coordinator.device.telemetry.config import open_telemetry
from broadside.coordinator.device.telemetry.device_counter import open_counter
from broadside.coordinator.studies.switch import read_switches
from broadside.exchange.engines import engines
from broadside.exchange.fabric import FabricSettings
from broadside.exchange.messages import Vxlan
from tests.bench.bench_structure import imported_names
from tests.deploy_check import boot, hcl, range_rules
from tests.deploy_check.__main__ import SCHEMA, range_faults, read_files
from tests.deploy_check.schema import Schema
from tests.deploy_check.tools import AZURE, ROOT
from tests.deploy_check.values import Values
from tests.unit.deploy.written import files_of

READ = Schema.read(SCHEMA)
FILES = read_files(AZURE)
NETWORK, FIREWALL = "modules/network/main.tf", "modules/firewall/main.tf"
SECURITY, POLICY = "modules/network/security.tf", "modules/firewall/policy.tf"
TRAFFIC = "modules/rules/main.tf"
QUEUE, STORAGE = "modules/exchange/service_bus.tf", "modules/exchange/storage.tf"
FLEET, COORDINATOR = "modules/fleet/main.tf", "modules/coordinator/main.tf"


def found(files: Mapping[str, str]) -> list[str]:
    return list(range_faults(dict(files), READ))


def test_the_range_is_sound() -> None:
    assert found(FILES) == []


PLANTED = [
    # names and forms, by the provider's schema
    (FIREWALL, 'sku_name            = "AZFW_VNet"', 'sku_nam = "AZFW_VNet"', "no argument sku_nam"),
    (FIREWALL, 'sku_name            = "AZFW_VNet"', "", "sku_name is missing"),
    (FIREWALL, '    name                 = "data"\n', "", "ip_configuration: name is missing"),
    (QUEUE, "max_delivery_count                      = 5", 'max_delivery_count = "x"', "is no num"),
    (QUEUE, '"azurerm_servicebus_queue" "jobs"', '"azurerm_servicebus_que" "jobs"', "provider has no"),
    (STORAGE, "  sas_policy {\n    expiration_period", "  sas_policies {\n    expiration_period", "no block"),
    (STORAGE, "  blob_properties {", '  sas_policy {\n    expiration_period = "1"\n  }\n\n  blob_properties {', "1 at most"),
    (FLEET, "  os_disk {\n", "  os_dis {\n", "os_disk: 1 at least"),
    (FLEET, "accelerated_networking_enabled =", "enable_accelerated_networking =", "no argument enable_acc"),
    (NETWORK, '  service_endpoint {\n    service = "Microsoft.Storage"\n  }', '  service_endpoint = ["x"]', "is a block"),
    # names within the range
    (FLEET, "var.services", "var.service", "var.service is not declared"),
    ("main.tf", "module.network.subnet_ids.firewall", "module.network.subnets.firewall", "no output subnets"),
    ("main.tf", "  role_settle_s         = var.role_settle_s\n", "", "role_settle_s is missing"),
    ("main.tf", "  role_settle_s         = var", "  role_settles_s = var", "no variable role_settles_s"),
    ("main.tf", "azurerm_resource_group.this[*].id", "azurerm_resource_group.that[*].id", "is not declared"),
    # what a service would refuse
    (FIREWALL, "sku_tier            = var.tier", 'sku_tier = "Gold"', "sku_tier 'Gold'"),
    ("variables_firewall.tf", 'default     = "Premium"', 'default     = "Gold"', "firewall_tier 'Gold'"),
    (NETWORK, '"AzureFirewallSubnet"', '"FirewallSubnet"', "must be named AzureFirewallSubnet"),
    (NETWORK, '"AzureFirewallManagementSubnet"', '"Management"', "AzureFirewallManagementSubnet"),
    (NETWORK, '"AzureBastionSubnet"', '"Bastion"', "must be named AzureBastionSubnet"),
    ("main.tf", "module.network.subnet_ids.firewall", "module.network.subnet_ids.coordinator", "AzureFirewallSubnet"),
    (QUEUE, '"PT10S"', '"PT6M"', "must be PT5S to PT5M"),
    (QUEUE, '"PT10S"', '"60"', "must be PT5S to PT5M"),
    (QUEUE, '"P1D"', '"PT5M"', "must be PT10M to P7D"),
    (QUEUE, "requires_duplicate_detection            = true", "requires_duplicate_detection = false", "must be true"),
    (POLICY, "  dynamic \"intrusion_detection\" {\n    for_each = var.tier == \"Premium\" ? [var.idps_mode] : []\n\n    content {\n      mode = intrusion_detection.value\n    }\n  }", "  intrusion_detection {\n    mode = \"Block\"\n  }", "mode 'Block'"),
    ("examples/soak.tfvars", 'firewall_tier      = "Standard"', 'firewall_tier = "Standard"\nidps_mode = "Deny"', "detects no intrusions"),
    ("examples/soak.tfvars", 'firewall_tier      = "Standard"', 'firewall_tier = "Gold"', "firewall_tier 'Gold'"),
    ("examples/soak.tfvars", "instances ", "instance_count ", "there is no variable instance_count"),
    # doors
    (STORAGE, 'resource "azurerm_storage_container"', 'resource "azurerm_storage_table" "t" {\n  name = "t"\n  storage_account_id = azurerm_storage_account.this.id\n}\n\nresource "azurerm_storage_container"', "cannot be made"),
    ("variables.tf", 'default     = "rangeadmin"', 'default     = "operator"', "has taken that name"),
    (COORDINATOR, "admin_username                  = var.machine.admin_user_name", 'admin_username                  = "staff"', "has taken that name"),
    ("versions.tf", "  resource_providers_to_register  = var", "  # = var", "not said"),
    (QUEUE, "local_auth_enabled            = false", "local_auth_enabled = true", "must be False"),
    (COORDINATOR, '    private_ip_address_allocation = "Dynamic"', '    private_ip_address_allocation = "Dynamic"\n    public_ip_address_id = azurerm_public_ip.bastion[0].id', "no VM has a public address"),
    (FLEET, "      subnet_id = var.subnet_id\n", '      subnet_id = var.subnet_id\n\n      public_ip_address {\n        name = "p"\n      }\n', "no VM has a public address"),
    (SECURITY, 'to = "AzureActiveDirectory"', 'to = "Internet"', "a rule to Internet"),
    (SECURITY, 'to = "AzureActiveDirectory"', 'to = "*"', "a rule to *"),
    (SECURITY, '  access                      = "Deny"', '  access                      = "Allow"', "allows everything to *"),
    (TRAFFIC, "destination_addresses = [rule.value.to]", 'destination_addresses = ["*"]', "anywhere; name the spokes"),
    (TRAFFIC, "destination_ports     = rule.value.ports", 'destination_ports     = ["*"]', "every port"),
    (SECURITY, "ports = var.traffic.udp_ports", 'ports = ["*"]', "every port"),
    (FLEET, "  overprovision = false\n", "", "overprovision: must be False"),
    # tunnels: both ends begin flows
    ("modules/network/outputs.tf", ", local.vxlan_to_clients)", ")", "output flows: no rule for VXLAN from servers to clients"),
    (SECURITY, "vxlan_to_servers = [for port in var.traffic.vxlan_port[*]", "vxlan_to_servers = [for port in [4789]", "output flows: no rule for VXLAN from clients to servers"),
    (SECURITY, "Inbound  = local.vxlan_to_clients", "Inbound  = []", "clients.Inbound: no rule for VXLAN from servers to clients"),
    (SECURITY, "concat([local.to_exchange[1]], local.vxlan_to_clients)", "[local.to_exchange[1]]", "servers.Outbound: no rule for VXLAN from servers"),
    (SECURITY, "local.to_exchange, local.vxlan_to_servers)", "local.to_exchange)", "clients.Outbound: no rule for VXLAN from clients"),
    (SECURITY, "from = local.prefixes.servers, to = local.prefixes.clients", "from = local.prefixes.clients, to = local.prefixes.servers", "clients.Inbound: no rule for VXLAN from servers"),
    ("examples/soak.tfvars", "instances ", 'extra_udp_ports = ["4789"]\ninstances ', "set vxlan_port"),
    # what is found again, and read
    (NETWORK, "  address_space       = [var.cidrs.hub]\n  tags                = var.context.tags\n", "  address_space       = [var.cidrs.hub]\n", "has no tags"),
    ("variables.tf", '  description = "Subscription that pays for the range."\n', "", "has no description"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "whole", "broken", "words"), PLANTED)
def test_a_planted_fault_is_found(path: str, whole: str, broken: str, words: str) -> None:
    assert whole in FILES[path]
    faults = found(FILES | {path: FILES[path].replace(whole, broken, 1)})
    assert any(words in fault for fault in faults), faults


def test_what_is_no_terraform_is_one_line() -> None:
    with pytest.raises(hcl.Unreadable, match=r"main\.tf: "):
        hcl.load({"main.tf": "resource {{"})


def test_a_static_block_of_the_wrong_tier_is_found() -> None:
    text = 'resource "azurerm_firewall_policy" "p" {\n sku = "Standard"\n intrusion_detection {\n mode = "Alert"\n }\n}\n'
    modules = hcl.load({"main.tf": text})
    range_ = range_rules.Range(modules=modules, values=Values(modules, {}), schema=READ)
    assert any("a Standard firewall has none" in fault for fault in range_rules.faults(range_))


# Values that are said twice, in Terraform and in the code ------------------------------------------


def queue_arguments() -> Mapping[str, object]:
    modules = hcl.load(FILES)
    return modules["modules/exchange"].resources["azurerm_servicebus_queue", "jobs"].arguments


def test_the_queue_is_the_one_the_code_was_written_for() -> None:
    """The embedded queue's defaults are the truth; Azure's queue keeps the same."""
    fields = FabricSettings.model_fields
    queue = queue_arguments()
    assert range_rules.seconds(queue["lock_duration"]) == fields["queue_lock_s"].default
    assert queue["max_delivery_count"] == fields["queue_deliveries_max_count"].default
    window_s = range_rules.seconds(queue["duplicate_detection_history_time_window"])
    assert window_s == fields["queue_duplicates_s"].default
    assert queue["name"] == fields["servicebus_queue"].default


def test_the_queue_cuts_no_message_short() -> None:
    """A message's own life, at most an AMQP uint of milliseconds, is what counts."""
    from broadside.exchange.azure import service_bus

    ttl_s = range_rules.seconds(queue_arguments()["default_message_ttl"])
    assert ttl_s is not None
    assert ttl_s >= service_bus._TTL_MAX_MS / 1000


def test_the_tables_have_names_that_the_service_takes() -> None:
    tables = hcl.load(FILES)["modules/exchange"].locals["tables"]
    assert set(tables) == {"control", "results", "private"}
    for name in tables.values():
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]{2,62}", name), name
    assert len(set(tables.values())) == 3


def test_the_logins_that_the_rules_know_are_refused_by_terraform_too() -> None:
    taken = hcl.load(FILES)[hcl.ROOT].locals["taken_names"]
    assert set(taken) >= range_rules.TAKEN_LOGINS


def test_the_rules_know_the_port_of_tunnels() -> None:
    assert int(range_rules.VXLAN_PORT) == Vxlan.model_fields["port"].default


def test_vm_sizes_have_the_bandwidth_that_the_limiter_knows() -> None:
    sizes = hcl.load(FILES)[hcl.ROOT].variables["vm_bits_per_second"].arguments["default"]
    assert "Standard_D4_v4" in sizes
    for size, bits_per_second in sizes.items():
        assert DOCUMENTED.of_vm(size) == bits_per_second, (
            f"{size} is otherwise, or not, in coordinator/core.documented_limits.py"
        )


def test_every_setting_that_a_vm_is_told_exists() -> None:
    for module, service, prefix in (
        ("fleet", AgentSettings, "BROADSIDE_AGENT_"),
        ("coordinator", CoordinatorSettings, "BROADSIDE_"),
    ):
        known = {f"{prefix}{name.upper()}" for name in service.model_fields}
        known |= {f"BROADSIDE_{name.upper()}" for name in FabricSettings.model_fields}
        elsewhere = COORDINATORS if module == "fleet" else set()
        assert set(told(f"modules/{module}/main.tf")) - elsewhere <= known


def test_the_notebooks_range_has_what_each_of_its_scenarios_wants() -> None:
    """Pairs, services and tunnels of every scenario that docs/azure.md names."""
    page = (ROOT / "docs" / "azure.md").read_text()
    section = page.partition("\n## Scenarios on the range\n")[2].partition("\n## ")[0]
    patterns = re.findall(r"`([\w*-]+)`", section)
    scenarios = {
        path.stem: tomllib.loads(path.read_text())
        for path in sorted((ROOT / "coordinator" / "scenarios").glob("*.toml"))
        if any(fnmatch(path.stem, pattern) for pattern in patterns)
    }
    assert {"inspection", "https-1mb", "ftp-64-segments-vxlan", "tunnels-8"} <= set(scenarios)
    path = "examples/notebook.tfvars"
    given = hcl.read_values(FILES[path], path)
    for name, scenario in scenarios.items():
        wanted, pairs_count = scenario["traffic"], scenario["pairs_count"]
        assert pairs_count <= given["instances"], name
        if "engine" in wanted:
            ports = given["service_ports"][wanted["engine"]]
            assert pairs_count <= given["instances"] * len(ports), name
        if name == "inspection":
            assert given["firewall_switch_enabled"]
        if "encapsulation" in wanted:
            assert given["vxlan_port"] == Vxlan.model_fields["port"].default, name


def test_terraform_tells_what_the_command_line_asks_for() -> None:
    outputs = hcl.load(FILES)[hcl.ROOT].outputs
    assert {field.name for field in dataclasses.fields(RangeOutputs)} <= outputs.keys()
    assert {"firewall_id", "tunnel", "fabric"} <= outputs.keys()  # what the runbook asks for


COORDINATORS = {"BROADSIDE_TABLES_PRIVATE", "BROADSIDE_AZURE_MONITOR_ENDPOINT"}


def told(path: str) -> Iterator[str]:
    for text in (FILES[path], FILES["main.tf"]):
        for line in text.splitlines():
            name = line.strip().partition(" ")[0]
            if name.startswith("BROADSIDE_"):
                yield name


# Roles --------------------------------------------------------------------------------------------


def test_no_identity_has_a_role_that_is_wider_than_its_one_thing() -> None:
    """Data roles on one container, three tables, one queue; metrics of one firewall."""
    modules = hcl.load(FILES)
    scopes = {
        "Storage Blob Data Reader": "${var.container_id}",
        "Storage Blob Data Contributor": "${azurerm_storage_container.agent.id}",
        "${each.value.role}": "${var.table_ids[each.value.table]}",
        # Whoever deploys: boot statuses and heartbeats, for `broadside up`.
        "Storage Table Data Reader": "${azurerm_storage_account.this.id}/tableServices/default/"
        "tables/${local.tables.results}",
        "Azure Service Bus Data Receiver": "${var.queue_id}",
        "Azure Service Bus Data Sender": "${var.queue_id}",
        "Monitoring Reader": "${var.firewall_id}",
        "${azurerm_role_definition.modes[0].role_definition_resource_id}": "${var.policy_id}",
    }
    given = [
        (arguments.get("role_definition_name") or arguments["role_definition_id"], scope)
        for module in modules.values()
        for (kind, _), block in module.resources.items()
        if kind == "azurerm_role_assignment"
        for arguments in [block.arguments]
        for scope in [arguments["scope"]]
    ]
    assert set(given) == set(scopes.items())


def test_agents_write_results_and_read_control_and_see_nothing_private() -> None:
    text = FILES["modules/identity/main.tf"]
    given = {
        (identity, table, role)
        for many, one, table_of, table, role in re.findall(
            r'for (table|fleet) in [^:]*: "[^"]*" => \{ identity = ("?\w+"?), table = ("?)(\w+)"?, '
            r'role = "([^"]*)"',
            text,
        )
        for identity in [one.strip('"')]
        for _ in [many, table_of]
    }
    assert given == {
        ("coordinator", "table", "Storage Table Data Contributor"),
        ("fleet", "control", "Storage Table Data Reader"),
        ("fleet", "results", "Storage Table Data Contributor"),
    }


def test_the_one_role_of_our_own_reads_and_writes_a_policy_and_no_rules() -> None:
    modules = hcl.load(FILES)
    roles = [
        block
        for module in modules.values()
        for (kind, _), block in module.resources.items()
        if kind == "azurerm_role_definition"
    ]
    (permissions,) = [inner for role in roles for inner in role.blocks["permissions"]]
    policies = "Microsoft.Network/firewallPolicies"
    assert permissions.arguments == {"actions": [f"{policies}/read", f"{policies}/write"]}


# Switches -----------------------------------------------------------------------------------------


def rendered_switches() -> str:
    text = (AZURE / "modules" / "coordinator" / "switches.toml").read_text()
    policy = "/subscriptions/0/resourceGroups/x/providers/Microsoft.Network/firewallPolicies/p"
    return boot.fill(text, {"policy_id": policy, "idps": "off", "threat": "alert"})


def test_the_coordinators_switches_are_read_and_their_commands_understood(tmp_path: Path) -> None:
    config = boot.Boot(service="coordinator", environment={}, switches=rendered_switches())
    written = files_of(boot.render(FOLDER, config))["/etc/broadside/switches.toml"]
    (tmp_path / "switches.toml").write_text(written)
    switches = read_switches(tmp_path / "switches.toml")
    assert {name: switch.rest for name, switch in switches.items()} == {
        "idps": "off",
        "threat": "alert",
    }
    for switch in switches.values():
        assert switch.states.keys() == {"off", "alert", "deny"}
        assert switch.timeout_s > firewall_policy.PATIENCE_S
        for state, (*program, policy_flag, policy, flag, mode) in switch.states.items():
            assert program == ["/opt/broadside/venv/bin/broadside", "policy-switch"]
            assert (policy_flag, mode.lower()) == ("--policy", state)
            Resource(policy, firewall_policy.POLICY, token=str).close()
            given = (
                load("policy-switch").make_context("x", [policy_flag, policy, flag, mode]).params
            )
            assert [one for one in given.values() if one] == [policy, mode]


def test_the_coordinators_telemetry_file_is_read(tmp_path: Path) -> None:
    text = (AZURE / "modules" / "coordinator" / "telemetry.toml").read_text()
    values = {
        "firewall_id": "/subscriptions/0/resourceGroups/x/providers/Microsoft.Network/"
        "azureFirewalls/f",
        "endpoint": "https://management.usgovcloudapi.net",
        "client_id": "id",
    }
    config = boot.Boot(service="coordinator", environment={}, telemetry=boot.fill(text, values))
    written = files_of(boot.render(FOLDER, config))["/etc/broadside/telemetry.toml"]
    (tmp_path / "telemetry.toml").write_text(written)
    sources = open_telemetry(tmp_path / "telemetry.toml")
    assert [source.counter_name for source in sources] == ["azure-monitor Throughput"]
    assert open_counter(sources) is not None


def test_without_switches_there_is_no_file_of_them() -> None:
    config = boot.Boot(service="coordinator", environment={})
    files = files_of(boot.render(FOLDER, config))
    assert not {"/etc/broadside/switches.toml", "/etc/broadside/telemetry.toml"} & files.keys()


# First boot ---------------------------------------------------------------------------------------

FOLDER = AZURE / "modules" / "boot"
AGENT = boot.Boot(service="agent", environment={"BROADSIDE_AGENT_ROLE": "client"})


def test_a_rendered_cloud_config_holds_its_files_whole() -> None:
    files = files_of(boot.render(FOLDER, AGENT))
    for path, source in (
        ("/etc/broadside/chrony.conf", "chrony.conf"),
        ("/etc/sysctl.d/90-broadside.conf", "sysctl.conf"),
        ("/usr/local/lib/broadside/fetch.py", "fetch.py"),
        ("/usr/local/lib/broadside/host-settings.sh", "host-settings.sh"),
        ("/etc/systemd/system/broadside-host.service", "broadside-host.service"),
        ("/etc/systemd/system/broadside-install.service", "broadside-install.service"),
    ):
        assert files[path].strip() == (FOLDER / "files" / source).read_text().strip(), path
    assert files["/etc/broadside/environment"] == "BROADSIDE_AGENT_ROLE=client\n"
    assert "AmbientCapabilities=\n" in files["/etc/systemd/system/broadside-agent.service"]


@pytest.mark.parametrize(
    ("whole", "broken", "words"),
    [
        ("package_update: false", "package_update: true", "no package archive"),
        ("ssh_pwauth: false", "users: [root]", "users: not among the keys"),
        ("ssh_pwauth: false", "ssh_pwauth: [", "no YAML"),
        ("#cloud-config\n", "", "the first line"),
        ("BROADSIDE_AGENT_ROLE=client", "KEY=Endpoint=sb://x;SharedAccessKey=x", "can be read by every"),
        ("# Sockets of up to", f"# {'x' * 50_000} ", "at most 65535"),
        ('permissions: "0755"', "permissions: 755", "permissions must be said"),
    ],
)  # fmt: skip
def test_a_planted_fault_of_the_cloud_config_is_found(whole: str, broken: str, words: str) -> None:
    rendered = boot.render(FOLDER, AGENT)
    assert whole in rendered
    faults = list(boot.faults(rendered.replace(whole, broken, 1)))
    assert any(words in fault for fault in faults), faults


def test_the_installer_never_gives_up() -> None:
    """The unit is enabled for every boot and started again after every failure, without a limit."""
    rendered = boot.render(FOLDER, AGENT)
    lines = files_of(rendered)["/etc/systemd/system/broadside-install.service"].splitlines()
    assert {"Restart=on-failure", "StartLimitIntervalSec=0", "RestartMaxDelaySec=60"} <= set(lines)
    assert "WantedBy=multi-user.target" in lines
    units = ["broadside-host.service", "broadside-install.service"]
    assert yaml.safe_load(rendered)["runcmd"] == [
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", *units],
        ["systemctl", "start", "--no-block", *units],
    ]


def test_no_client_uses_the_port_that_azure_reserves() -> None:
    lines = (FOLDER / "files" / "sysctl.conf").read_text().splitlines()
    settings = dict(line.split(" = ") for line in lines if line and not line.startswith("#"))
    first, last = map(int, settings["net.ipv4.ip_local_port_range"].split())
    reserved = settings["net.ipv4.ip_local_reserved_ports"]
    assert first <= 65330 <= last and reserved == "65330"


def test_every_sysctl_says_why() -> None:
    lines = (FOLDER / "files" / "sysctl.conf").read_text().splitlines()
    reason = False
    for line in lines:
        reason = (reason or line.startswith("#")) and line != ""
        assert reason or not line, f"{line}: no reason above it"


def test_paths_are_relative() -> None:
    assert all(not PurePosixPath(path).is_absolute() for path in FILES)


# Costs --------------------------------------------------------------------------------------------


def test_the_page_tells_the_prices_of_the_table() -> None:
    """Firewall, fleet and traffic; the small rest is said on the page alone."""
    prices = tomllib.loads((ROOT / "coordinator/prices/azure-2026-11.toml").read_text())
    premium = prices["firewall"]["premium"]
    vcpu_usd = prices["vcpu_hour"]["Standard_D{}_v4"]["usd"]
    fleet_usd = 2 * 30 * 4 * vcpu_usd
    rest_usd = 0.20 + 0.04 + 0.29 + 0.14 + 0.03 + 0.02
    base_usd = premium["deployment_hour"]["usd"] + rest_usd - 0.20
    told = (ROOT / "docs/azure.md").read_text()
    assert f"| {premium['deployment_hour']['usd']:.2f} |" in told
    assert f"| {fleet_usd:.2f} |" in told
    units_usd = (20 - premium["included_units_count"]) * premium["unit_hour"]["usd"]
    assert f"| {units_usd:.2f} |" in told
    with_fleet_usd = base_usd + fleet_usd + 0.20
    with_units_usd = with_fleet_usd + units_usd
    assert f"**{base_usd:.2f} / {with_fleet_usd:.2f} / {with_units_usd:.2f}**" in told
    minute_usd = 60 * 180 / 8 * (premium["gb"]["usd"] + prices["peering"]["usd"])
    assert f"**{minute_usd:.0f} a minute**" in told


# The package --------------------------------------------------------------------------------------


def test_the_package_holds_all_that_an_agent_imports() -> None:
    """By distribution, of every import anywhere in `agent` and `exchange`; a VM cannot fetch more."""
    distributions = {
        "aiohttp": "aiohttp",
        "azure.core": "azure-identity",  # which needs it
        "azure.data": "azure-data-tables",
        "azure.identity": "azure-identity",
        "azure.servicebus": "azure-servicebus",
        "azure.storage": "azure-storage-blob",
        "httpx": "httpx",
        "pydantic": "pydantic",
        "pydantic_core": "pydantic",
        "pydantic_settings": "pydantic-settings",
    }
    needed = set()
    for package in ("agent", "exchange"):
        for path in (ROOT / package).rglob("*.py"):
            for name in imported_names(path.read_text("utf-8"), str(path.relative_to(ROOT))):
                top, _, rest = name.partition(".")
                if top in sys.stdlib_module_names or top == "broadside":
                    continue
                key = f"azure.{rest.partition('.')[0]}" if top == "azure" else top
                needed.add(distributions.get(key, f"unknown: {name} in {path.name}"))
    lines = (AZURE / "bundle" / "agent.in").read_text().splitlines()
    assert needed <= {line for line in lines if not line.startswith("#")}


def test_the_package_holds_every_program_that_an_agent_runs() -> None:
    """The engines' own; and what makes certificates, and tunnels."""
    wheelhouse = runpy.run_path(str(AZURE / "wheelhouse.py"))
    stored = {*wheelhouse["PACKAGES"], *wheelhouse["PROGRAMS"]}
    programs = {
        program.name
        for engine in engines().values()
        for program in (*engine.client_programs, *engine.server_programs)
    }
    assert programs > {"nginx", "lftp"}
    assert programs | {"openssl", "iproute2", "chrony"} <= stored


def test_the_locks_pin_by_hash_and_name_no_index() -> None:
    for name in ("agent.lock", "coordinator.lock"):
        text = (AZURE / "bundle" / name).read_text()
        assert text.count("==") <= text.count("--hash=sha256:")
        assert "--index-url" not in text
        assert "://" not in text


def test_the_provider_is_pinned_by_the_release_s_own_checksums() -> None:
    """Eleven platforms' archives and the manifest of their release, as the registry signs them."""
    lock = (AZURE / ".terraform.lock.hcl").read_text()
    (version,) = re.findall(r"^  version += \"(.+)\"$", lock, re.MULTILINE)
    assert f"\nversion={version}\n" in (AZURE / "provider.sh").read_text()
    wanted = re.search(r'source += "hashicorp/azurerm"\s+version = "(.+)"', FILES["versions.tf"])
    assert wanted is not None
    assert f'constraints = "{wanted[1]}"' in lock
    assert len(set(re.findall(r'"zh:[0-9a-f]{64}",', lock))) == 12
    assert re.search(r'"h1:[A-Za-z0-9+/]{43}=",', lock)
