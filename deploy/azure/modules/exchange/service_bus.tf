# The queue. Its figures are those of the embedded queue (exchange/fabric.py); a test compares them.

resource "azurerm_servicebus_namespace" "this" {
  #checkov:skip=CKV_AZURE_202:the namespace calls nobody, so it needs no identity of its own
  #checkov:skip=CKV_AZURE_201:jobs are addresses and times of a test; a key of our own would have to be kept for them
  #checkov:skip=CKV_AZURE_199:as above, and only Premium has it
  #checkov:skip=CKV_AZURE_204:Standard cannot be private; private_endpoints = true shuts it, on Premium
  name                          = "${var.context.names.sbns}-${var.context.suffix}"
  resource_group_name           = var.context.group_name
  location                      = var.context.location
  sku                           = var.private_endpoints ? "Premium" : "Standard" # Standard has no private endpoints
  capacity                      = var.private_endpoints ? 1 : 0
  premium_messaging_partitions  = var.private_endpoints ? 1 : 0
  local_auth_enabled            = false # managed identities only
  minimum_tls_version           = "1.2"
  public_network_access_enabled = !var.private_endpoints
  tags                          = var.context.tags
}

resource "azurerm_servicebus_queue" "jobs" {
  name                                    = "jobs"
  namespace_id                            = azurerm_servicebus_namespace.this.id
  lock_duration                           = "PT10S"
  max_delivery_count                      = 5
  requires_duplicate_detection            = true
  duplicate_detection_history_time_window = "P1D"
  default_message_ttl                     = "P50D" # each message sets its own, at most 49 days; this must not cut it
  dead_lettering_on_message_expiration    = false  # an expired job is a missed measurement, not a dead letter
  requires_session                        = false
  partitioning_enabled                    = false
  max_size_in_megabytes                   = 1024
}
