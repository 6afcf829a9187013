output "identities" {
  value       = { for role, it in azurerm_user_assigned_identity.this : role => { id = it.id, client_id = it.client_id, principal_id = it.principal_id } }
  description = "Ids by role; the client id is BROADSIDE_MANAGED_IDENTITY_CLIENT_ID."
}
