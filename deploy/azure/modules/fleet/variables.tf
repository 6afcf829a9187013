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

variable "role" {
  type        = string
  description = "What its agents are: `client` or `server`."

  validation {
    condition     = contains(["client", "server"], var.role)
    error_message = "role: must be client or server."
  }
}

variable "instances" {
  type        = number
  description = "VMs when it is made."
}

variable "size" {
  type        = string
  description = "VM size."
}

variable "bits_per_second" {
  type        = number
  description = "The size's egress bandwidth."
}

variable "image" {
  type = object({
    publisher = string
    offer     = string
    sku       = string
    version   = string
  })
  description = "Image."
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

variable "encryption_at_host_enabled" {
  type        = bool
  description = "Encrypt disks on the host."
}

variable "subnet_id" {
  type        = string
  description = "Where the VMs are."
}

variable "target_prefix" {
  type        = string
  description = "The only network that its agents take as a target."
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

variable "identity_id" {
  type        = string
  description = "Its user-assigned identity."
}

variable "identity_client_id" {
  type        = string
  description = "That identity's client id."
}

variable "admin_user_name" {
  type        = string
  description = "Login."
}

variable "ssh_public_key" {
  type        = string
  description = "The operator's key."
}

variable "capabilities" {
  type        = set(string)
  description = "Linux capabilities that the agent keeps."
}

variable "tunnels_allowed" {
  type        = bool
  description = "Let the agents make VXLAN devices; needs CAP_NET_ADMIN."
}

variable "exchange_environment" {
  type        = map(string)
  description = "Settings that say where queue and table are."
}

variable "settings" {
  type        = map(string)
  description = "Further settings of the agents."
}

variable "bundle_url" {
  type        = string
  description = "The agents' package."
}

variable "bundle_sha256" {
  type        = string
  description = "Its SHA-256."
}

variable "shutdown_time" {
  type        = string
  description = "Time of day, HHMM, of the daily scale to 0; null: never."
}

variable "shutdown_timezone" {
  type        = string
  description = "Its time zone, by Windows's name."
}
