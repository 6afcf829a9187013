# Addresses of existing subnets.

data "azurerm_subnet" "existing" {
  for_each = { for what in ["clients", "servers", "endpoints", "bastion", "appliance"] : what => var.existing_subnet_ids[what] if contains(keys(var.existing_subnet_ids), what) }

  resource_group_name  = split("/", each.value)[4]
  virtual_network_name = split("/", each.value)[8]
  name                 = split("/", each.value)[10]
}

locals {
  existing = { for what, subnet in data.azurerm_subnet.existing : what => subnet.address_prefixes[0] }
}
