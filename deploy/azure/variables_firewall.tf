variable "appliance" {
  type        = string
  default     = "azure-firewall"
  description = "Appliance between the spokes: `azure-firewall`, `nva` (VMs of a marketplace image behind an internal load balancer), or `existing-firewall` (existing_firewall_id)."

  validation {
    condition     = contains(["azure-firewall", "nva", "existing-firewall"], var.appliance)
    error_message = "appliance: must be azure-firewall, nva or existing-firewall."
  }
}

variable "firewall_tier" {
  type        = string
  default     = "Premium"
  description = "Tier of Azure Firewall. Documented limits (2026-03): Basic 0.25, Standard 30, Premium 100 Gbit/s."

  validation {
    condition     = contains(["Basic", "Standard", "Premium"], var.firewall_tier)
    error_message = "firewall_tier: must be Basic, Standard or Premium."
  }
}

variable "firewall_zones" {
  type        = set(string)
  default     = null
  description = "Availability zones of the firewall and its address; null: all three where the region has zones, without those in which Azure creates no firewall."

  validation {
    condition     = var.firewall_zones == null || alltrue([for zone in coalesce(var.firewall_zones, []) : contains(["1", "2", "3"], zone)])
    error_message = "firewall_zones: must be of \"1\", \"2\" and \"3\"."
  }
}

variable "idps_mode" {
  type        = string
  default     = "Off"
  description = "Intrusion detection of a Premium firewall: Off, Alert, or Deny (alert and deny)."

  validation {
    condition     = contains(["Off", "Alert", "Deny"], var.idps_mode)
    error_message = "idps_mode: must be Off, Alert or Deny."
  }

  validation {
    condition     = var.idps_mode == "Off" || var.firewall_tier == "Premium"
    error_message = "idps_mode: only a Premium firewall detects intrusions; set firewall_tier = \"Premium\" or idps_mode = \"Off\"."
  }
}

variable "firewall_switch_enabled" {
  type        = bool
  default     = false
  description = "Allow the coordinator to set the modes of a Premium firewall's policy for A/B studies (docs/studies.md): its switches `idps`, `threat` and `snat`, and a role of its own that reads and writes this one policy. The deployer needs the role Owner, because this role is created here."

  validation {
    condition     = !var.firewall_switch_enabled || (var.appliance == "azure-firewall" && var.firewall_tier == "Premium" && var.tls_inspection == null)
    error_message = "firewall_switch_enabled: only for a Premium Azure Firewall, and without tls_inspection, because the coordinator may not assign its identity."
  }
}

variable "threat_intelligence_mode" {
  type        = string
  default     = "Off"
  description = "Threat intelligence: Off, Alert or Deny. Off by default, because it changes the throughput. Basic does not support Deny."

  validation {
    condition     = contains(["Off", "Alert", "Deny"], var.threat_intelligence_mode)
    error_message = "threat_intelligence_mode: must be Off, Alert or Deny."
  }

  validation {
    condition     = var.threat_intelligence_mode != "Deny" || var.firewall_tier != "Basic"
    error_message = "threat_intelligence_mode: a Basic firewall only alerts; use Alert or Off."
  }
}

variable "tls_inspection" {
  type = object({
    key_vault_secret_id = string # the intermediate CA, as the secret id of a certificate
    identity_id         = string # user-assigned identity with access to the certificate
    ports               = list(number)
  })
  default     = null
  description = "TLS inspection of a Premium firewall, for HTTPS engines on these ports; null: off."

  validation {
    condition     = var.tls_inspection == null || var.firewall_tier == "Premium"
    error_message = "tls_inspection: only a Premium firewall inspects TLS."
  }
}

variable "firewall_logs" {
  type        = bool
  default     = false
  description = "Send the firewall's rule logs to Log Analytics too: a row a connection, at about $2.76 a GB. Metrics are always sent."
}

variable "firewall_flow_logs" {
  type        = bool
  default     = false
  description = "Send the firewall's top flows (above 1 Mbit/s, every three minutes) and flow trace to Log Analytics. The firewall writes them after two switches that azurerm lacks: see docs/azure.md. They cost its CPU, so only to find a cause."

  validation {
    condition     = !var.firewall_flow_logs || var.firewall_tier != "Basic"
    error_message = "firewall_flow_logs: not with a Basic firewall."
  }
}

variable "nva" {
  type = object({
    publisher       = string
    offer           = string
    sku             = string
    version         = optional(string, "latest")
    size            = optional(string, "Standard_D16_v4")
    instances       = optional(number, 2)
    marketplace     = optional(bool, true) # true if the image has a plan, in this case accept its terms once with az vm image terms accept
    probe_port      = optional(number, 22)
    custom_data     = optional(string) # bootstrap data for the appliance as plain text, without secrets
    admin_user_name = optional(string, "rangeadmin")
  })
  default     = null
  description = "The appliance's image and size when appliance is `nva`; see examples/other-appliance.tfvars."

  validation {
    condition     = (var.nva != null) == (var.appliance == "nva")
    error_message = "nva: set it when appliance is \"nva\", and only then."
  }

  validation {
    condition     = var.nva == null || !contains(local.taken_names, try(var.nva.admin_user_name, ""))
    error_message = "nva.admin_user_name: Azure refuses this name, or the image has a user or group of it."
  }
}
