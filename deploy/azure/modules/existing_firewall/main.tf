# Existing firewall and its hub. It is connected to the spokes by peering, and only changed if this
# is allowed by `may_change`. It can be in another subscription, so it has its own provider.

locals {
  parts = split("/", var.firewall_id)
}

data "azurerm_firewall" "this" {
  name                = local.parts[8]
  resource_group_name = local.parts[4]
}

locals {
  address   = data.azurerm_firewall.this.ip_configuration[0].private_ip_address
  hub_id    = split("/subnets/", data.azurerm_firewall.this.ip_configuration[0].subnet_id)[0]
  hub_parts = split("/", local.hub_id)
}

resource "azurerm_virtual_network_peering" "hub_to_spoke" {
  for_each = contains(var.may_change, "peerings") ? var.spoke_ids : {}

  name                      = "${var.name}-${each.key}"
  resource_group_name       = local.hub_parts[4]
  virtual_network_name      = local.hub_parts[8]
  remote_virtual_network_id = each.value
  allow_forwarded_traffic   = true
}
