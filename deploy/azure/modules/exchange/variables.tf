variable "context" {
  type        = object({ names = map(string), group_name = string, location = string, suffix = string, tags = map(string) })
  description = "Of the whole range: first parts of names by kind of resource, resource group, region, the suffix that makes names globally unique, tags."
}

variable "domains" {
  type        = object({ storage = string, servicebus = string })
  description = "Suffixes of the host names of storage and Service Bus in this cloud."
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
  description = "Subnets with a service endpoint that the storage account allows."
}

variable "existing_zone_ids" {
  type        = map(string)
  description = "Existing private DNS zones; empty: they are created."
}

variable "deployer_principal_id" {
  type        = string
  description = "Principal that uploads the package."
}

variable "role_settle_s" {
  type        = number
  description = "Seconds between the deployer's role and the upload."
}

variable "account" {
  type        = object({ name = string, replication = string })
  description = "The storage account's name, and its replication: ZRS, LRS, ..."
}

variable "operators" {
  type        = object({ addresses = list(string), subnet_ids = list(string) })
  description = "Sources that may upload: public addresses, and subnets in Azure, that the storage account accepts."
}

variable "bundle" {
  type        = object({ path = string, sha256 = string })
  description = "The package, and its SHA-256 in hex."
}
