# Storage for metrics and logs. The verdict does not need it, because the coordinator gets the metrics
# of the firewall from Azure Monitor.

resource "azurerm_log_analytics_workspace" "this" {
  name                         = "${var.context.names.log}-logs"
  resource_group_name          = var.context.group_name
  location                     = var.context.location
  sku                          = "PerGB2018"
  retention_in_days            = var.retention_days
  daily_quota_gb               = 5
  local_authentication_enabled = false
  tags                         = var.context.tags
}

resource "azurerm_application_insights" "this" {
  name                         = "${var.context.names.appi}-insights"
  resource_group_name          = var.context.group_name
  location                     = var.context.location
  workspace_id                 = azurerm_log_analytics_workspace.this.id
  application_type             = "other"
  local_authentication_enabled = false
  tags                         = var.context.tags
}

resource "azurerm_monitor_diagnostic_setting" "firewall" {
  count = var.has_firewall && var.diagnostics_enabled ? 1 : 0

  name                           = "broadside"
  target_resource_id             = var.firewall_id
  log_analytics_workspace_id     = azurerm_log_analytics_workspace.this.id
  log_analytics_destination_type = "Dedicated"

  enabled_metric {
    category = "AllMetrics"
  }

  dynamic "enabled_log" {
    for_each = concat(
      var.firewall_logs ? ["AZFWNetworkRule", "AZFWApplicationRule", "AZFWIdpsSignature"] : [],
      var.firewall_flow_logs ? ["AZFWFatFlow", "AZFWFlowTrace"] : [],
    )

    content {
      category = enabled_log.value
    }
  }
}

resource "azurerm_monitor_diagnostic_setting" "service_bus" {
  count = var.diagnostics_enabled ? 1 : 0

  name                       = "broadside"
  target_resource_id         = var.servicebus_id
  log_analytics_workspace_id = azurerm_log_analytics_workspace.this.id

  enabled_metric {
    category = "AllMetrics"
  }
}

resource "azurerm_monitor_diagnostic_setting" "tables" {
  count = var.diagnostics_enabled ? 1 : 0

  name                       = "broadside"
  target_resource_id         = "${var.storage_account_id}/tableServices/default"
  log_analytics_workspace_id = azurerm_log_analytics_workspace.this.id

  enabled_metric {
    category = "Transaction"
  }
}
