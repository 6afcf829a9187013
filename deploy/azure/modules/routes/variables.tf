variable "name" {
  type        = string
  description = "First part of every name."
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

variable "bypass" {
  type        = bool
  description = "Leave the routes out."
}

variable "next_hop_address" {
  type        = string
  description = "Private address of the firewall, or of the load balancer before other appliances."
}

variable "spokes" {
  type = map(object({
    subnet_id    = string
    other_prefix = string # where traffic of this spoke goes through the appliance
  }))
  description = "Spokes by name."
}
