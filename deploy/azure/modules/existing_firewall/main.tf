# Existing firewall and its hub, which is a network or a virtual WAN hub. The spokes are connected by
# peering or by a connection of the hub. The hub is only changed if this is allowed by `may_change`.
# It can be in another subscription, so it has its own provider.

locals {
  parts = split("/", var.firewall_id)
}

data "azurerm_firewall" "this" {
  name                = local.parts[8]
  resource_group_name = local.parts[4]

  lifecycle {
    postcondition {
      condition     = (length(self.virtual_hub) > 0) == var.is_virtual_hub
      error_message = "existing_firewall_virtual_hub: must be true for a firewall in a virtual WAN hub, and false for one in a network."
    }
  }
}

locals {
  addresses = data.azurerm_firewall.this.ip_configuration
  secured   = data.azurerm_firewall.this.virtual_hub

  address   = try(local.addresses[0].private_ip_address, local.secured[0].private_ip_address)
  hub_id    = try(split("/subnets/", local.addresses[0].subnet_id)[0], local.secured[0].virtual_hub_id)
  hub_parts = split("/", local.hub_id)

  peered_spokes    = contains(var.may_change, "peerings") && !var.is_virtual_hub ? var.spoke_ids : {}
  connected_spokes = contains(var.may_change, "peerings") && var.is_virtual_hub ? var.spoke_ids : {}
}

resource "azurerm_virtual_network_peering" "hub_to_spoke" {
  for_each = local.peered_spokes

  name                      = "${var.name}-${each.key}"
  resource_group_name       = local.hub_parts[4]
  virtual_network_name      = local.hub_parts[8]
  remote_virtual_network_id = each.value
  allow_forwarded_traffic   = true
}

# Routing intent sends private traffic between the connections to the firewall. Internet traffic must
# keep its own way, because jobs and results do not use the path under test.
resource "azurerm_virtual_hub_connection" "spoke" {
  for_each = local.connected_spokes

  name                      = "${var.name}-${each.key}"
  virtual_hub_id            = local.hub_id
  remote_virtual_network_id = each.value
  internet_security_enabled = false
}

# Routing intent writes this route into the hub's default route table.
data "azurerm_virtual_hub_route_table" "default" {
  count = var.is_virtual_hub ? 1 : 0

  name                = "defaultRouteTable"
  resource_group_name = local.hub_parts[4]
  virtual_hub_name    = local.hub_parts[8]
}
