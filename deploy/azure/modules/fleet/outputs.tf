output "name" {
  value       = azurerm_linux_virtual_machine_scale_set.this.name
  description = "The scale set."
}
