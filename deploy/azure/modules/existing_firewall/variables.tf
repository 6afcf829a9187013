variable "name" {
  type        = string
  description = "The range's name, the first part of what it adds to the hub."
}

variable "firewall_id" {
  type        = string
  description = "The firewall."
}

variable "may_change" {
  type        = set(string)
  description = "Parts of it that may be changed."
}

variable "spoke_ids" {
  type        = map(string)
  description = "The range's own spokes; empty if existing ones are used."
}

variable "is_virtual_hub" {
  type        = bool
  description = "Whether the firewall is in a secured virtual WAN hub."
}
