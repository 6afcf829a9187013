# Changes that are needed in existing resources but not allowed, as commands for their owners.

locals {
  hub    = try(split("/", module.existing_firewall[0].hub_id), [])
  policy = try(split("/", module.existing_firewall[0].policy_id), [])

  proposed_peerings = !local.existing_firewall || contains(var.may_change, "peerings") ? [] : [
    for spoke, id in local.own_spoke_ids :
    var.existing_firewall_virtual_hub ?
    "az rest --method put --url ${join("/", local.hub)}/hubVirtualNetworkConnections/${var.name}-${spoke}?api-version=2024-05-01 --body '${jsonencode({ properties = { remoteVirtualNetwork = { id = id }, enableInternetSecurity = false } })}'" :
    "az network vnet peering create --name ${var.name}-${spoke} --resource-group ${local.hub[4]} --subscription ${local.hub[2]} --vnet-name ${local.hub[8]} --remote-vnet ${id} --allow-vnet-access --allow-forwarded-traffic"
  ]

  proposed_rules = !local.existing_firewall || contains(var.may_change, "rules") ? [] : concat(
    ["az network firewall policy rule-collection-group create --name ${var.name}-traffic --priority ${var.existing_rules_priority} --policy-name ${local.policy[8]} --resource-group ${local.policy[4]} --subscription ${local.policy[2]}"],
    [
      for index, rule in module.network.flows :
      "az network firewall policy rule-collection-group collection add-filter-collection --name ${rule.flow} --collection-priority ${100 + index} --action Allow --rule-name ${rule.flow} --rule-type NetworkRule --ip-protocols ${upper(rule.protocol)} --source-addresses ${rule.from} --destination-addresses ${rule.to} --destination-ports ${join(" ", [for port in rule.ports : port == "*" ? "'*'" : port])} --rule-collection-group-name ${var.name}-traffic --policy-name ${local.policy[8]} --resource-group ${local.policy[4]} --subscription ${local.policy[2]}"
    ],
  )

  proposed_metrics = !local.existing_firewall || contains(var.may_change, "metrics") ? [] : [
    "az role assignment create --role 'Monitoring Reader' --assignee-object-id ${module.identity.identities.coordinator.principal_id} --assignee-principal-type ServicePrincipal --scope ${coalesce(var.existing_firewall_id, "-")}"
  ]

  proposed_routes = local.own_spokes ? [] : [
    for way in [{ subnet = "clients", to = module.network.prefixes.servers }, { subnet = "servers", to = module.network.prefixes.clients }] :
    "az network route-table route create --name through-firewall --address-prefix ${way.to} --next-hop-type VirtualAppliance --next-hop-ip-address ${local.next_hop_address == null ? "<firewall>" : local.next_hop_address} --route-table-name <table of ${var.existing_subnet_ids[way.subnet]}> --resource-group <its group>"
  ]

  proposal = {
    peerings = local.proposed_peerings
    rules    = local.proposed_rules
    metrics  = local.proposed_metrics
    routes   = local.proposed_routes
  }
}
