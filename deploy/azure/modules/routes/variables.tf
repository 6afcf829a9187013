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

variable "parked" {
  type        = bool
  description = "The firewall has no address now, and so the routes have no next hop."
}
