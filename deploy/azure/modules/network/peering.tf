# Forwarded traffic is needed, because all traffic from the hub to a spoke was sent by the other
# spoke. The hub of an existing firewall has its peering in modules/existing_firewall.

locals {
  peered = local.own_hub && local.own_spokes
}

resource "azurerm_virtual_network_peering" "hub_to_clients" {
  count = local.peered ? 1 : 0

  name                      = "clients"
  resource_group_name       = var.context.group_name
  virtual_network_name      = azurerm_virtual_network.hub[0].name
  remote_virtual_network_id = azurerm_virtual_network.clients[0].id
  allow_forwarded_traffic   = true
}

resource "azurerm_virtual_network_peering" "clients_to_hub" {
  count = local.peered ? 1 : 0

  name                      = "hub"
  resource_group_name       = var.context.group_name
  virtual_network_name      = azurerm_virtual_network.clients[0].name
  remote_virtual_network_id = azurerm_virtual_network.hub[0].id
  allow_forwarded_traffic   = true
}

resource "azurerm_virtual_network_peering" "hub_to_servers" {
  count = local.peered ? 1 : 0

  name                      = "servers"
  resource_group_name       = var.context.group_name
  virtual_network_name      = azurerm_virtual_network.hub[0].name
  remote_virtual_network_id = azurerm_virtual_network.servers[0].id
  allow_forwarded_traffic   = true
}

resource "azurerm_virtual_network_peering" "servers_to_hub" {
  count = local.peered ? 1 : 0

  name                      = "hub"
  resource_group_name       = var.context.group_name
  virtual_network_name      = azurerm_virtual_network.servers[0].name
  remote_virtual_network_id = azurerm_virtual_network.hub[0].id
  allow_forwarded_traffic   = true
}

# Bypass, which is the shortest path without the appliance.

resource "azurerm_virtual_network_peering" "clients_to_servers" {
  count = var.bypass && local.own_spokes ? 1 : 0

  name                      = "bypass"
  resource_group_name       = var.context.group_name
  virtual_network_name      = azurerm_virtual_network.clients[0].name
  remote_virtual_network_id = azurerm_virtual_network.servers[0].id
}

resource "azurerm_virtual_network_peering" "servers_to_clients" {
  count = var.bypass && local.own_spokes ? 1 : 0

  name                      = "bypass"
  resource_group_name       = var.context.group_name
  virtual_network_name      = azurerm_virtual_network.servers[0].name
  remote_virtual_network_id = azurerm_virtual_network.clients[0].id
}
