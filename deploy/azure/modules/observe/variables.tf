variable "name" {
  type        = string
  description = "First part of every name."
}

variable "names" {
  type        = map(string)
  description = "First part of every name, by kind of resource."
}

variable "resource_group_name" {
  type        = string
  description = "Resource group."
}

variable "resource_group_id" {
  type        = string
  description = "Its id, from which the workbook's name is derived."
}

variable "location" {
  type        = string
  description = "Region."
}

variable "tags" {
  type        = map(string)
  description = "Tags."
}

variable "retention_days" {
  type        = number
  description = "Days for which metrics and logs are kept."
}

variable "diagnostics_enabled" {
  type        = bool
  description = "Whether diagnostic settings are made here."
}

variable "has_firewall" {
  type        = bool
  description = "Whether there is an Azure Firewall to watch."
}

variable "firewall_id" {
  type        = string
  description = "That firewall; null without."
}

variable "firewall_logs" {
  type        = bool
  description = "Keep its rule logs too."
}

variable "servicebus_id" {
  type        = string
  description = "The Service Bus namespace."
}

variable "storage_account_id" {
  type        = string
  description = "The storage account."
}
