variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region, tags."
}

variable "subnet_id" {
  type        = string
  description = "Subnet of appliances and load balancer."
}

variable "subnet_prefix" {
  type        = string
  description = "Its addresses; the load balancer has the first address that Azure does not reserve."
}

variable "zones" {
  type        = set(string)
  description = "Availability zones of the load balancer's address."
}

variable "image" {
  type = object({
    publisher       = string
    offer           = string
    sku             = string
    version         = string
    size            = string
    instances       = number
    marketplace     = bool
    probe_port      = number
    custom_data     = string
    admin_user_name = string
  })
  description = "Image of the vendor, and number and size of the VMs."
}

variable "ssh_public_key" {
  type        = string
  description = "The operator's key."
}

variable "encryption_at_host_enabled" {
  type        = bool
  description = "Encrypt disks on the host."
}
