# Three tables, because access is given per table. Agents can read the first one and write the
# second one, and have no access to the third one. The tables are created by the Resource Manager,
# because azurerm_storage_table would use the shared key of the account, which is disabled.

locals {
  tables = {
    control = "control" # plans and control rows, agents can read
    results = "results" # presences, claims, reports and seconds, agents can write
    private = "private" # tokens, schedules, studies and audit, for the coordinator only
  }
}

resource "azurerm_resource_group_template_deployment" "tables" {
  name                = "${var.context.names.deploy}-tables"
  resource_group_name = var.context.group_name
  deployment_mode     = "Incremental"
  tags                = var.context.tags

  template_content = jsonencode({
    "$schema"      = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
    contentVersion = "1.0.0.0"
    resources = [
      for name in values(local.tables) : {
        type       = "Microsoft.Storage/storageAccounts/tableServices/tables"
        apiVersion = "2025-06-01"
        name       = "${azurerm_storage_account.this.name}/default/${name}"
      }
    ]
  })
}

# Used by `broadside up` to get boot statuses and heartbeats and to show which agents are ready.
resource "azurerm_role_assignment" "deployer_results" {
  count = var.private_endpoints ? 0 : 1

  name                 = uuidv5("url", "${azurerm_storage_account.this.id}/${local.tables.results}/Storage Table Data Reader/${var.deployer_principal_id}")
  scope                = "${azurerm_storage_account.this.id}/tableServices/default/tables/${local.tables.results}"
  role_definition_name = "Storage Table Data Reader"
  principal_id         = var.deployer_principal_id

  depends_on = [azurerm_resource_group_template_deployment.tables]
}
