# The one way in, by the operator's Azure sign-in and SSH key.

resource "azurerm_public_ip" "bastion" {
  count = var.bastion_enabled ? 1 : 0

  name                = "${var.names.pip}-bastion"
  resource_group_name = var.resource_group_name
  location            = var.location
  allocation_method   = "Static"
  sku                 = "Standard"
  tags                = var.tags
}

resource "azurerm_bastion_host" "this" {
  count = var.bastion_enabled && !var.parked ? 1 : 0

  name                = "${var.names.bas}-bastion"
  resource_group_name = var.resource_group_name
  location            = var.location
  sku                 = "Standard" # the least that carries `az network bastion tunnel`
  scale_units         = 2
  tunneling_enabled   = true
  tags                = var.tags

  ip_configuration {
    name                 = "bastion"
    subnet_id            = var.bastion_subnet_id
    public_ip_address_id = azurerm_public_ip.bastion[0].id
  }
}
