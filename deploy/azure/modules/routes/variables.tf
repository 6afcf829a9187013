variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region, tags."
}

variable "bypass" {
  type        = bool
  description = "Create no routes."
}

variable "next_hop_address" {
  type        = string
  description = "Private address of the firewall, or of the load balancer of other appliances."
}

variable "spokes" {
  type = map(object({
    subnet_id    = string
    other_prefix = string # destination of the traffic from this spoke through the appliance
  }))
  description = "Spokes by name."
}

variable "is_virtual_hub" {
  type        = bool
  description = "A virtual hub gives the spokes their routes."
}

variable "parked" {
  type        = bool
  description = "The firewall has no address (parked), so the routes have no next hop."
}
