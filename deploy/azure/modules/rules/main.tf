# The traffic's ports from clients to servers, and tunnels both ways, for each end of one opens flows
# of its own. Nothing else: the agents' other needs (storage, Service Bus) do not come this way.
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
        destination_ports     = rule.value.ports # ICMP has none, and the argument is required: "*"
      }
    }
  }

  # Only application rules inspect TLS, so HTTPS engines get one when it is on.
  dynamic "application_rule_collection" {
    for_each = var.tls_inspection[*]

    content {
      name     = "inspected"
      priority = 200
      action   = "Allow"

      rule {
        name              = "https"
        source_addresses  = [var.clients_prefix]
        destination_fqdns = ["*"] # servers are addressed by number; sources and ports bound it
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
