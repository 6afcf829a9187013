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
  description = "Source addresses of inspected traffic."
}

variable "flows" {
  type        = list(object({ flow = string, protocol = string, ports = list(string), from = string, to = string }))
  description = "Allowed traffic; flow is the name of a rule."
}
