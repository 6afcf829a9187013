variable "instances" {
  type        = number
  default     = 30
  description = "VMs in each of the two scale sets when they are created; `broadside scale N` changes it later."

  validation {
    condition     = var.instances >= 0 && var.instances <= 1000 && floor(var.instances) == var.instances
    error_message = "instances: must be a whole number from 0 to 1000."
  }
}

variable "vm_size" {
  type        = string
  default     = "Standard_D4_v4"
  description = "Size of every agent VM: one of vm_bits_per_second. The limiter uses the rate that is given there."

  validation {
    condition     = contains(keys(var.vm_bits_per_second), var.vm_size)
    error_message = "vm_size: not in vm_bits_per_second; add its documented network bandwidth there."
  }
}

variable "vm_bits_per_second" {
  type = map(number)
  default = { # expected outbound bandwidth in Microsoft's size tables, 2026-03-04; as in coordinator/core/documented_limits.py
    Standard_D4_v4   = 10000000000
    Standard_D8_v4   = 12500000000
    Standard_D16_v4  = 12500000000
    Standard_D4_v5   = 12500000000
    Standard_D8_v5   = 12500000000
    Standard_D16_v5  = 12500000000
    Standard_D32_v5  = 16000000000
    Standard_D4s_v6  = 12500000000
    Standard_D8s_v6  = 12500000000
    Standard_D16s_v6 = 12500000000
  }
  description = "Egress bandwidth of VM sizes, in bit/s. Azure meters egress only."
}

variable "accelerated_networking_enabled" {
  type        = bool
  default     = true
  description = "SR-IOV on the agents' interfaces. Off only to show what it is worth."
}

variable "fleet_zones" {
  type        = set(string)
  default     = []
  description = "Availability zones of the agents; empty: regional, wherever there is room."

  validation {
    condition     = alltrue([for zone in var.fleet_zones : contains(["1", "2", "3"], zone)])
    error_message = "fleet_zones: must be of \"1\", \"2\" and \"3\"."
  }
}

variable "proximity_placement" {
  type        = bool
  default     = false
  description = "Put both scale sets in one proximity placement group: shorter round trips, harder to allocate."

  validation {
    condition     = !var.proximity_placement || length(var.fleet_zones) <= 1
    error_message = "proximity_placement: a placement group is in one zone; set fleet_zones to one zone or none."
  }
}

variable "image" {
  type = object({
    publisher = string
    offer     = string
    sku       = string
    version   = string
  })
  default = {
    publisher = "Debian"
    offer     = "debian-13"
    sku       = "13-gen2"
    version   = "latest"
  }
  description = "Image of agents and coordinator. The bundle's packages are Debian 13's (iperf3 3.18, Python 3.13); another image needs another bundle."

  validation {
    condition     = var.image.offer == "debian-13"
    error_message = "image: the bundle contains packages of Debian 13; build another (deploy/azure/wheelhouse.py) before you change this."
  }
}

variable "encryption_at_host_enabled" {
  type        = bool
  default     = false
  description = "Encrypt disks and caches on the host. The subscription must have the feature EncryptionAtHost registered."
}

variable "ssh_public_key" {
  type        = string
  description = "OpenSSH public key of the operator: for the coordinator through Bastion, and the only way into a VM."

  validation {
    condition     = can(regex("^(ssh-(rsa|ed25519)|ecdsa-sha2-nistp256) ", var.ssh_public_key))
    error_message = "ssh_public_key: must be one line such as \"ssh-rsa AAAA... name\"; see ssh-keygen."
  }
}

variable "agent_capabilities" {
  type        = set(string)
  default     = []
  description = "Further Linux capabilities of the agent; vxlan_port adds CAP_NET_ADMIN."

  validation {
    condition     = alltrue([for capability in var.agent_capabilities : contains(["CAP_NET_ADMIN", "CAP_NET_RAW"], capability)])
    error_message = "agent_capabilities: only CAP_NET_ADMIN and CAP_NET_RAW are of use to an agent."
  }
}

variable "agent_settings" {
  type        = map(string)
  default     = {}
  description = "Further settings of the agents, such as { BROADSIDE_AGENT_DURATION_MAX_S = \"1800\" }."

  validation {
    condition = alltrue([
      for name, value in var.agent_settings :
      can(regex("^BROADSIDE_AGENT_[A-Z0-9_]+$", name)) && can(regex("^[^\n\"'\\\\]*$", value))
    ])
    error_message = "agent_settings: names begin with BROADSIDE_AGENT_, values are one line without quotes."
  }

  validation {
    condition     = length(setintersection(keys(var.agent_settings), [for name in ["PORTS", "SERVICES", "ECHO_PORT", "CANARY_PORTS", "ALLOW_TUNNELS"] : "BROADSIDE_AGENT_${name}"])) == 0
    error_message = "agent_settings: set endpoint_ports, service_ports, echo_port, canary_ports and vxlan_port instead, which also allow the traffic."
  }
}
