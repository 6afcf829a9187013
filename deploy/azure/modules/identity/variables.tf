variable "context" {
  type        = object({ name = string, names = map(string), group_name = string, group_id = string, location = string, suffix = string, tags = map(string) })
  description = "Of the whole range: name, first parts of names by kind of resource, resource group, its id, region, the suffix that makes names unique in the tenant, tags."
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
  description = "The queue of the jobs."
}

variable "metrics_granted" {
  type        = bool
  description = "Whether the coordinator gets the right to read the firewall's metrics here."
}

variable "firewall_id" {
  type        = string
  description = "The firewall, or null."
}

variable "switch_enabled" {
  type        = bool
  description = "Whether the coordinator may change the firewall policy's modes."
}

variable "policy_id" {
  type        = string
  description = "The policy, or null if it may not change one."
}
