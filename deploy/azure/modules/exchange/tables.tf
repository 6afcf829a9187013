# Three tables, for rights are given by table: what agents read, what they write, and what is not
# theirs. Made by the Resource Manager: azurerm_storage_table speaks to the table service with the
# account's shared key, and those are off.

locals {
  tables = {
    control = "control" # plans and control rows: agents read
    results = "results" # presences, claims, reports, seconds: agents write
    private = "private" # tokens, schedules, studies, audit: the coordinator's alone
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

# `broadside up` reads boot statuses and heartbeats as whoever deploys, to say which agents are ready.
resource "azurerm_role_assignment" "deployer_results" {
  count = var.private_endpoints ? 0 : 1

  name                 = uuidv5("url", "${azurerm_storage_account.this.id}/${local.tables.results}/Storage Table Data Reader/${var.deployer_principal_id}")
  scope                = "${azurerm_storage_account.this.id}/tableServices/default/tables/${local.tables.results}"
  role_definition_name = "Storage Table Data Reader"
  principal_id         = var.deployer_principal_id

  depends_on = [azurerm_resource_group_template_deployment.tables]
}
