# Azure Firewall with a policy. The capacity is set with `broadside capacity` and not in here. The
# provider does not support it, and a higher minimum has to be reset automatically.

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
  #checkov:skip=CKV_AZURE_216:set in the policy, and Off by default so that the results are not affected
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
    # `broadside park` removes these and adds them again. Without this, the provider would create a
    # new firewall.
    ignore_changes = [ip_configuration, management_ip_configuration]
  }
}
