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

output "address_configurations" {
  value = {
    ipConfigurations          = [{ name = "data", properties = { subnet = { id = var.subnet_id }, publicIPAddress = { id = azurerm_public_ip.this.id } } }]
    managementIpConfiguration = one([for address in azurerm_public_ip.management : { name = "management", properties = { subnet = { id = var.management_subnet_id }, publicIPAddress = { id = address.id } } }])
  }
  description = "Configuration that `broadside unpark` restores, in the format of the Resource Manager."
}
