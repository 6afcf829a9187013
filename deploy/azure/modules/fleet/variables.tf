variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region, tags."
}

variable "machine" {
  type = object({
    image                      = object({ publisher = string, offer = string, sku = string, version = string })
    admin_user_name            = string
    ssh_public_key             = string # SSH key of the operator
    encryption_at_host_enabled = bool
    bundle_url                 = string # URL of the package
    bundle_sha256              = string
    shutdown_time              = string # time of the daily stop as HHMM, or null to disable it
    shutdown_timezone          = string # name of the timezone in Windows
  })
  description = "Settings that agents and coordinator share."
}

variable "identity" {
  type        = object({ id = string, client_id = string })
  description = "Its user-assigned identity."
}

variable "role" {
  type        = string
  description = "Role of its agents: `client` or `server`."

  validation {
    condition     = contains(["client", "server"], var.role)
    error_message = "role: must be client or server."
  }
}

variable "instances" {
  type        = number
  description = "Number of VMs when it is created."
}

variable "size" {
  type        = string
  description = "VM size."
}

variable "bits_per_second" {
  type        = number
  description = "The size's egress bandwidth."
}

variable "zones" {
  type        = set(string)
  description = "Availability zones; empty: regional."
}

variable "proximity_placement_group_id" {
  type        = string
  description = "Placement group, or null."
}

variable "accelerated_networking_enabled" {
  type        = bool
  description = "SR-IOV."
}

variable "subnet_id" {
  type        = string
  description = "Subnet of the VMs."
}

variable "target_prefix" {
  type        = string
  description = "The only network that its agents accept as a target."
}

variable "endpoint_ports" {
  type        = list(number)
  description = "Ports of iperf3 on each server."
}

variable "services" {
  type        = string
  description = "Engines that servers offer beside iperf3, with their ports."
}

variable "echo_port" {
  type        = number
  description = "UDP port of each server that answers probes."
}

variable "canary_ports" {
  type        = list(number)
  description = "Ports of each server that answer canaries (TCP and UDP)."
}

variable "capabilities" {
  type        = set(string)
  description = "Linux capabilities of the agent."
}

variable "tunnels_allowed" {
  type        = bool
  description = "Allow the agents to create VXLAN devices; needs CAP_NET_ADMIN."
}

variable "exchange_environment" {
  type        = map(string)
  description = "Settings with the addresses of queue and tables."
}

variable "settings" {
  type        = map(string)
  description = "Further settings of the agents."
}
