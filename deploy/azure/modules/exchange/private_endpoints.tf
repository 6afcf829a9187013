# Only used with private_endpoints. All three networks resolve the names to private addresses.

locals {
  endpoints = var.private_endpoints ? {
    blob       = { resource = azurerm_storage_account.this.id, group = "blob", zone = "privatelink.blob.${var.domains.storage}" }
    table      = { resource = azurerm_storage_account.this.id, group = "table", zone = "privatelink.table.${var.domains.storage}" }
    servicebus = { resource = azurerm_servicebus_namespace.this.id, group = "namespace", zone = "privatelink.${var.domains.servicebus}" }
  } : {}

  own_zones = length(var.existing_zone_ids) == 0 ? local.endpoints : {}

  links = merge([
    for service in keys(local.own_zones) : {
      for network, id in var.network_ids : "${service}-${network}" => { service = service, network_id = id }
    }
  ]...)
}

resource "azurerm_private_dns_zone" "this" {
  for_each = local.own_zones

  name                = each.value.zone
  resource_group_name = var.context.group_name
  tags                = var.context.tags
}

resource "azurerm_private_dns_zone_virtual_network_link" "this" {
  for_each = local.links

  name                 = each.key
  private_dns_zone_id  = azurerm_private_dns_zone.this[each.value.service].id
  virtual_network_id   = each.value.network_id
  registration_enabled = false
  tags                 = var.context.tags
}

resource "azurerm_private_endpoint" "this" {
  for_each = local.endpoints

  name                = "${var.context.names.pep}-${each.key}"
  resource_group_name = var.context.group_name
  location            = var.context.location
  subnet_id           = var.endpoints_subnet_id
  tags                = var.context.tags

  private_service_connection {
    name                           = each.key
    is_manual_connection           = false
    private_connection_resource_id = each.value.resource
    subresource_names              = [each.value.group]
  }

  private_dns_zone_group {
    name                 = each.key
    private_dns_zone_ids = [try(azurerm_private_dns_zone.this[each.key].id, var.existing_zone_ids[each.key])]
  }
}
