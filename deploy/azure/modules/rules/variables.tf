variable "policy_id" {
  type        = string
  description = "Policy that gets the group of rules."
}

variable "group_name" {
  type        = string
  description = "Name of the group."
}

variable "priority" {
  type        = number
  description = "Its priority, which no other group of the policy may have."
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
