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

variable "size" {
  type        = string
  description = "VM size."
}

variable "image" {
  type = object({
    publisher = string
    offer     = string
    sku       = string
    version   = string
  })
  description = "Image: the agents'."
}

variable "subnet_id" {
  type        = string
  description = "The coordinator's subnet."
}

variable "bastion_enabled" {
  type        = bool
  description = "Make a Bastion."
}

variable "bastion_subnet_id" {
  type        = string
  description = "AzureBastionSubnet."
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

variable "encryption_at_host_enabled" {
  type        = bool
  description = "Encrypt disks on the host."
}

variable "exchange_environment" {
  type        = map(string)
  description = "Settings that say where queue and table are."
}

variable "firewall_id" {
  type        = string
  description = "Azure Firewall whose metrics are the second ledger; null: none."
}

variable "policy_id" {
  type        = string
  description = "Firewall policy whose modes its switches set; null: no switches."
}

variable "modes_at_rest" {
  type        = object({ idps = string, threat = string })
  description = "Modes in which a study leaves the policy."
}

variable "bundle_url" {
  type        = string
  description = "The package."
}

variable "bundle_sha256" {
  type        = string
  description = "Its SHA-256."
}

variable "shutdown_time" {
  type        = string
  description = "Time of day, HHMM, of the daily stop; null: never."
}

variable "shutdown_timezone" {
  type        = string
  description = "Its time zone, by Windows's name."
}

variable "start_time" {
  type        = string
  description = "Time of day, HHMM, at which it is started again; null: by hand."
}

variable "parked" {
  type        = bool
  description = "Do without the Bastion for now."
}

variable "management" {
  type        = string
  description = "The Resource Manager of this cloud."
}

variable "audience" {
  type        = string
  description = "Whom a token for it is for."
}
