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

variable "location" {
  type        = string
  description = "Region."
}

variable "tags" {
  type        = map(string)
  description = "Tags."
}

variable "container_id" {
  type        = string
  description = "Container of the agents' package."
}

variable "table_ids" {
  type        = map(string)
  description = "The tables control, results and private."
}

variable "queue_id" {
  type        = string
  description = "The one queue."
}

variable "metrics_granted" {
  type        = bool
  description = "Whether the coordinator gets the right to read the firewall's metrics here."
}

variable "firewall_id" {
  type        = string
  description = "That firewall; null without."
}

variable "suffix" {
  type        = string
  description = "Makes the role's name unique in the tenant."
}

variable "resource_group_id" {
  type        = string
  description = "The only scope in which the role can be assigned."
}

variable "switch_enabled" {
  type        = bool
  description = "Whether the coordinator may change the firewall policy's modes."
}

variable "policy_id" {
  type        = string
  description = "That policy; null when it may not."
}
