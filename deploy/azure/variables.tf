# Variables for the whole range. Other variables are in variables_<concern>.tf.

variable "subscription_id" {
  type        = string
  description = "Subscription that pays for the range."

  validation {
    condition     = can(regex("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", var.subscription_id))
    error_message = "subscription_id: must be a GUID in lower case; see `az account show --query id`."
  }
}

variable "name" {
  type        = string
  default     = "broadside"
  description = "Name of the range: its resource group, the first part of every name in it, and the value of the tag `broadside` by which it is found again."

  validation {
    condition     = can(regex("^[a-z][a-z0-9]{2,11}$", var.name))
    error_message = "name: must be 3 to 12 lower-case letters and digits, and begin with a letter."
  }
}

variable "location" {
  type        = string
  default     = "eastus"
  description = "Region of all resources, by its short name: westeurope, not \"West Europe\"."

  validation {
    condition     = can(regex("^[a-z][a-z0-9]+$", var.location))
    error_message = "location: must be the region's short name, such as westeurope; see: az account list-locations --query [].name"
  }

  validation {
    condition     = can(regex(lookup({ public = "^(us(gov|dod)|china)", usgovernment = "^us(gov|dod)", china = "^china" }, var.cloud, "^"), var.location)) == (var.cloud != "public")
    error_message = "location: not a region of this cloud; public has eastus, usgovernment usgovvirginia, and china chinanorth3."
  }
}

variable "storage_replication" {
  type        = string
  default     = null
  description = "Replication of the storage account: ZRS or LRS; null: ZRS where the region has zones."

  validation {
    condition     = var.storage_replication == null || contains(["ZRS", "LRS", "GZRS", "GRS"], coalesce(var.storage_replication, "x"))
    error_message = "storage_replication: must be ZRS, LRS, GZRS or GRS, or null."
  }
}

variable "cloud" {
  type        = string
  default     = "public"
  description = "Azure cloud: public, usgovernment or china. It decides the host names of storage, Service Bus, metrics and sign-in."

  validation {
    condition     = contains(["public", "usgovernment", "china"], var.cloud)
    error_message = "cloud: must be public, usgovernment or china."
  }
}

variable "register_resource_providers" {
  type        = bool
  default     = true
  description = "Register the resource providers that the range needs, which needs Contributor on the subscription. Set false if your platform team has registered them."
}

variable "admin_user_name" {
  type        = string
  default     = "rangeadmin"
  description = "Login on every VM. It cannot be the name of a user or group of Debian, because cloud-init could not create the user."

  validation {
    condition     = can(regex("^[a-z_][a-z0-9_-]{0,31}$", var.admin_user_name)) && !contains(local.taken_names, var.admin_user_name)
    error_message = "admin_user_name: must be lower-case letters, digits, - and _, and neither a user or group of Debian's own nor a name that Azure refuses (admin, root, user, ...)."
  }
}

variable "operator_addresses" {
  type        = list(string)
  default     = []
  description = "Public IPv4 addresses (or CIDRs up to /30) from which the range is deployed. The firewall of the storage account allows them to upload the package of the agents. They have no effect for a machine in Azure in the same region: see operator_subnet_ids."

  validation {
    condition     = length(var.operator_addresses) + length(var.operator_subnet_ids) > 0
    error_message = "operator_addresses: must hold this machine's public address, or operator_subnet_ids its subnet, otherwise the upload is rejected."
  }

  validation {
    condition = alltrue([
      for address in var.operator_addresses :
      can(cidrhost("${split("/", address)[0]}/32", 0)) && try(tonumber(split("/", address)[1]) <= 30, true)
    ])
    error_message = "operator_addresses: must be IPv4 addresses or CIDRs of /30 and larger; write a single address without /32."
  }
}

variable "operator_subnet_ids" {
  type        = list(string)
  default     = []
  description = "Subnets, with the service endpoint Microsoft.Storage, of machines inside Azure from which the range is deployed: storage identifies those by subnet, not by address."
}

variable "bundle_path" {
  type        = string
  default     = "../../dist/broadside-bundle.tar.gz"
  description = "Result of `make wheelhouse`: agent, wheels and Debian packages in one file."

  validation {
    condition     = fileexists(var.bundle_path)
    error_message = "bundle_path: no such file; run `make wheelhouse` in the checkout first, or give a release's broadside-bundle-*.tar.gz with `broadside up --bundle`."
  }
}

variable "role_settle_s" {
  type        = number
  default     = 120
  description = "Seconds to wait after a new role assignment before the package is uploaded; Azure needs this time to apply it."

  validation {
    condition     = var.role_settle_s >= 0 && var.role_settle_s <= 600
    error_message = "role_settle_s: must be 0 to 600 seconds."
  }
}

variable "tags" {
  type        = map(string)
  default     = {}
  description = "Additional tags for all resources that can have tags."

  validation {
    condition     = !contains(keys(var.tags), "broadside")
    error_message = "tags: `broadside` is the range's own tag; it is set from `name`."
  }
}
