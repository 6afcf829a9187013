output "network_ids" {
  value       = { hub = azurerm_virtual_network.hub.id, clients = azurerm_virtual_network.clients.id, servers = azurerm_virtual_network.servers.id }
  description = "The three networks."
}

output "firewall_subnet_id" {
  value       = azurerm_subnet.firewall.id
  description = "Where an Azure Firewall must stand."
}

output "firewall_management_subnet_id" {
  value       = one(azurerm_subnet.firewall_management[*].id)
  description = "Where a Basic firewall's management address must stand; null for other tiers."
}

output "bastion_subnet_id" {
  value       = azurerm_subnet.bastion.id
  description = "Where a Bastion must stand."
}

output "coordinator_subnet_id" {
  value       = azurerm_subnet.coordinator.id
  description = "The coordinator's subnet."
}

output "endpoints_subnet_id" {
  value       = azurerm_subnet.endpoints.id
  description = "Subnet of private endpoints."
}

output "appliance_subnet_id" {
  value       = azurerm_subnet.appliance.id
  description = "Subnet of another appliance."
}

output "clients_subnet_id" {
  value       = azurerm_subnet.clients.id
  description = "The clients' subnet."
}

output "servers_subnet_id" {
  value       = azurerm_subnet.servers.id
  description = "The servers' subnet."
}

output "clients_prefix" {
  value       = local.clients_prefix
  description = "Addresses of the clients."
}

output "servers_prefix" {
  value       = local.servers_prefix
  description = "Addresses of the servers: the only targets that an agent accepts."
}

output "appliance_prefix" {
  value       = cidrsubnet(var.hub_cidr, 10, 5)
  description = "Addresses of another appliance."
}
