output "workspace_id" {
  value       = azurerm_log_analytics_workspace.this.id
  description = "The Log Analytics workspace."
}

output "insights_connection_string" {
  value       = azurerm_application_insights.this.connection_string
  description = "Where an OpenTelemetry exporter would send; names the resource, opens nothing by itself."
  sensitive   = true
}
