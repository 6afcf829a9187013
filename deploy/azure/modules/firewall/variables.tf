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

variable "tier" {
  type        = string
  description = "Basic, Standard or Premium, of firewall and policy."
}

variable "zones" {
  type        = set(string)
  description = "Availability zones of firewall and addresses."
}

variable "subnet_id" {
  type        = string
  description = "AzureFirewallSubnet."
}

variable "management_subnet_id" {
  type        = string
  description = "AzureFirewallManagementSubnet; null unless Basic."
}

variable "idps_mode" {
  type        = string
  description = "Off, Alert or Deny; only Premium has it."
}

variable "threat_intelligence_mode" {
  type        = string
  description = "Off, Alert or Deny."
}

variable "tls_inspection" {
  type = object({
    key_vault_secret_id = string
    identity_id         = string
    ports               = list(number)
  })
  description = "TLS inspection, or null."
}

variable "clients_prefix" {
  type        = string
  description = "Where traffic comes from."
}

variable "servers_prefix" {
  type        = string
  description = "Where traffic goes to."
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
  description = "Let echo requests through."
}

variable "vxlan_port" {
  type        = number
  description = "UDP port of VXLAN tunnels, let through both ways; null: none."
}
