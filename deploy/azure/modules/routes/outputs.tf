output "routes" {
  value       = [for route in azurerm_route.through_appliance : route.name]
  description = "Routes through the appliance."
}
