# Existing resources, such as a resource group, subnets, private zones, and the firewall under test.
# They are only changed if this is allowed by `may_change`. See output `proposal` for the changes
# that are needed.

variable "existing_resource_group_name" {
  type        = string
  default     = null
  description = "Existing resource group in `location`; null: the range creates one, and `down` deletes it."
}

variable "existing_firewall_id" {
  type        = string
  default     = null
  description = "Existing Azure Firewall, with appliance = \"existing-firewall\". It is read, and its hub is peered with the spokes. It may be in another subscription."

  validation {
    condition     = (var.existing_firewall_id != null) == (var.appliance == "existing-firewall")
    error_message = "existing_firewall_id: set it when appliance is \"existing-firewall\", and only then."
  }

  validation {
    condition     = var.existing_firewall_id == null || can(regex("^/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/]+/providers/Microsoft.Network/azureFirewalls/[^/]+$", var.existing_firewall_id))
    error_message = "existing_firewall_id: must be the firewall's whole id: az network firewall show --name N --resource-group G --query id."
  }
}

variable "existing_firewall_virtual_hub" {
  type        = bool
  default     = false
  description = "The existing firewall is in a secured virtual WAN hub with routing intent for private traffic. The spokes become connections of that hub and get their routes from it."

  validation {
    condition     = !var.existing_firewall_virtual_hub || var.appliance == "existing-firewall"
    error_message = "existing_firewall_virtual_hub: only with appliance = \"existing-firewall\"."
  }

  validation {
    condition = !var.existing_firewall_virtual_hub || alltrue([
      for space in [var.clients_cidr, var.servers_cidr] :
      can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)", space))
    ])
    error_message = "existing_firewall_virtual_hub: routing intent covers RFC 1918 addresses only; clients_cidr and servers_cidr must be of these."
  }
}

variable "may_change" {
  type        = set(string)
  default     = []
  description = "Parts of an existing hub and firewall that the range may change: `peerings` (the hub's half, or its connections), `rules` (one group of its own in the firewall's policy), `metrics` (Monitoring Reader for the coordinator). The rest is proposed."

  validation {
    condition     = length(setsubtract(var.may_change, ["peerings", "rules", "metrics"])) == 0
    error_message = "may_change: only peerings, rules and metrics."
  }

  validation {
    condition     = length(var.may_change) == 0 || var.appliance == "existing-firewall"
    error_message = "may_change: only with appliance = \"existing-firewall\"."
  }
}

variable "existing_rules_priority" {
  type        = number
  default     = 60000
  description = "Priority of the range's group of rules in an existing firewall's policy: one that no other group has."

  validation {
    condition     = var.existing_rules_priority >= 100 && var.existing_rules_priority <= 65000
    error_message = "existing_rules_priority: must be 100 to 65000."
  }
}

variable "existing_subnet_ids" {
  type        = map(string)
  default     = {}
  description = "Existing subnets, by their purpose: clients, servers, coordinator, bastion, endpoints, firewall, appliance. Their networks, peerings, security groups, routes and internet access are not changed. With `coordinator`, no hub is created."

  validation {
    condition     = length(setsubtract(keys(var.existing_subnet_ids), ["clients", "servers", "coordinator", "bastion", "endpoints", "firewall", "appliance"])) == 0
    error_message = "existing_subnet_ids: names are clients, servers, coordinator, bastion, endpoints, firewall and appliance."
  }

  validation {
    condition     = alltrue([for id in values(var.existing_subnet_ids) : can(regex("^/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/]+/providers/Microsoft.Network/virtualNetworks/[^/]+/subnets/[^/]+$", id))])
    error_message = "existing_subnet_ids: must be whole ids of subnets: az network vnet subnet show --query id."
  }

  validation {
    condition = !contains(keys(var.existing_subnet_ids), "coordinator") || length(setsubtract(concat(
      var.bastion_enabled ? ["bastion"] : [],
      var.private_endpoints ? ["endpoints"] : [],
      var.appliance == "azure-firewall" ? ["firewall"] : [],
      var.appliance == "nva" ? ["appliance"] : [],
    ), keys(var.existing_subnet_ids))) == 0
    error_message = "existing_subnet_ids: with `coordinator` no hub is created, so set the subnets of bastion, endpoints and firewall or appliance too, if they are used."
  }

  validation {
    condition     = contains(keys(var.existing_subnet_ids), "coordinator") || length(setintersection(keys(var.existing_subnet_ids), ["bastion", "endpoints", "firewall", "appliance"])) == 0
    error_message = "existing_subnet_ids: bastion, endpoints, firewall and appliance need coordinator: the hub is either yours or that of the range."
  }

  validation {
    condition     = contains(keys(var.existing_subnet_ids), "clients") == contains(keys(var.existing_subnet_ids), "servers")
    error_message = "existing_subnet_ids: give both clients and servers, or neither."
  }
}

variable "existing_private_dns_zone_ids" {
  type        = map(string)
  default     = {}
  description = "Existing private DNS zones, linked to the networks, for blob, table and servicebus. A network can be linked to one zone of a name. Empty: the range creates its own."

  validation {
    condition     = contains([0, 3], length(setintersection(keys(var.existing_private_dns_zone_ids), ["blob", "table", "servicebus"]))) && length(var.existing_private_dns_zone_ids) <= 3
    error_message = "existing_private_dns_zone_ids: give all of blob, table and servicebus, or none."
  }
}

variable "name_prefix" {
  type        = string
  default     = null
  description = "Names by the Cloud Adoption Framework: <kind>-<name_prefix>-<name>, such as vnet-contoso-broadside-hub; null: <name>-hub."

  validation {
    condition     = var.name_prefix == null || can(regex("^[a-z][a-z0-9-]{0,14}[a-z0-9]$", coalesce(var.name_prefix, "x!")))
    error_message = "name_prefix: must be 2 to 16 lower-case letters, digits and hyphens."
  }
}
