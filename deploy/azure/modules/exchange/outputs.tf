output "servicebus_id" {
  value       = azurerm_servicebus_namespace.this.id
  description = "The namespace."
}

output "servicebus_host" {
  value       = "${azurerm_servicebus_namespace.this.name}.${var.domains.servicebus}"
  description = "BROADSIDE_SERVICEBUS_NAMESPACE."
}

output "queue_name" {
  value       = azurerm_servicebus_queue.jobs.name
  description = "BROADSIDE_SERVICEBUS_QUEUE."
}

output "queue_id" {
  value       = azurerm_servicebus_queue.jobs.id
  description = "Scope of the queue's roles."
}

output "storage_account_id" {
  value       = azurerm_storage_account.this.id
  description = "The storage account."
}

output "tables_endpoint" {
  value       = trimsuffix(azurerm_storage_account.this.primary_table_endpoint, "/")
  description = "BROADSIDE_TABLES_ENDPOINT."
}

output "table_names" {
  value       = local.tables
  description = "Names of the tables by purpose: control, results, private."
}

output "table_ids" {
  value       = { for what, name in local.tables : what => "${azurerm_storage_account.this.id}/tableServices/default/tables/${name}" }
  description = "Scopes of the tables' roles."
  depends_on  = [azurerm_resource_group_template_deployment.tables]
}

output "container_id" {
  value       = azurerm_storage_container.agent.id
  description = "Scope of the package's role."
}

output "bundle_url" {
  value       = "${azurerm_storage_account.this.primary_blob_endpoint}${azurerm_storage_container.agent.name}/${local.package}"
  description = "URL from which VMs download the package."
}

output "package" {
  value = !var.private_endpoints ? null : {
    account   = azurerm_storage_account.this.name
    container = azurerm_storage_container.agent.name
    blob      = local.package
    path      = abspath(var.bundle.path)
  }
  description = "Files that `broadside up` uploads; null if Terraform uploads them."
}

output "boot_table" {
  value = var.private_endpoints ? null : {
    account = azurerm_storage_account.this.name
    name    = local.tables.results
  }
  description = "The table with boot statuses and heartbeats, which `broadside up` reads; null if only machines of the network can connect to it."
  depends_on  = [azurerm_role_assignment.deployer_results]
}
