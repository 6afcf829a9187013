output "private_address" {
  value       = local.address
  description = "Next hop of the spokes; with a virtual hub, its routing intent sends traffic there."
}

output "hub_id" {
  value       = local.hub_id
  description = "The network or the virtual hub that the firewall is in."
}

output "policy_id" {
  value       = data.azurerm_firewall.this.firewall_policy_id
  description = "Its policy; empty if it has classic rules."
}

output "connections" {
  value       = [for connection in azurerm_virtual_hub_connection.spoke : connection.name]
  description = "Connections of a virtual hub that the range creates."
}

output "inspects_private_traffic" {
  value = anytrue([
    for route in flatten(data.azurerm_virtual_hub_route_table.default[*].route) :
    route.name == "_policy_PrivateTraffic" && lower(route.next_hop) == lower(var.firewall_id)
  ])
  description = "Whether the virtual hub's routing intent sends private traffic to this firewall."
}
