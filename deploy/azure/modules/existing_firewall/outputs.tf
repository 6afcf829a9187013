output "private_address" {
  value       = local.address
  description = "Next hop of the spokes."
}

output "hub_id" {
  value       = local.hub_id
  description = "The network that the firewall is in."
}

output "policy_id" {
  value       = data.azurerm_firewall.this.firewall_policy_id
  description = "Its policy; empty where it has rules of the old kind."
}
