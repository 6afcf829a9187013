variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, suffix = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region, what makes names unique in the world, tags."
}

variable "domains" {
  type        = object({ storage = string, servicebus = string })
  description = "What host names of storage and Service Bus end in, in this cloud."
}

variable "private_endpoints" {
  type        = bool
  description = "Private endpoints, and so a Premium namespace."
}

variable "endpoints_subnet_id" {
  type        = string
  description = "Their subnet."
}

variable "network_ids" {
  type        = map(string)
  description = "Networks in which their names resolve."
}

variable "subnet_ids" {
  type        = list(string)
  description = "Subnets that the storage account lets in by service endpoint."
}

variable "operator_subnet_ids" {
  type        = list(string)
  description = "Subnets of deployers inside Azure."
}

variable "account_name" {
  type        = string
  description = "Name of the storage account."
}

variable "replication" {
  type        = string
  description = "Its replication: ZRS, LRS, ..."
}

variable "existing_zone_ids" {
  type        = map(string)
  description = "Private DNS zones that stand already; empty: they are made."
}

variable "operator_addresses" {
  type        = list(string)
  description = "Public addresses that the storage account lets in."
}

variable "deployer_principal_id" {
  type        = string
  description = "Who uploads the package."
}

variable "role_settle_s" {
  type        = number
  description = "Seconds between the deployer's role and the upload."
}

variable "bundle_path" {
  type        = string
  description = "The package."
}

variable "bundle_sha256" {
  type        = string
  description = "Its SHA-256, in hex."
}
