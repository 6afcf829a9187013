output "vm_id" {
  value       = azurerm_linux_virtual_machine.this.id
  description = "The coordinator's VM."
}

output "bastion_name" {
  value       = one(azurerm_bastion_host.this[*].name)
  description = "The Bastion, or null."
}
