# Forwarded traffic: what reaches a spoke from the hub was sent by the other spoke.

resource "azurerm_virtual_network_peering" "hub_to_clients" {
  name                      = "clients"
  resource_group_name       = var.resource_group_name
  virtual_network_name      = azurerm_virtual_network.hub.name
  remote_virtual_network_id = azurerm_virtual_network.clients.id
  allow_forwarded_traffic   = true
}

resource "azurerm_virtual_network_peering" "clients_to_hub" {
  name                      = "hub"
  resource_group_name       = var.resource_group_name
  virtual_network_name      = azurerm_virtual_network.clients.name
  remote_virtual_network_id = azurerm_virtual_network.hub.id
  allow_forwarded_traffic   = true
}

resource "azurerm_virtual_network_peering" "hub_to_servers" {
  name                      = "servers"
  resource_group_name       = var.resource_group_name
  virtual_network_name      = azurerm_virtual_network.hub.name
  remote_virtual_network_id = azurerm_virtual_network.servers.id
  allow_forwarded_traffic   = true
}

resource "azurerm_virtual_network_peering" "servers_to_hub" {
  name                      = "hub"
  resource_group_name       = var.resource_group_name
  virtual_network_name      = azurerm_virtual_network.servers.name
  remote_virtual_network_id = azurerm_virtual_network.hub.id
  allow_forwarded_traffic   = true
}

# The bypass: the shortest path, past the appliance.

resource "azurerm_virtual_network_peering" "clients_to_servers" {
  count = var.bypass ? 1 : 0

  name                      = "bypass"
  resource_group_name       = var.resource_group_name
  virtual_network_name      = azurerm_virtual_network.clients.name
  remote_virtual_network_id = azurerm_virtual_network.servers.id
}

resource "azurerm_virtual_network_peering" "servers_to_clients" {
  count = var.bypass ? 1 : 0

  name                      = "bypass"
  resource_group_name       = var.resource_group_name
  virtual_network_name      = azurerm_virtual_network.servers.name
  remote_virtual_network_id = azurerm_virtual_network.clients.id
}
