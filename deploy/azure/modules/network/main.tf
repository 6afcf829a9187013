# Hub with two spokes. There are no public addresses in here. The NAT gateways (egress.tf) and the
# security groups (security.tf) allow access to Service Bus and storage in this region, but not to
# the internet.

resource "azurerm_virtual_network" "hub" {
  count = local.own_hub ? 1 : 0

  name                = "${var.context.names.vnet}-hub"
  resource_group_name = var.context.group_name
  location            = var.context.location
  address_space       = [var.cidrs.hub]
  tags                = var.context.tags
}

resource "azurerm_virtual_network" "clients" {
  count = local.own_spokes ? 1 : 0

  name                = "${var.context.names.vnet}-clients"
  resource_group_name = var.context.group_name
  location            = var.context.location
  address_space       = [var.cidrs.clients]
  tags                = var.context.tags
}

resource "azurerm_virtual_network" "servers" {
  count = local.own_spokes ? 1 : 0

  name                = "${var.context.names.vnet}-servers"
  resource_group_name = var.context.group_name
  location            = var.context.location
  address_space       = [var.cidrs.servers]
  tags                = var.context.tags
}

# Subnets of the hub -------------------------------------------------------------------------------

resource "azurerm_subnet" "firewall" {
  count = local.own_hub ? 1 : 0

  name                 = "AzureFirewallSubnet" # this name is required by Azure
  resource_group_name  = var.context.group_name
  virtual_network_name = azurerm_virtual_network.hub[0].name
  address_prefixes     = [cidrsubnet(var.cidrs.hub, 10, 0)]
}

resource "azurerm_subnet" "firewall_management" {
  #checkov:skip=CKV2_AZURE_31:Azure does not support groups for the subnets of a firewall
  count = local.own_hub && var.firewall_tier == "Basic" ? 1 : 0

  name                 = "AzureFirewallManagementSubnet" # this name is required by Azure
  resource_group_name  = var.context.group_name
  virtual_network_name = azurerm_virtual_network.hub[0].name
  address_prefixes     = [cidrsubnet(var.cidrs.hub, 10, 1)]
}

resource "azurerm_subnet" "bastion" {
  #checkov:skip=CKV2_AZURE_31:only used for Bastion, which requires an Azure sign-in
  count = local.own_hub ? 1 : 0

  name                 = "AzureBastionSubnet" # this name is required by Azure
  resource_group_name  = var.context.group_name
  virtual_network_name = azurerm_virtual_network.hub[0].name
  address_prefixes     = [cidrsubnet(var.cidrs.hub, 10, 2)]
}

resource "azurerm_subnet" "coordinator" {
  count = local.own_hub ? 1 : 0

  name                            = "coordinator"
  resource_group_name             = var.context.group_name
  virtual_network_name            = azurerm_virtual_network.hub[0].name
  address_prefixes                = [cidrsubnet(var.cidrs.hub, 10, 3)]
  default_outbound_access_enabled = false

  service_endpoint {
    service = "Microsoft.Storage"
  }
}

resource "azurerm_subnet" "endpoints" {
  #checkov:skip=CKV2_AZURE_31:only used for private endpoints, and access is limited in the groups of the other subnets
  count = local.own_hub ? 1 : 0

  name                            = "endpoints"
  resource_group_name             = var.context.group_name
  virtual_network_name            = azurerm_virtual_network.hub[0].name
  address_prefixes                = [cidrsubnet(var.cidrs.hub, 10, 4)]
  default_outbound_access_enabled = false
}

resource "azurerm_subnet" "appliance" {
  #checkov:skip=CKV2_AZURE_31:traffic through the appliance is tested, and is limited by the groups of the spokes
  count = local.own_hub ? 1 : 0

  name                            = "appliance"
  resource_group_name             = var.context.group_name
  virtual_network_name            = azurerm_virtual_network.hub[0].name
  address_prefixes                = [cidrsubnet(var.cidrs.hub, 10, 5)]
  default_outbound_access_enabled = false
}

# Subnets of the spokes ----------------------------------------------------------------------------
# Storage is used through service endpoints. So presence, results and the package are sent over the
# Azure backbone, and never through the appliance under test.

resource "azurerm_subnet" "clients" {
  count = local.own_spokes ? 1 : 0

  name                            = "agents"
  resource_group_name             = var.context.group_name
  virtual_network_name            = azurerm_virtual_network.clients[0].name
  address_prefixes                = [local.prefixes.clients]
  default_outbound_access_enabled = false

  service_endpoint {
    service = "Microsoft.Storage"
  }
}

resource "azurerm_subnet" "servers" {
  count = local.own_spokes ? 1 : 0

  name                            = "agents"
  resource_group_name             = var.context.group_name
  virtual_network_name            = azurerm_virtual_network.servers[0].name
  address_prefixes                = [local.prefixes.servers]
  default_outbound_access_enabled = false

  service_endpoint {
    service = "Microsoft.Storage"
  }
}

locals {
  own_hub    = !contains(keys(var.existing_subnet_ids), "coordinator")
  own_spokes = !contains(keys(var.existing_subnet_ids), "clients")

  prefixes = {
    clients   = try(local.existing["clients"], cidrsubnet(var.cidrs.clients, 21 - tonumber(split("/", var.cidrs.clients)[1]), 0)) # a /21 has 2,043 VMs
    servers   = try(local.existing["servers"], cidrsubnet(var.cidrs.servers, 21 - tonumber(split("/", var.cidrs.servers)[1]), 0))
    firewall  = try(local.existing["firewall"], cidrsubnet(var.cidrs.hub, 10, 0))
    endpoints = try(local.existing["endpoints"], cidrsubnet(var.cidrs.hub, 10, 4))
    bastion   = try(local.existing["bastion"], cidrsubnet(var.cidrs.hub, 10, 2))
    appliance = try(local.existing["appliance"], cidrsubnet(var.cidrs.hub, 10, 5))
  }
}
