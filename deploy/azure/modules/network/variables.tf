variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region (also of the service tags that agents may reach), tags."
}

variable "cidrs" {
  type        = object({ hub = string, clients = string, servers = string })
  description = "Address spaces of the hub and of the two spokes."
}

variable "traffic" {
  type = object({
    tcp_ports       = list(string)
    forbidden_ports = list(string)
    udp_ports       = list(string)
    icmp_enabled    = bool   # ICMP echo requests from clients to servers
    vxlan_port      = number # UDP port for tunnels, allowed in both directions, or null for none
  })
  description = "Traffic between the spokes."
}

variable "translated_enabled" {
  type        = bool
  description = "Servers accept the traffic from the firewall's subnet too, as its policy may translate the source."
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
  description = "Use private endpoints: agents reach their subnet and no public address."
}

variable "existing_subnet_ids" {
  type        = map(string)
  description = "Existing subnets, by their purpose."
}

variable "flow_logs" {
  type        = bool
  description = "Allow the coordinator to connect to Log Analytics."
}
