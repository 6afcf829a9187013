variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region, tags."
}

variable "hub_cidr" {
  type        = string
  description = "Address space of the hub."
}

variable "clients_cidr" {
  type        = string
  description = "Address space of the clients' spoke."
}

variable "servers_cidr" {
  type        = string
  description = "Address space of the servers' spoke."
}

variable "bypass" {
  type        = bool
  description = "Peer the spokes with each other too."
}

variable "firewall_tier" {
  type        = string
  description = "Basic needs a management subnet."
}

variable "private_endpoints" {
  type        = bool
  description = "Then agents reach the endpoints' subnet and no public address at all."
}

variable "tcp_ports" {
  type        = list(string)
  description = "TCP ports of the traffic."
}

variable "udp_ports" {
  type        = list(string)
  description = "UDP ports of the traffic."
}

variable "icmp_enabled" {
  type        = bool
  description = "Let echo requests from clients to servers through."
}

variable "vxlan_port" {
  type        = number
  description = "UDP port of VXLAN tunnels, let through both ways; null: none."
}

variable "existing_subnet_ids" {
  type        = map(string)
  description = "Subnets that stand already, by what is to be in them."
}
