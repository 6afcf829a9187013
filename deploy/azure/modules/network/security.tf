# Rules for each subnet. Each group has a rule at the end to deny all traffic in both directions,
# because the default rules of Azure allow traffic inside a network and to the internet.

resource "azurerm_network_security_group" "this" {
  for_each = toset(local.own_groups)

  name                = "${var.context.names.nsg}-${each.key}"
  resource_group_name = var.context.group_name
  location            = var.context.location
  tags                = var.context.tags
}

locals {
  # Existing subnets have the groups of their owner.
  own_groups = concat(local.own_spokes ? ["clients", "servers"] : [], local.own_hub ? ["coordinator"] : [])

  # Address of the exchange, as tags for the services in this region or as the subnet of the private
  # endpoints.
  exchange = var.private_endpoints ? {
    ServiceBus = local.prefixes.endpoints
    Storage    = local.prefixes.endpoints
    } : {
    ServiceBus = "ServiceBus.${var.context.location}"
    Storage    = "Storage.${var.context.location}"
  }
  exchange_ports = { ServiceBus = "5671", Storage = "443" } # AMQP over TLS, and HTTPS

  to_exchange = [
    for service, prefix in local.exchange :
    { name = "To${service}", protocol = "Tcp", ports = [local.exchange_ports[service]], from = "VirtualNetwork", to = prefix }
  ]

  traffic = concat(
    [{ name = "TrafficTcp", flow = "tcp", protocol = "Tcp", ports = var.traffic.tcp_ports, from = local.prefixes.clients, to = local.prefixes.servers }],
    [{ name = "TrafficUdp", flow = "udp", protocol = "Udp", ports = var.traffic.udp_ports, from = local.prefixes.clients, to = local.prefixes.servers }],
    var.traffic.icmp_enabled ? [{ name = "Echo", flow = "echo", protocol = "Icmp", ports = ["*"], from = local.prefixes.clients, to = local.prefixes.servers }] : [],
  )

  # Only the firewall blocks these, to show that it does.
  forbidden = [for protocol in ["Tcp", "Udp"] : { name = "Canary${protocol}", flow = "canary-${lower(protocol)}", protocol = protocol, ports = var.traffic.forbidden_ports, from = local.prefixes.clients, to = local.prefixes.servers } if length(var.traffic.forbidden_ports) > 0]

  # With the switch snat, each unit of the firewall is the source.
  translated = [for rule in concat(local.traffic, local.forbidden) : merge(rule, { name = "${rule.name}Translated", from = local.prefixes.firewall }) if var.translated_enabled]

  # The source port of a tunnel's outer packets is a hash of the inner flow. So the packets that a
  # server sends are a new flow for a group, and not a response. They need their own rule.
  vxlan_to_servers = [for port in var.traffic.vxlan_port[*] : { name = "VxlanToServers", flow = "vxlan-to-servers", protocol = "Udp", ports = [tostring(port)], from = local.prefixes.clients, to = local.prefixes.servers }]
  vxlan_to_clients = [for port in var.traffic.vxlan_port[*] : { name = "VxlanToClients", flow = "vxlan-to-clients", protocol = "Udp", ports = [tostring(port)], from = local.prefixes.servers, to = local.prefixes.clients }]

  # Other return traffic does not need any rules, because groups are stateful.
  allowed = {
    clients = {
      Inbound  = local.vxlan_to_clients
      Outbound = concat(local.traffic, local.forbidden, local.to_exchange, local.vxlan_to_servers)
    }
    servers = {
      Inbound  = concat(local.traffic, local.forbidden, local.vxlan_to_servers, local.translated)
      Outbound = concat([local.to_exchange[1]], local.vxlan_to_clients) # servers do not get any jobs
    }
    coordinator = {
      Inbound = [{ name = "SshFromBastion", protocol = "Tcp", ports = ["22"], from = local.prefixes.bastion, to = "VirtualNetwork" }]
      Outbound = concat(local.to_exchange, [
        { name = "ToResourceManager", protocol = "Tcp", ports = ["443"], from = "VirtualNetwork", to = "AzureResourceManager" },
        { name = "ToEntra", protocol = "Tcp", ports = ["443"], from = "VirtualNetwork", to = "AzureActiveDirectory" },
      ], [for name in ["ToLogAnalytics"] : { name = name, protocol = "Tcp", ports = ["443"], from = "VirtualNetwork", to = "AzureMonitor" } if var.flow_logs])
    }
  }

  rules = merge([
    for group, directions in local.allowed : merge([
      for direction, rules in directions : {
        for index, rule in rules :
        "${group}-${rule.name}" => merge(rule, { group = group, direction = direction, priority = 100 + 10 * index }) if contains(local.own_groups, group)
      }
    ]...)
  ]...)
}

resource "azurerm_network_security_rule" "allow" {
  for_each = local.rules

  name                        = each.value.name
  resource_group_name         = var.context.group_name
  network_security_group_name = azurerm_network_security_group.this[each.value.group].name
  priority                    = each.value.priority
  direction                   = each.value.direction
  access                      = "Allow"
  protocol                    = each.value.protocol
  source_address_prefix       = each.value.from
  source_port_range           = "*"
  destination_address_prefix  = each.value.to
  # A single port or all ports are set in the singular form, because the plural form does not
  # support "*".
  destination_port_range  = length(each.value.ports) == 1 ? each.value.ports[0] : null
  destination_port_ranges = length(each.value.ports) > 1 ? each.value.ports : null
}

resource "azurerm_network_security_rule" "deny" {
  for_each = merge([
    for group in local.own_groups : {
      for direction in ["Inbound", "Outbound"] : "${group}-${direction}" => { group = group, direction = direction }
    }
  ]...)

  name                        = "Nothing${each.value.direction}"
  resource_group_name         = var.context.group_name
  network_security_group_name = azurerm_network_security_group.this[each.value.group].name
  priority                    = 4096
  direction                   = each.value.direction
  access                      = "Deny"
  protocol                    = "*"
  source_address_prefix       = "*"
  source_port_range           = "*"
  destination_address_prefix  = "*"
  destination_port_range      = "*"
}

resource "azurerm_subnet_network_security_group_association" "clients" {
  count = local.own_spokes ? 1 : 0

  subnet_id                 = azurerm_subnet.clients[0].id
  network_security_group_id = azurerm_network_security_group.this["clients"].id
}

resource "azurerm_subnet_network_security_group_association" "servers" {
  count = local.own_spokes ? 1 : 0

  subnet_id                 = azurerm_subnet.servers[0].id
  network_security_group_id = azurerm_network_security_group.this["servers"].id
}

resource "azurerm_subnet_network_security_group_association" "coordinator" {
  count = local.own_hub ? 1 : 0

  subnet_id                 = azurerm_subnet.coordinator[0].id
  network_security_group_id = azurerm_network_security_group.this["coordinator"].id
}
