# Ports of the traffic from clients to servers, and tunnels in both directions, because each end of
# a tunnel opens its own flows. There are no other rules, because storage and Service Bus are not
# used through the firewall.
resource "azurerm_firewall_policy_rule_collection_group" "traffic" {
  name               = var.group_name
  firewall_policy_id = var.policy_id
  priority           = var.priority

  network_rule_collection {
    name     = "traffic"
    priority = 100
    action   = "Allow"

    dynamic "rule" {
      for_each = var.flows

      content {
        name                  = rule.value.flow
        protocols             = [upper(rule.value.protocol)]
        source_addresses      = [rule.value.from]
        destination_addresses = [rule.value.to]
        destination_ports     = rule.value.ports # not used for ICMP but required, so this is "*"
      }
    }
  }

  # Only application rules can inspect TLS, so there is one for the HTTPS engines if this is
  # enabled.
  dynamic "application_rule_collection" {
    for_each = var.tls_inspection[*]

    content {
      name     = "inspected"
      priority = 200
      action   = "Allow"

      rule {
        name              = "https"
        source_addresses  = [var.clients_prefix]
        destination_fqdns = ["*"] # servers have no names, so the sources and the ports are the limit
        terminate_tls     = true

        dynamic "protocols" {
          for_each = application_rule_collection.value.ports

          content {
            type = "Https"
            port = protocols.value
          }
        }
      }
    }
  }
}
