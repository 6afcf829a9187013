# Azure Firewall with a policy. Capacity (`broadside capacity`) is not here: the provider has no
# argument for it, and a raised minimum must go back by itself.

resource "azurerm_public_ip" "this" {
  name                = "${var.context.names.pip}-firewall"
  resource_group_name = var.context.group_name
  location            = var.context.location
  allocation_method   = "Static"
  sku                 = "Standard"
  zones               = var.zones
  tags                = var.context.tags
}

resource "azurerm_public_ip" "management" {
  count = var.tier == "Basic" ? 1 : 0

  name                = "${var.context.names.pip}-firewall-management"
  resource_group_name = var.context.group_name
  location            = var.context.location
  allocation_method   = "Static"
  sku                 = "Standard"
  zones               = var.zones
  tags                = var.context.tags
}

resource "azurerm_firewall" "this" {
  #checkov:skip=CKV_AZURE_216:said by the policy, which Off by default keeps out of the figure
  name                = "${var.context.names.afw}-firewall"
  resource_group_name = var.context.group_name
  location            = var.context.location
  sku_name            = "AZFW_VNet"
  sku_tier            = var.tier
  firewall_policy_id  = azurerm_firewall_policy.this.id
  zones               = var.zones
  tags                = var.context.tags

  ip_configuration {
    name                 = "data"
    subnet_id            = var.subnet_id
    public_ip_address_id = azurerm_public_ip.this.id
  }

  dynamic "management_ip_configuration" {
    for_each = azurerm_public_ip.management

    content {
      name                 = "management"
      subnet_id            = var.management_subnet_id
      public_ip_address_id = management_ip_configuration.value.id
    }
  }

  lifecycle {
    # `broadside park` takes them away and brings them back; the provider would make another firewall.
    ignore_changes = [ip_configuration, management_ip_configuration]
  }
}
