# Page for the range in the Azure portal. It uses metrics that are always available, so it is free.

locals {
  firewall_charts = [
    { title = "Firewall: throughput (counts a byte once; lags about a minute)", metric = "Throughput", aggregation = local.average },
    { title = "Firewall: bytes processed", metric = "DataProcessed", aggregation = local.total },
    { title = "Firewall: capacity units (can lag half an hour)", metric = "ObservedCapacity", aggregation = local.minimum },
    { title = "Firewall: health (%)", metric = "FirewallHealth", aggregation = local.average },
    { title = "Firewall: SNAT ports in use (%)", metric = "SNATPortUtilization", aggregation = local.maximum },
  ]

  charts = concat(
    [for chart in local.firewall_charts : merge(chart, { type = "microsoft.network/azurefirewalls", id = var.firewall_id }) if var.has_firewall],
    [
      { title = "Jobs waiting or locked", type = "microsoft.servicebus/namespaces", id = var.servicebus_id, metric = "ActiveMessages", aggregation = local.average },
      { title = "Jobs scheduled", type = "microsoft.servicebus/namespaces", id = var.servicebus_id, metric = "ScheduledMessages", aggregation = local.average },
      { title = "Dead letters", type = "microsoft.servicebus/namespaces", id = var.servicebus_id, metric = "DeadletteredMessages", aggregation = local.average },
      { title = "Service Bus: throttled requests", type = "microsoft.servicebus/namespaces", id = var.servicebus_id, metric = "ThrottledRequests", aggregation = local.total },
      { title = "Storage: requests", type = "microsoft.storage/storageaccounts", id = var.storage_account_id, metric = "Transactions", aggregation = local.total },
    ],
  )

  # Names of the aggregations in workbooks.
  total   = 1
  minimum = 2
  maximum = 3
  average = 4
}

resource "azurerm_application_insights_workbook" "this" {
  name                = uuidv5("url", "broadside/${var.context.group_id}")
  resource_group_name = var.context.group_name
  location            = var.context.location
  display_name        = "Broadside: ${var.context.name}"
  source_id           = lower(azurerm_application_insights.this.id)
  tags                = var.context.tags

  data_json = jsonencode({
    version = "Notebook/1.0"
    items = [for chart in local.charts : {
      type = 10 # chart of metrics
      name = chart.metric
      content = {
        version      = "MetricsItem/2.0"
        title        = chart.title
        size         = 1
        chartType    = 2 # lines
        resourceType = chart.type
        resourceIds  = [chart.id]
        metricScope  = 0
        timeContext  = { durationMs = 3600000 }
        metrics = [{
          namespace   = chart.type
          metric      = "${chart.type}--${chart.metric}"
          aggregation = chart.aggregation
        }]
      }
    }]
  })
}
