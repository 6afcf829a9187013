"""Tests for the Terraform files to create a range in Azure."""

# ruff: noqa: E501 - long table rows

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
from broadside.coordinator.device.resource_manager import AzureResource, ResourceManagerAccess
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


def range_faults_of(files: Mapping[str, str]) -> list[str]:
    return list(range_faults(dict(files), READ))


def test_range_has_no_faults() -> None:
    assert range_faults_of(FILES) == []


PLANTED = [
    # names and types in the provider schema
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
    # names in the Terraform files
    (FLEET, "var.services", "var.service", "var.service is not declared"),
    ("main.tf", "module.network.subnet_ids.firewall", "module.network.subnets.firewall", "no output subnets"),
    ("main.tf", "  role_settle_s         = var.role_settle_s\n", "", "role_settle_s is missing"),
    ("main.tf", "  role_settle_s         = var", "  role_settles_s = var", "no variable role_settles_s"),
    ("main.tf", "azurerm_resource_group.this[*].id", "azurerm_resource_group.that[*].id", "is not declared"),
    # These values would be rejected by a service.
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
    # These would allow more access than needed.
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
    # Both ends of a tunnel must be able to send.
    ("modules/network/outputs.tf", ", local.vxlan_to_clients)", ")", "output flows: no rule for VXLAN from servers to clients"),
    (SECURITY, "vxlan_to_servers = [for port in var.traffic.vxlan_port[*]", "vxlan_to_servers = [for port in [4789]", "output flows: no rule for VXLAN from clients to servers"),
    (SECURITY, "Inbound  = local.vxlan_to_clients", "Inbound  = []", "clients.Inbound: no rule for VXLAN from servers to clients"),
    (SECURITY, "concat([local.to_exchange[1]], local.vxlan_to_clients)", "[local.to_exchange[1]]", "servers.Outbound: no rule for VXLAN from servers"),
    (SECURITY, "local.to_exchange, local.vxlan_to_servers)", "local.to_exchange)", "clients.Outbound: no rule for VXLAN from clients"),
    (SECURITY, "from = local.prefixes.servers, to = local.prefixes.clients", "from = local.prefixes.clients, to = local.prefixes.servers", "clients.Inbound: no rule for VXLAN from servers"),
    ("examples/soak.tfvars", "instances ", 'extra_udp_ports = ["4789"]\ninstances ', "set vxlan_port"),
    # These are used to find and describe resources.
    (NETWORK, "  address_space       = [var.cidrs.hub]\n  tags                = var.context.tags\n", "  address_space       = [var.cidrs.hub]\n", "has no tags"),
    ("variables.tf", '  description = "Subscription that pays for the range."\n', "", "has no description"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "valid", "broken", "message"), PLANTED)
def test_finds_injected_fault(path: str, valid: str, broken: str, message: str) -> None:
    assert valid in FILES[path]
    faults = range_faults_of(FILES | {path: FILES[path].replace(valid, broken, 1)})
    assert any(message in fault for fault in faults), faults


def test_invalid_terraform_is_a_one_line_error() -> None:
    with pytest.raises(hcl.Unreadable, match=r"main\.tf: "):
        hcl.load({"main.tf": "resource {{"})


def test_finds_block_of_another_tier() -> None:
    text = 'resource "azurerm_firewall_policy" "p" {\n sku = "Standard"\n intrusion_detection {\n mode = "Alert"\n }\n}\n'
    modules = hcl.load({"main.tf": text})
    range_ = range_rules.Range(modules=modules, values=Values(modules, {}), schema=READ)
    assert any("a Standard firewall has none" in fault for fault in range_rules.faults(range_))


# Values in Terraform and in the code -------------------------------------------------------------


def queue_arguments() -> Mapping[str, object]:
    modules = hcl.load(FILES)
    return modules["modules/exchange"].resources["azurerm_servicebus_queue", "jobs"].arguments


def test_azure_queue_matches_the_embedded_queue() -> None:
    """The queue in Azure uses the default values of the embedded queue."""
    fields = FabricSettings.model_fields
    queue = queue_arguments()
    assert range_rules.seconds(queue["lock_duration"]) == fields["queue_lock_s"].default
    assert queue["max_delivery_count"] == fields["queue_deliveries_max_count"].default
    window_s = range_rules.seconds(queue["duplicate_detection_history_time_window"])
    assert window_s == fields["queue_duplicates_s"].default
    assert queue["name"] == fields["servicebus_queue"].default


def test_queue_does_not_shorten_message_ttl() -> None:
    """The maximum TTL is an AMQP uint in milliseconds."""
    from broadside.exchange.azure import service_bus

    ttl_s = range_rules.seconds(queue_arguments()["default_message_ttl"])
    assert ttl_s is not None
    assert ttl_s >= service_bus._TTL_MAX_MS / 1000


def test_table_names_are_valid_and_unique() -> None:
    tables = hcl.load(FILES)["modules/exchange"].locals["tables"]
    assert set(tables) == {"control", "results", "private"}
    for name in tables.values():
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]{2,62}", name), name
    assert len(set(tables.values())) == 3


def test_terraform_rejects_reserved_login_names() -> None:
    reserved = hcl.load(FILES)[hcl.ROOT].locals["taken_names"]
    assert set(reserved) >= range_rules.TAKEN_LOGINS


def test_rules_use_the_default_vxlan_port() -> None:
    assert int(range_rules.VXLAN_PORT) == Vxlan.model_fields["port"].default


def test_vm_bandwidths_match_documented_limits() -> None:
    sizes = hcl.load(FILES)[hcl.ROOT].variables["vm_bits_per_second"].arguments["default"]
    assert "Standard_D4_v4" in sizes
    for size, bits_per_second in sizes.items():
        assert DOCUMENTED.of_vm(size) == bits_per_second, (
            f"{size} differs from coordinator/core.documented_limits.py"
        )


def test_settings_of_vms_exist() -> None:
    for module, service, prefix in (
        ("fleet", AgentSettings, "BROADSIDE_AGENT_"),
        ("coordinator", CoordinatorSettings, "BROADSIDE_"),
    ):
        known = {f"{prefix}{name.upper()}" for name in service.model_fields}
        known |= {f"BROADSIDE_{name.upper()}" for name in FabricSettings.model_fields}
        elsewhere = COORDINATORS if module == "fleet" else set()
        assert set(setting_names(f"modules/{module}/main.tf")) - elsewhere <= known


def test_notebook_range_supports_the_documented_scenarios() -> None:
    """See if there are enough pairs, services and tunnels for docs/azure.md."""
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
        traffic, pairs_count = scenario["traffic"], scenario["pairs_count"]
        assert pairs_count <= given["instances"], name
        if "engine" in traffic:
            ports = given["service_ports"][traffic["engine"]]
            assert pairs_count <= given["instances"] * len(ports), name
        if name == "inspection":
            assert given["firewall_switch_enabled"]
        if "encapsulation" in traffic:
            assert given["vxlan_port"] == Vxlan.model_fields["port"].default, name


def test_terraform_has_the_outputs_of_the_command_line() -> None:
    outputs = hcl.load(FILES)[hcl.ROOT].outputs
    assert {field.name for field in dataclasses.fields(RangeOutputs)} <= outputs.keys()
    # These are used in the runbook.
    assert {"firewall_id", "tunnel", "fabric"} <= outputs.keys()


COORDINATORS = {"BROADSIDE_TABLES_PRIVATE", "BROADSIDE_AZURE_MONITOR_ENDPOINT"}


def setting_names(path: str) -> Iterator[str]:
    for text in (FILES[path], FILES["main.tf"]):
        for line in text.splitlines():
            name = line.strip().partition(" ")[0]
            if name.startswith("BROADSIDE_"):
                yield name


# Roles --------------------------------------------------------------------------------------------


def test_roles_have_minimal_scopes() -> None:
    """All roles must be limited to the required resource."""
    modules = hcl.load(FILES)
    scopes = {
        "Storage Blob Data Reader": "${var.container_id}",
        "Storage Blob Data Contributor": "${azurerm_storage_container.agent.id}",
        "${each.value.role}": "${var.table_ids[each.value.table]}",
        # This is used by `broadside up` to read the boot status and heartbeats.
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


def test_agents_have_no_access_to_private_tables() -> None:
    text = FILES["modules/identity/main.tf"]
    given = {
        (identity, table, role)
        for kind, name, quote, table, role in re.findall(
            r'for (table|fleet) in [^:]*: "[^"]*" => \{ identity = ("?\w+"?), table = ("?)(\w+)"?, '
            r'role = "([^"]*)"',
            text,
        )
        for identity in [name.strip('"')]
        for _ in [kind, quote]
    }
    assert given == {
        ("coordinator", "table", "Storage Table Data Contributor"),
        ("fleet", "control", "Storage Table Data Reader"),
        ("fleet", "results", "Storage Table Data Contributor"),
    }


def test_custom_role_can_only_read_and_write_the_policy() -> None:
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


def test_rendered_switch_file_is_valid(tmp_path: Path) -> None:
    config = boot.Boot(service="coordinator", environment={}, switches=rendered_switches())
    content = files_of(boot.render(FOLDER, config))["/etc/broadside/switches.toml"]
    (tmp_path / "switches.toml").write_text(content)
    switches = read_switches(tmp_path / "switches.toml")
    assert {name: switch.rest for name, switch in switches.items()} == {
        "idps": "off",
        "threat": "alert",
        "snat": "off",
    }
    for name, switch in switches.items():
        assert switch.states.keys() == (
            {"off", "on"} if name == "snat" else {"off", "alert", "deny"}
        )
        assert switch.timeout_s > firewall_policy.PATIENCE_S
        for state, (*program, policy_flag, policy, flag, mode) in switch.states.items():
            assert program == ["/opt/broadside/venv/bin/broadside", "policy-switch"]
            assert (policy_flag, mode.lower()) == ("--policy", state)
            AzureResource(policy, firewall_policy.POLICY, ResourceManagerAccess(token=str)).close()
            given = (
                load("policy-switch").make_context("x", [policy_flag, policy, flag, mode]).params
            )
            assert [value for value in given.values() if value] == [policy, mode]


@pytest.mark.parametrize("flow_logs", ["", "true"])
def test_rendered_telemetry_file_is_valid(tmp_path: Path, flow_logs: str) -> None:
    text = (AZURE / "modules" / "coordinator" / "telemetry.toml").read_text()
    values = {
        "firewall_id": "/subscriptions/0/resourceGroups/x/providers/Microsoft.Network/"
        "azureFirewalls/f",
        "endpoint": "https://management.usgovcloudapi.net",
        "client_id": "id",
        "flow_logs": flow_logs,
        "logs_endpoint": "https://api.loganalytics.us",
    }
    config = boot.Boot(service="coordinator", environment={}, telemetry=boot.fill(text, values))
    content = files_of(boot.render(FOLDER, config))["/etc/broadside/telemetry.toml"]
    (tmp_path / "telemetry.toml").write_text(content)
    sources = open_telemetry(tmp_path / "telemetry.toml")
    assert "azure-monitor Throughput" in [source.counter_name for source in sources]
    assert len(sources) == (2 if flow_logs else 1)
    assert open_counter(sources) is not None


def test_no_switch_file_without_switches() -> None:
    config = boot.Boot(service="coordinator", environment={})
    files = files_of(boot.render(FOLDER, config))
    assert not {"/etc/broadside/switches.toml", "/etc/broadside/telemetry.toml"} & files.keys()


# First boot ---------------------------------------------------------------------------------------

FOLDER = AZURE / "modules" / "boot"
AGENT = boot.Boot(service="agent", environment={"BROADSIDE_AGENT_ROLE": "client"})


def test_cloud_config_contains_the_files() -> None:
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
    ("valid", "broken", "message"),
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
def test_finds_injected_fault_in_cloud_config(valid: str, broken: str, message: str) -> None:
    rendered = boot.render(FOLDER, AGENT)
    assert valid in rendered
    faults = list(boot.faults(rendered.replace(valid, broken, 1)))
    assert any(message in fault for fault in faults), faults


def test_installer_retries_without_limit() -> None:
    """The unit is started at boot and restarted on any failure."""
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


def test_reserved_azure_port_is_not_ephemeral() -> None:
    lines = (FOLDER / "files" / "sysctl.conf").read_text().splitlines()
    settings = dict(line.split(" = ") for line in lines if line and not line.startswith("#"))
    first, last = map(int, settings["net.ipv4.ip_local_port_range"].split())
    reserved = settings["net.ipv4.ip_local_reserved_ports"]
    assert first <= 65330 <= last and reserved == "65330"


def test_sysctl_settings_have_a_comment() -> None:
    lines = (FOLDER / "files" / "sysctl.conf").read_text().splitlines()
    reason = False
    for line in lines:
        reason = (reason or line.startswith("#")) and line != ""
        assert reason or not line, f"{line}: no comment above the setting"


def test_paths_are_relative() -> None:
    assert all(not PurePosixPath(path).is_absolute() for path in FILES)


# Costs --------------------------------------------------------------------------------------------


def test_prices_on_the_page_match_the_price_table() -> None:
    prices = tomllib.loads((ROOT / "coordinator/prices/azure-2026-11.toml").read_text())
    premium = prices["firewall"]["premium"]
    vcpu_usd = prices["vcpu_hour"]["Standard_D{}_v4"]["usd"]
    fleet_usd = 2 * 30 * 4 * vcpu_usd
    standing = {name: price["usd"] for name, price in prices["standing_hour"].items()}
    parts_usd = {
        "0.038": prices["vm_hour"]["Standard_B2als_v2"]["usd"],
        "0.29": standing["bastion"],
        "0.135": 3 * standing["nat_gateway"],
        "0.025": 5 * standing["public_address"],
        "0.019": standing["servicebus_standard"] + standing["storage"],
    }
    disks_usd = 61 * standing["disk"]
    base_usd = premium["deployment_hour"]["usd"] + sum(parts_usd.values()) + disks_usd / 61
    page = (ROOT / "docs/azure.md").read_text()
    assert f"| {premium['deployment_hour']['usd']:.2f} |" in page
    assert f"| {fleet_usd:.2f} |" in page
    units_usd = (20 - premium["included_units_count"]) * premium["unit_hour"]["usd"]
    assert f"| {units_usd:.2f} |" in page
    for stated, part_usd in (parts_usd | {"0.201": disks_usd}).items():
        assert f"| {stated} |" in page
        assert float(stated) == pytest.approx(part_usd, abs=0.00051)
    with_fleet_usd = base_usd + fleet_usd + disks_usd * 60 / 61
    with_units_usd = with_fleet_usd + units_usd
    assert f"**{base_usd:.2f} / {with_fleet_usd:.2f} / {with_units_usd:.2f}**" in page
    minute_usd = 60 * 180 / 8 * (premium["gb"]["usd"] + prices["peering"]["usd"])
    assert f"**{minute_usd:.0f} a minute**" in page


# The package --------------------------------------------------------------------------------------


def test_bundle_contains_the_imports_of_the_agent() -> None:
    """It is not possible to install packages on a VM, so all imports must be in the bundle."""
    distributions = {
        "aiohttp": "aiohttp",
        # This is a dependency of azure-identity.
        "azure.core": "azure-identity",
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


def test_bundle_contains_the_programs_of_the_agent() -> None:
    """This includes engine programs and tools to create certificates and tunnels."""
    wheelhouse = runpy.run_path(str(AZURE / "wheelhouse.py"))
    bundled = {*wheelhouse["PACKAGES"], *wheelhouse["PROGRAMS"]}
    programs = {
        program.name
        for engine in engines().values()
        for program in (*engine.client_programs, *engine.server_programs)
        # A module is part of the wheel.
        if program.module is None
    }
    assert programs > {"nginx", "lftp"}
    assert programs | {"openssl", "iproute2", "chrony"} <= bundled


def test_locks_pin_hashes_without_an_index() -> None:
    for name in ("agent.lock", "coordinator.lock"):
        text = (AZURE / "bundle" / name).read_text()
        assert text.count("==") <= text.count("--hash=sha256:")
        assert "--index-url" not in text
        assert "://" not in text


def test_provider_is_pinned_by_checksums() -> None:
    """The lock contains checksums for eleven platforms and for the manifest."""
    lock = (AZURE / ".terraform.lock.hcl").read_text()
    (version,) = re.findall(r"^  version += \"(.+)\"$", lock, re.MULTILINE)
    assert f"\nversion={version}\n" in (AZURE / "provider.sh").read_text()
    constraint = re.search(
        r'source += "hashicorp/azurerm"\s+version = "(.+)"', FILES["versions.tf"]
    )
    assert constraint is not None
    assert f'constraints = "{constraint[1]}"' in lock
    assert len(set(re.findall(r'"zh:[0-9a-f]{64}",', lock))) == 12
    assert re.search(r'"h1:[A-Za-z0-9+/]{43}=",', lock)
