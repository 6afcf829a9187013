# Start the coordinator in the morning if it is stopped at night. Azure has a schedule for a
# shutdown but none for a start. So we use a workflow with a single request, and an identity that
# can only start this VM. It is a template for the Resource Manager, because the resources of the
# provider would need three times as much code.

locals {
  # Desktop Virtualization Power On Contributor, the smallest role that can start a VM.
  power_on = "489581de-a3bd-480d-9518-53dea7416b33"
  vm_id    = azurerm_linux_virtual_machine.this.id
}

resource "azurerm_user_assigned_identity" "wake" {
  count = var.start_time == null ? 0 : 1

  name                = "${var.context.names.id}-wake"
  resource_group_name = var.context.group_name
  location            = var.context.location
  tags                = var.context.tags
}

resource "azurerm_resource_group_template_deployment" "wake" {
  count = var.start_time == null ? 0 : 1

  name                = "${var.context.names.deploy}-wake"
  resource_group_name = var.context.group_name
  deployment_mode     = "Incremental"
  tags                = var.context.tags

  lifecycle {
    # A new VM does not have the role that was assigned for the old one.
    replace_triggered_by = [azurerm_linux_virtual_machine.this.virtual_machine_id]
  }

  template_content = jsonencode({
    "$schema"      = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
    contentVersion = "1.0.0.0"
    resources = [
      {
        type       = "Microsoft.Compute/virtualMachines/providers/roleAssignments"
        apiVersion = "2022-04-01"
        name       = "${azurerm_linux_virtual_machine.this.name}/Microsoft.Authorization/${uuidv5("url", "${local.vm_id}/wake/${azurerm_user_assigned_identity.wake[0].principal_id}")}"
        properties = {
          roleDefinitionId = "/subscriptions/${split("/", local.vm_id)[2]}/providers/Microsoft.Authorization/roleDefinitions/${local.power_on}"
          principalId      = azurerm_user_assigned_identity.wake[0].principal_id
          principalType    = "ServicePrincipal"
        }
      },
      {
        type       = "Microsoft.Logic/workflows"
        apiVersion = "2019-05-01"
        name       = "${var.context.names.logic}-wake"
        location   = var.context.location
        tags       = var.context.tags
        identity = {
          type                   = "UserAssigned"
          userAssignedIdentities = { (azurerm_user_assigned_identity.wake[0].id) = {} }
        }
        properties = {
          state = "Enabled"
          definition = {
            "$schema"      = "https://schema.management.azure.com/providers/Microsoft.Logic/schemas/2016-06-01/workflowdefinition.json#"
            contentVersion = "1.0.0.0"
            triggers = {
              morning = {
                type = "Recurrence"
                recurrence = {
                  frequency = "Day"
                  interval  = 1
                  timeZone  = var.machine.shutdown_timezone
                  schedule  = { hours = [tonumber(substr(var.start_time, 0, 2))], minutes = [tonumber(substr(var.start_time, 2, 2))] }
                }
              }
            }
            actions = {
              start = {
                type     = "Http"
                runAfter = {}
                inputs = {
                  method = "POST"
                  uri    = "${var.resource_manager.url}${local.vm_id}/start?api-version=2024-07-01"
                  authentication = {
                    type     = "ManagedServiceIdentity"
                    identity = azurerm_user_assigned_identity.wake[0].id
                    audience = var.resource_manager.audience
                  }
                }
              }
            }
          }
        }
      },
    ]
  })
}
