# Test range with a hub and two spokes, an appliance between them, two fleets, and the services that
# they use. All of this is in a single resource group, so `terraform destroy` deletes everything.
# Existing resources (existing.tf) are only changed if this is allowed by `may_change`.

data "azurerm_client_config" "current" {}

locals {
  tags          = merge(var.tags, { broadside = var.name })
  suffix        = substr(sha1("${var.subscription_id}/${var.name}/${var.location}"), 0, 8)
  bundle_sha256 = filesha256(var.bundle_path)
  has_firewall  = var.appliance == "azure-firewall"

  next_hop_address = one(concat(module.firewall[*].private_address, module.appliance[*].private_address, module.existing_firewall[*].private_address))
  firewall_id      = local.existing_firewall ? var.existing_firewall_id : one(module.firewall[*].id)
  has_metrics      = local.has_firewall || local.existing_firewall
  own_spoke_ids    = { for spoke, id in module.network.network_ids : spoke => id if spoke != "hub" }
  policy_id        = var.firewall_switch_enabled ? one(module.firewall[*].policy_id) : null

  exchange_environment = {
    BROADSIDE_FABRIC               = "azure"
    BROADSIDE_SERVICEBUS_NAMESPACE = module.exchange.servicebus_host
    BROADSIDE_SERVICEBUS_QUEUE     = module.exchange.queue_name
    BROADSIDE_TABLES_ENDPOINT      = module.exchange.tables_endpoint
    BROADSIDE_TABLES_CONTROL       = module.exchange.table_names.control
    BROADSIDE_TABLES_RESULTS       = module.exchange.table_names.results
  }

  coordinator_environment = merge(local.exchange_environment, {
    BROADSIDE_TABLES_PRIVATE         = module.exchange.table_names.private
    BROADSIDE_AZURE_MONITOR_ENDPOINT = local.cloud.metrics
  }, local.nightly_stop == null ? {} : { BROADSIDE_NIGHTLY_STOP = local.nightly_stop })
}

resource "azurerm_resource_group" "this" {
  count = local.own_group ? 1 : 0

  name     = local.names.rg
  location = var.location
  tags     = local.tags
}

data "azurerm_resource_group" "existing" {
  count = local.own_group ? 0 : 1

  name = var.existing_resource_group_name
}

locals {
  group_name = one(concat(azurerm_resource_group.this[*].name, data.azurerm_resource_group.existing[*].name))
  group_id   = one(concat(azurerm_resource_group.this[*].id, data.azurerm_resource_group.existing[*].id))

  # Values for all modules.
  context = {
    name       = var.name
    names      = local.names
    group_name = local.group_name
    group_id   = local.group_id
    location   = var.location
    suffix     = local.suffix
    tags       = local.tags
  }
}

module "network" {
  source = "./modules/network"

  context             = local.context
  cidrs               = { hub = var.hub_cidr, clients = var.clients_cidr, servers = var.servers_cidr }
  translated_enabled  = var.firewall_switch_enabled
  bypass              = var.bypass
  firewall_tier       = var.firewall_tier
  private_endpoints   = var.private_endpoints
  traffic             = { tcp_ports = local.tcp_ports, forbidden_ports = local.forbidden_ports, udp_ports = local.udp_ports, icmp_enabled = var.icmp_enabled, vxlan_port = var.vxlan_port }
  existing_subnet_ids = var.existing_subnet_ids
  flow_logs           = var.firewall_flow_logs
}

module "firewall" {
  source = "./modules/firewall"
  count  = local.has_firewall ? 1 : 0

  context                  = local.context
  tier                     = var.firewall_tier
  zones                    = local.firewall_zones
  subnet_id                = module.network.subnet_ids.firewall
  management_subnet_id     = module.network.subnet_ids.firewall_management
  idps_mode                = var.idps_mode
  threat_intelligence_mode = var.threat_intelligence_mode
  tls_inspection           = var.tls_inspection
}

# Rules for the traffic, in the policy of the range.
module "rules" {
  source = "./modules/rules"
  count  = local.has_firewall ? 1 : 0

  policy_id      = module.firewall[0].policy_id
  group_name     = "traffic"
  priority       = 100
  tls_inspection = var.tls_inspection
  clients_prefix = module.network.prefixes.clients
  flows          = module.network.flows
}

module "existing_firewall" {
  source    = "./modules/existing_firewall"
  count     = local.existing_firewall ? 1 : 0
  providers = { azurerm = azurerm.hub }

  name        = var.name
  firewall_id = var.existing_firewall_id
  may_change  = var.may_change
  spoke_ids   = local.own_spoke_ids

  is_virtual_hub = var.existing_firewall_virtual_hub
}

# The same rules in the policy of an existing firewall, as a group that belongs to the range.
module "existing_rules" {
  source    = "./modules/rules"
  count     = contains(var.may_change, "rules") ? 1 : 0
  providers = { azurerm = azurerm.hub }

  policy_id      = module.existing_firewall[0].policy_id
  group_name     = "${var.name}-traffic"
  priority       = var.existing_rules_priority
  tls_inspection = null
  clients_prefix = module.network.prefixes.clients
  flows          = module.network.flows
}

# The side of the spokes in the peerings with the hub of an existing firewall.
resource "azurerm_virtual_network_peering" "spoke_to_existing_hub" {
  for_each = local.existing_firewall && local.own_spokes && !var.existing_firewall_virtual_hub ? toset(["clients", "servers"]) : []

  name                      = "firewall"
  resource_group_name       = local.group_name
  virtual_network_name      = module.network.network_names[each.key]
  remote_virtual_network_id = module.existing_firewall[0].hub_id
  allow_forwarded_traffic   = true
}

module "appliance" {
  source = "./modules/appliance"
  count  = var.appliance == "nva" ? 1 : 0

  context                    = local.context
  subnet_id                  = module.network.subnet_ids.appliance
  subnet_prefix              = module.network.prefixes.appliance
  zones                      = local.firewall_zones
  image                      = var.nva
  ssh_public_key             = var.ssh_public_key
  encryption_at_host_enabled = var.encryption_at_host_enabled
}

module "routes" {
  source = "./modules/routes"

  context          = local.context
  bypass           = var.bypass
  next_hop_address = local.next_hop_address

  parked = var.parked && local.has_firewall

  is_virtual_hub = var.existing_firewall_virtual_hub

  spokes = local.own_spokes ? {
    clients = { subnet_id = module.network.subnet_ids.clients, other_prefix = var.servers_cidr }
    servers = { subnet_id = module.network.subnet_ids.servers, other_prefix = var.clients_cidr }
  } : {}
}

module "exchange" {
  source = "./modules/exchange"

  context               = local.context
  domains               = { storage = local.cloud.storage, servicebus = local.cloud.servicebus }
  private_endpoints     = var.private_endpoints
  endpoints_subnet_id   = module.network.subnet_ids.endpoints
  network_ids           = module.network.network_ids
  operators             = { addresses = var.operator_addresses, subnet_ids = var.operator_subnet_ids }
  account               = { name = local.account_name, replication = local.storage_replication }
  existing_zone_ids     = var.existing_private_dns_zone_ids
  deployer_principal_id = data.azurerm_client_config.current.object_id
  role_settle_s         = var.role_settle_s
  bundle                = { path = var.bundle_path, sha256 = local.bundle_sha256 }

  subnet_ids = [
    module.network.subnet_ids.clients,
    module.network.subnet_ids.servers,
    module.network.subnet_ids.coordinator,
  ]
}

module "identity" {
  source = "./modules/identity"

  context         = local.context
  container_id    = module.exchange.container_id
  table_ids       = module.exchange.table_ids
  queue_id        = module.exchange.queue_id
  metrics_granted = local.has_firewall || contains(var.may_change, "metrics")
  firewall_id     = local.firewall_id
  switch_enabled  = var.firewall_switch_enabled
  policy_id       = local.policy_id
}

resource "azurerm_proximity_placement_group" "this" {
  count = var.proximity_placement ? 1 : 0

  name                = "${local.names.ppg}-fleet"
  resource_group_name = local.group_name
  location            = var.location
  zone                = one(var.fleet_zones)
  allowed_vm_sizes    = length(var.fleet_zones) == 0 ? null : [var.vm_size]
  tags                = local.tags
}

locals {
  # Values for both the agents and the coordinator.
  machine = {
    image                      = var.image
    admin_user_name            = var.admin_user_name
    ssh_public_key             = var.ssh_public_key
    encryption_at_host_enabled = var.encryption_at_host_enabled
    bundle_url                 = module.exchange.bundle_url
    bundle_sha256              = local.bundle_sha256
    shutdown_time              = local.shutdown_time
    shutdown_timezone          = local.shutdown_timezone
  }
}

module "fleet" {
  source   = "./modules/fleet"
  for_each = { client = "clients", server = "servers" }

  context                        = local.context
  machine                        = local.machine
  role                           = each.key
  instances                      = var.instances
  size                           = var.vm_size
  bits_per_second                = var.vm_bits_per_second[var.vm_size]
  zones                          = var.fleet_zones
  proximity_placement_group_id   = one(azurerm_proximity_placement_group.this[*].id)
  accelerated_networking_enabled = var.accelerated_networking_enabled
  subnet_id                      = module.network.subnet_ids[each.value]
  target_prefix                  = each.key == "client" ? module.network.prefixes.servers : join(",", concat([module.network.prefixes.clients], var.firewall_switch_enabled ? [module.network.prefixes.firewall] : []))
  endpoint_ports                 = var.endpoint_ports
  services                       = local.services
  echo_port                      = var.echo_port
  canary_ports                   = var.canary_ports
  identity                       = module.identity.identities[each.value]
  capabilities                   = local.capabilities
  tunnels_allowed                = var.vxlan_port != null
  exchange_environment           = local.exchange_environment
  settings                       = var.agent_settings

  # A VM would fail to start if its outbound route or its roles did not exist yet.
  depends_on = [module.identity, module.routes, module.network]
}

module "coordinator" {
  source = "./modules/coordinator"

  context              = local.context
  machine              = local.machine
  size                 = var.coordinator_size
  subnet_id            = module.network.subnet_ids.coordinator
  bastion_enabled      = var.bastion_enabled
  bastion_subnet_id    = module.network.subnet_ids.bastion
  identity             = module.identity.identities.coordinator
  exchange_environment = local.coordinator_environment
  firewall_id          = local.firewall_id
  policy_id            = local.policy_id
  flow_logs            = { enabled = var.firewall_flow_logs, endpoint = local.cloud.logs }
  modes_at_rest        = { idps = var.idps_mode, threat = var.threat_intelligence_mode }
  start_time           = local.start_time
  parked               = var.parked
  resource_manager     = { url = local.cloud.management, audience = local.cloud.audience }

  depends_on = [module.identity, module.network]
}

module "observe" {
  source = "./modules/observe"

  context             = local.context
  retention_days      = var.log_retention_days
  diagnostics_enabled = var.diagnostics_enabled
  has_firewall        = local.has_firewall
  firewall_id         = local.firewall_id
  firewall_logs       = var.firewall_logs
  firewall_flow_logs  = var.firewall_flow_logs
  servicebus_id       = module.exchange.servicebus_id
  storage_account_id  = module.exchange.storage_account_id
}

# Some offers, such as sponsored subscriptions, do not support budgets.
module "budget" {
  source = "./modules/budget"
  count  = var.budget_amount == null ? 0 : 1

  context = local.context
  amount  = var.budget_amount
  emails  = var.budget_emails
}
