output "id" {
  value       = azurerm_firewall.this.id
  description = "The firewall: its metrics, its capacity."
}

output "private_address" {
  value       = one(azurerm_firewall.this.ip_configuration[*].private_ip_address)
  description = "Next hop of the spokes; null while it is parked."
}

output "policy_id" {
  value       = azurerm_firewall_policy.this.id
  description = "Its policy: the modes that a switch sets."
}
