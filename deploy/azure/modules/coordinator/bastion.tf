# The only way to connect from outside, using the operator's Azure sign-in and SSH key.

resource "azurerm_public_ip" "bastion" {
  count = var.bastion_enabled ? 1 : 0

  name                = "${var.context.names.pip}-bastion"
  resource_group_name = var.context.group_name
  location            = var.context.location
  allocation_method   = "Static"
  sku                 = "Standard"
  tags                = var.context.tags
}

resource "azurerm_bastion_host" "this" {
  count = var.bastion_enabled && !var.parked ? 1 : 0

  name                = "${var.context.names.bas}-bastion"
  resource_group_name = var.context.group_name
  location            = var.context.location
  sku                 = "Standard" # the smallest SKU to support `az network bastion tunnel`
  scale_units         = 2
  tunneling_enabled   = true
  tags                = var.context.tags

  ip_configuration {
    name                 = "bastion"
    subnet_id            = var.bastion_subnet_id
    public_ip_address_id = azurerm_public_ip.bastion[0].id
  }
}
