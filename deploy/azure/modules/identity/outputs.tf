output "ids" {
  value       = { for role, identity in azurerm_user_assigned_identity.this : role => identity.id }
  description = "Resource ids, by role."
}

output "client_ids" {
  value       = { for role, identity in azurerm_user_assigned_identity.this : role => identity.client_id }
  description = "Client ids, by role: BROADSIDE_MANAGED_IDENTITY_CLIENT_ID."
}

output "principal_ids" {
  value       = { for role, identity in azurerm_user_assigned_identity.this : role => identity.principal_id }
  description = "Principal ids, by role."
}
