output "network_ids" {
  value       = merge({ for network in azurerm_virtual_network.hub : "hub" => network.id }, { for network in azurerm_virtual_network.clients : "clients" => network.id }, { for network in azurerm_virtual_network.servers : "servers" => network.id })
  description = "Networks that the range creates: all three, unless existing subnets are given."
}

output "subnet_ids" {
  value = {
    firewall            = try(azurerm_subnet.firewall[0].id, var.existing_subnet_ids["firewall"], null)
    firewall_management = one(azurerm_subnet.firewall_management[*].id)
    bastion             = try(azurerm_subnet.bastion[0].id, var.existing_subnet_ids["bastion"], null)
    coordinator         = try(azurerm_subnet.coordinator[0].id, var.existing_subnet_ids["coordinator"], null)
    endpoints           = try(azurerm_subnet.endpoints[0].id, var.existing_subnet_ids["endpoints"], null)
    appliance           = try(azurerm_subnet.appliance[0].id, var.existing_subnet_ids["appliance"], null)
    clients             = try(azurerm_subnet.clients[0].id, var.existing_subnet_ids["clients"], null)
    servers             = try(azurerm_subnet.servers[0].id, var.existing_subnet_ids["servers"], null)
  }
  description = "Subnets by their content; null if there is none, such as the firewall's management subnet without the tier Basic."
}

output "prefixes" {
  value       = local.prefixes
  description = "Addresses of clients, servers (the only targets that an agent accepts), another appliance..."
}

output "flows" {
  value       = concat(local.traffic, local.vxlan_to_servers, local.vxlan_to_clients)
  description = "Traffic between the spokes, which the appliance must forward."
}

output "network_names" {
  value       = { clients = one(azurerm_virtual_network.clients[*].name), servers = one(azurerm_virtual_network.servers[*].name) }
  description = "Networks of the spokes; null if existing ones are used."
}
