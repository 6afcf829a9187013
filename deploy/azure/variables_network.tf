variable "hub_cidr" {
  type        = string
  default     = "10.70.0.0/16"
  description = "Address space of the hub: firewall or appliance, coordinator, Bastion, private endpoints."

  validation {
    condition     = can(cidrsubnet(var.hub_cidr, 10, 0)) && try(tonumber(split("/", var.hub_cidr)[1]) <= 16, false)
    error_message = "hub_cidr: must be an IPv4 CIDR of /16 or larger."
  }
}

variable "clients_cidr" {
  type        = string
  default     = "10.71.0.0/16"
  description = "Address space of the clients' spoke."

  validation {
    condition     = try(tonumber(split("/", cidrsubnet(var.clients_cidr, 0, 0))[1]) <= 21, false)
    error_message = "clients_cidr: must be an IPv4 CIDR of /21 or larger: a scale set may have 1,000 VMs."
  }
}

variable "servers_cidr" {
  type        = string
  default     = "10.72.0.0/16"
  description = "Address space of the servers' spoke."

  validation {
    condition     = try(tonumber(split("/", cidrsubnet(var.servers_cidr, 0, 0))[1]) <= 21, false)
    error_message = "servers_cidr: must be an IPv4 CIDR of /21 or larger: a scale set may have 1,000 VMs."
  }

  validation {
    # Two networks overlap if the first address of the smaller one, with the prefix length of the
    # larger one, is the first address of the larger one.
    condition = alltrue([
      for pair in [[var.hub_cidr, var.clients_cidr], [var.hub_cidr, var.servers_cidr], [var.clients_cidr, var.servers_cidr]] :
      try(cidrhost("${cidrhost(pair[0], 0)}/${min(split("/", pair[0])[1], split("/", pair[1])[1])}", 0) != cidrhost("${cidrhost(pair[1], 0)}/${min(split("/", pair[0])[1], split("/", pair[1])[1])}", 0), true)
    ])
    error_message = "servers_cidr: hub_cidr, clients_cidr and servers_cidr overlap; networks that are peered may not."
  }
}

variable "endpoint_ports" {
  type        = list(number)
  default     = [5201]
  description = "Ports on which each server offers iperf3, one test at a time on each: the firewall allows TCP and UDP on these ports only."

  validation {
    condition     = length(var.endpoint_ports) > 0 && alltrue([for port in var.endpoint_ports : port >= 1024 && port <= 65535])
    error_message = "endpoint_ports: at least one, each 1024 to 65535; the agent may not bind lower ones."
  }

  validation {
    condition     = !contains(var.endpoint_ports, 65330)
    error_message = "endpoint_ports: Azure reserves port 65330 of every VM; use another one."
  }
}

variable "service_ports" {
  type        = map(list(number))
  default     = {}
  description = "Engines that each server offers beside iperf3, and their TCP ports, one for each pair that it serves at once: { http = [8080], https = [8443], ftp = [2121] }. The firewall allows them, and the passive ports of FTP."

  validation {
    condition     = alltrue([for engine in keys(var.service_ports) : contains(["http", "https", "ftp", "connections"], split(":", engine)[0])])
    error_message = "service_ports: engines are http, https, ftp and connections; iperf3's ports are endpoint_ports."
  }

  validation {
    condition     = alltrue([for port in flatten(values(var.service_ports)) : port >= 1024 && port <= 49999])
    error_message = "service_ports: each 1024 to 49999; the agent may not bind lower ones, and FTP's passive ones are above."
  }

  validation {
    condition     = length(distinct(concat(var.endpoint_ports, flatten(values(var.service_ports))))) == length(var.endpoint_ports) + length(flatten(values(var.service_ports)))
    error_message = "service_ports: a port is used twice, here or in endpoint_ports; use a different port for each service."
  }
}

variable "echo_port" {
  type        = number
  default     = 5200
  description = "UDP port at which servers answer probes (traffic.probe): latency under load."

  validation {
    condition     = var.echo_port >= 1024 && var.echo_port <= 65535 && var.echo_port != 65330
    error_message = "echo_port: must be 1024 to 65535, and not 65330, which Azure reserves."
  }
}

variable "canary_ports" {
  type        = list(number)
  default     = []
  description = "Two ports (TCP and UDP) at which servers answer canaries (traffic.canary): [5198, 5199]. The firewall allows only the first one."

  validation {
    condition     = length(var.canary_ports) == 0 || (length(distinct(var.canary_ports)) == 2 && alltrue([for port in var.canary_ports : port >= 1024 && port <= 49999]))
    error_message = "canary_ports: must be two different ports from 1024 to 49999, or empty."
  }
}

variable "extra_tcp_ports" {
  type        = list(string)
  default     = []
  description = "Further TCP ports or ranges, from clients to servers."

  validation {
    condition     = alltrue([for port in var.extra_tcp_ports : can(regex("^[0-9]{2,5}(-[0-9]{2,5})?$", port))])
    error_message = "extra_tcp_ports: must be ports or ranges such as \"8443\" or \"30000-30063\"; never \"*\"."
  }

  validation {
    condition     = alltrue([for port in var.extra_tcp_ports : try(!(tonumber(split("-", port)[0]) <= 65330 && tonumber(reverse(split("-", port))[0]) >= 65330), true)])
    error_message = "extra_tcp_ports: Azure reserves port 65330 of every VM; omit it."
  }
}

variable "extra_udp_ports" {
  type        = list(string)
  default     = []
  description = "Further UDP ports or ranges, from clients to servers. For VXLAN set vxlan_port: its replies need a way of their own."

  validation {
    condition     = alltrue([for port in var.extra_udp_ports : can(regex("^[0-9]{2,5}(-[0-9]{2,5})?$", port))])
    error_message = "extra_udp_ports: must be ports or ranges such as \"5001-5064\"; never \"*\"."
  }

  validation {
    condition     = alltrue([for port in var.extra_udp_ports : try(!(tonumber(split("-", port)[0]) <= 65330 && tonumber(reverse(split("-", port))[0]) >= 65330), true)])
    error_message = "extra_udp_ports: Azure reserves port 65330 of every VM; omit it."
  }
}

variable "vxlan_port" {
  type        = number
  default     = null
  description = "UDP port of bursts inside VXLAN (4789), allowed in both directions between clients and servers. Agents may create the tunnels (CAP_NET_ADMIN). null: no tunnels."

  validation {
    condition     = try(var.vxlan_port >= 1024 && var.vxlan_port <= 65535 && var.vxlan_port != 65330, var.vxlan_port == null)
    error_message = "vxlan_port: must be 1024 to 65535, and not 65330, which Azure reserves; or null."
  }
}

variable "icmp_enabled" {
  type        = bool
  default     = true
  description = "Allow echo requests from clients to servers: round-trip times beside the load."
}

variable "bypass" {
  type        = bool
  default     = false
  description = "The reference pre-test: peer the spokes directly and remove the routes through the appliance, so that the fleet's own ceiling is measured."
}

variable "private_endpoints" {
  type        = bool
  default     = false
  description = "Reach storage and Service Bus by private endpoints alone: their public sides are closed, but for the minute in which `broadside up` uploads the package. Needs, and switches to, a Premium Service Bus namespace: Standard has none."
}
