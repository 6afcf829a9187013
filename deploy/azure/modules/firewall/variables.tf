variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region, tags."
}

variable "tier" {
  type        = string
  description = "Basic, Standard or Premium, of firewall and policy."
}

variable "zones" {
  type        = set(string)
  description = "Availability zones of firewall and addresses."
}

variable "subnet_id" {
  type        = string
  description = "AzureFirewallSubnet."
}

variable "management_subnet_id" {
  type        = string
  description = "AzureFirewallManagementSubnet; null unless Basic."
}

variable "idps_mode" {
  type        = string
  description = "Off, Alert or Deny; only Premium has it."
}

variable "threat_intelligence_mode" {
  type        = string
  description = "Off, Alert or Deny."
}

variable "tls_inspection" {
  type = object({
    key_vault_secret_id = string
    identity_id         = string
    ports               = list(number)
  })
  description = "TLS inspection, or null."
}
