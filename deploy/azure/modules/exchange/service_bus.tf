# Queue for jobs, with the same values as the embedded queue (exchange/fabric). There is a test
# for this.

resource "azurerm_servicebus_namespace" "this" {
  #checkov:skip=CKV_AZURE_202:the namespace does not call other services, so it does not need an identity
  #checkov:skip=CKV_AZURE_201:jobs only have addresses and times of a test, so there is no need for a customer-managed key
  #checkov:skip=CKV_AZURE_199:as above, and this is only available in Premium
  #checkov:skip=CKV_AZURE_204:not supported in Standard, and disabled with private_endpoints = true (Premium)
  name                          = "${var.context.names.sbns}-${var.context.suffix}"
  resource_group_name           = var.context.group_name
  location                      = var.context.location
  sku                           = var.private_endpoints ? "Premium" : "Standard" # Standard does not support private endpoints
  capacity                      = var.private_endpoints ? 1 : 0
  premium_messaging_partitions  = var.private_endpoints ? 1 : 0
  local_auth_enabled            = false # use managed identities only
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
  default_message_ttl                     = "P50D" # each message has its own value of up to 49 days, and this should not be less
  dead_lettering_on_message_expiration    = false  # an expired job is a missed measurement, not a dead letter
  requires_session                        = false
  partitioning_enabled                    = false
  max_size_in_megabytes                   = 1024
}
