# Service Bus Standard does not support private endpoints or service endpoints, so its clients need
# access to a public address. We use a NAT gateway and not the firewall, because jobs should not use
# the path under test.

locals {
  nat = merge(
    local.own_hub ? { hub = azurerm_subnet.coordinator[0].id } : {},
    var.private_endpoints || !local.own_spokes ? {} : { clients = azurerm_subnet.clients[0].id, servers = azurerm_subnet.servers[0].id },
  )
}

resource "azurerm_public_ip" "nat" {
  for_each = local.nat

  name                = "${var.context.names.pip}-nat-${each.key}"
  resource_group_name = var.context.group_name
  location            = var.context.location
  allocation_method   = "Static"
  sku                 = "Standard"
  tags                = var.context.tags
}

resource "azurerm_nat_gateway" "this" {
  for_each = local.nat

  name                = "${var.context.names.ng}-${each.key}"
  resource_group_name = var.context.group_name
  location            = var.context.location
  sku_name            = "Standard"
  tags                = var.context.tags
}

resource "azurerm_nat_gateway_public_ip_association" "this" {
  for_each = local.nat

  nat_gateway_id       = azurerm_nat_gateway.this[each.key].id
  public_ip_address_id = azurerm_public_ip.nat[each.key].id
}

resource "azurerm_subnet_nat_gateway_association" "this" {
  for_each = local.nat

  subnet_id      = each.value
  nat_gateway_id = azurerm_nat_gateway.this[each.key].id
}
