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

variable "size" {
  type        = string
  description = "VM size."
}

variable "subnet_id" {
  type        = string
  description = "The coordinator's subnet."
}

variable "bastion_enabled" {
  type        = bool
  description = "Create a Bastion."
}

variable "bastion_subnet_id" {
  type        = string
  description = "AzureBastionSubnet."
}

variable "exchange_environment" {
  type        = map(string)
  description = "Settings with the addresses of queue and tables."
}

variable "firewall_id" {
  type        = string
  description = "Azure Firewall with the metrics that the fleet's bytes are compared with; null: none."
}

variable "policy_id" {
  type        = string
  description = "Firewall policy with the modes that the switches set; null: no switches."
}

variable "modes_at_rest" {
  type        = object({ idps = string, threat = string })
  description = "Modes in which a study leaves the policy."
}

variable "start_time" {
  type        = string
  description = "Time of day, HHMM, at which it is started again; null: by hand."
}

variable "parked" {
  type        = bool
  description = "Parked: the Bastion does not exist."
}

variable "resource_manager" {
  type        = object({ url = string, audience = string })
  description = "Address of the Resource Manager of this cloud, and the audience of its tokens."
}

variable "flow_logs" {
  type        = object({ enabled = bool, endpoint = string })
  description = "Whether the coordinator reads the firewall's flow logs, and where."
}
