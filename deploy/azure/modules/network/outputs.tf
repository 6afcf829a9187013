output "network_ids" {
  value       = merge({ for network in azurerm_virtual_network.hub : "hub" => network.id }, { for network in azurerm_virtual_network.clients : "clients" => network.id }, { for network in azurerm_virtual_network.servers : "servers" => network.id })
  description = "The networks that the range makes: all three, unless subnets stand already."
}

output "firewall_subnet_id" {
  value       = try(azurerm_subnet.firewall[0].id, var.existing_subnet_ids["firewall"], null)
  description = "Where an Azure Firewall must stand."
}

output "firewall_management_subnet_id" {
  value       = one(azurerm_subnet.firewall_management[*].id)
  description = "Where a Basic firewall's management address must stand; null for other tiers."
}

output "bastion_subnet_id" {
  value       = try(azurerm_subnet.bastion[0].id, var.existing_subnet_ids["bastion"], null)
  description = "Where a Bastion must stand."
}

output "coordinator_subnet_id" {
  value       = try(azurerm_subnet.coordinator[0].id, var.existing_subnet_ids["coordinator"], null)
  description = "The coordinator's subnet."
}

output "endpoints_subnet_id" {
  value       = try(azurerm_subnet.endpoints[0].id, var.existing_subnet_ids["endpoints"], null)
  description = "Subnet of private endpoints."
}

output "appliance_subnet_id" {
  value       = try(azurerm_subnet.appliance[0].id, var.existing_subnet_ids["appliance"], null)
  description = "Subnet of another appliance."
}

output "clients_subnet_id" {
  value       = try(azurerm_subnet.clients[0].id, var.existing_subnet_ids["clients"], null)
  description = "The clients' subnet."
}

output "servers_subnet_id" {
  value       = try(azurerm_subnet.servers[0].id, var.existing_subnet_ids["servers"], null)
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
  value       = local.appliance_prefix
  description = "Addresses of another appliance."
}

output "network_names" {
  value       = { clients = one(azurerm_virtual_network.clients[*].name), servers = one(azurerm_virtual_network.servers[*].name) }
  description = "The spokes' networks; null where they stand already."
}
