output "private_address" {
  value       = azurerm_lb.this.frontend_ip_configuration[0].private_ip_address
  description = "Next hop of the spokes."
}
