output "workspace_id" {
  value       = azurerm_log_analytics_workspace.this.id
  description = "The Log Analytics workspace."
}

output "insights_connection_string" {
  value       = azurerm_application_insights.this.connection_string
  description = "Connection string for an OpenTelemetry exporter. It names the resource, and gives no access."
  sensitive   = true
}
