# Routes between the spokes through the appliance. All other traffic has the default routes of
# Azure, with service endpoints for storage and the NAT gateway for Service Bus. If the bypass is
# enabled, the route of the direct peering is used.

resource "azurerm_route_table" "this" {
  for_each = var.spokes

  name                          = "${var.context.names.rt}-${each.key}"
  resource_group_name           = var.context.group_name
  location                      = var.context.location
  bgp_route_propagation_enabled = var.is_virtual_hub # the hub's routes come this way
  tags                          = var.context.tags
}

resource "azurerm_route" "through_appliance" {
  for_each = var.bypass || var.parked || var.is_virtual_hub ? {} : var.spokes

  name                   = "through-appliance"
  resource_group_name    = var.context.group_name
  route_table_name       = azurerm_route_table.this[each.key].name
  address_prefix         = each.value.other_prefix
  next_hop_type          = "VirtualAppliance"
  next_hop_in_ip_address = var.next_hop_address
}

resource "azurerm_subnet_route_table_association" "this" {
  for_each = var.spokes

  subnet_id      = each.value.subnet_id
  route_table_id = azurerm_route_table.this[each.key].id
}
