# Three identities with the permissions that they need. The names of the assignments are based on
# their content, so that an assignment from an `up` that was interrupted can be found again. There
# are no keys, passwords or connection strings, because shared keys and local authentication are
# disabled in both services.

resource "azurerm_user_assigned_identity" "this" {
  for_each = toset(["clients", "servers", "coordinator"])

  name                = "${var.context.names.id}-${each.key}"
  resource_group_name = var.context.group_name
  location            = var.context.location
  tags                = var.context.tags
}

resource "azurerm_role_assignment" "package" {
  for_each = azurerm_user_assigned_identity.this

  name                 = uuidv5("url", "${var.container_id}/Storage Blob Data Reader/${each.value.principal_id}")
  scope                = var.container_id
  role_definition_name = "Storage Blob Data Reader"
  principal_id         = each.value.principal_id
  principal_type       = "ServicePrincipal"
  description          = "Fetch the package at boot."
}

locals {
  table_roles = merge(
    { for table in ["control", "results", "private"] : "coordinator-${table}" => { identity = "coordinator", table = table, role = "Storage Table Data Contributor" } },
    { for fleet in ["clients", "servers"] : "${fleet}-control" => { identity = fleet, table = "control", role = "Storage Table Data Reader" } },
    { for fleet in ["clients", "servers"] : "${fleet}-results" => { identity = fleet, table = "results", role = "Storage Table Data Contributor" } },
  )
}

resource "azurerm_role_assignment" "table" {
  for_each = local.table_roles

  name                 = uuidv5("url", "${var.table_ids[each.value.table]}/${each.value.role}/${azurerm_user_assigned_identity.this[each.value.identity].principal_id}")
  scope                = var.table_ids[each.value.table]
  role_definition_name = each.value.role
  principal_id         = azurerm_user_assigned_identity.this[each.value.identity].principal_id
  principal_type       = "ServicePrincipal"
  description          = "Plans, reports and seconds in the table ${each.value.table}."
}

resource "azurerm_role_assignment" "receive" {
  for_each = toset(["clients", "coordinator"])

  name                 = uuidv5("url", "${var.queue_id}/Azure Service Bus Data Receiver/${azurerm_user_assigned_identity.this[each.key].principal_id}")
  scope                = var.queue_id
  role_definition_name = "Azure Service Bus Data Receiver"
  principal_id         = azurerm_user_assigned_identity.this[each.key].principal_id
  principal_type       = "ServicePrincipal"
  description          = each.key == "clients" ? "Take jobs." : "Count messages, read and resend dead letters."
}

resource "azurerm_role_assignment" "send" {
  name                 = uuidv5("url", "${var.queue_id}/Azure Service Bus Data Sender/${azurerm_user_assigned_identity.this["coordinator"].principal_id}")
  scope                = var.queue_id
  role_definition_name = "Azure Service Bus Data Sender"
  principal_id         = azurerm_user_assigned_identity.this["coordinator"].principal_id
  principal_type       = "ServicePrincipal"
  description          = "Queue and cancel jobs."
}

resource "azurerm_role_assignment" "metrics" {
  count = var.metrics_granted ? 1 : 0

  name                 = uuidv5("url", "${var.firewall_id}/Monitoring Reader/${azurerm_user_assigned_identity.this["coordinator"].principal_id}")
  scope                = var.firewall_id
  role_definition_name = "Monitoring Reader"
  principal_id         = azurerm_user_assigned_identity.this["coordinator"].principal_id
  principal_type       = "ServicePrincipal"
  description          = "Read the metrics of the firewall."
}

# None of the built-in roles is small enough. With Network Contributor, the coordinator could delete
# the policy and change its rules, which are separate resources.
resource "azurerm_role_definition" "modes" {
  count = var.switch_enabled ? 1 : 0

  name              = "${var.context.name}-${var.context.suffix}-firewall-modes"
  scope             = var.context.group_id
  assignable_scopes = [var.context.group_id]
  description       = "Set the mode of a firewall policy."

  permissions {
    actions = [
      "Microsoft.Network/firewallPolicies/read",
      "Microsoft.Network/firewallPolicies/write",
    ]
  }
}

resource "azurerm_role_assignment" "modes" {
  count = var.switch_enabled ? 1 : 0

  name               = uuidv5("url", "${var.policy_id}/${azurerm_role_definition.modes[0].role_definition_resource_id}/${azurerm_user_assigned_identity.this["coordinator"].principal_id}")
  scope              = var.policy_id
  role_definition_id = azurerm_role_definition.modes[0].role_definition_resource_id
  principal_id       = azurerm_user_assigned_identity.this["coordinator"].principal_id
  principal_type     = "ServicePrincipal"
  description        = "Switch its modes for A/B studies."
}
