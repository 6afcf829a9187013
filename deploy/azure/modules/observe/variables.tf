variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region, tags."
}

variable "retention_days" {
  type        = number
  description = "Retention of metrics and logs in days."
}

variable "diagnostics_enabled" {
  type        = bool
  description = "Whether diagnostic settings are created here."
}

variable "has_firewall" {
  type        = bool
  description = "Whether there is an Azure Firewall to watch."
}

variable "firewall_id" {
  type        = string
  description = "The firewall, or null."
}

variable "firewall_logs" {
  type        = bool
  description = "Store its rule logs too."
}

variable "firewall_flow_logs" {
  type        = bool
  description = "Store its top flows and flow trace."
}

variable "servicebus_id" {
  type        = string
  description = "The Service Bus namespace."
}

variable "storage_account_id" {
  type        = string
  description = "The storage account."
}
