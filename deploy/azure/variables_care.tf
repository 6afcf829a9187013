# Variables to limit the costs of the range.

variable "auto_shutdown_time" {
  type        = string
  default     = "2000"
  description = "Time of day, HHMM in auto_shutdown_timezone, at which both scale sets go to 0 and the coordinator stops; null: never (soaks)."
  nullable    = true

  validation {
    condition     = var.auto_shutdown_time == null || can(regex("^([01][0-9]|2[0-2])[0-5][0-9]$", coalesce(var.auto_shutdown_time, "x")))
    error_message = "auto_shutdown_time: must be HHMM from 0000 to 2259, or null."
  }
}

variable "auto_start_time" {
  type        = string
  default     = "0700"
  description = "Time of day, HHMM in auto_shutdown_timezone, at which the coordinator that auto_shutdown_time stopped is started again; null: by hand. The scale sets stay at 0."
  nullable    = true

  validation {
    condition     = var.auto_start_time == null || can(regex("^([01][0-9]|2[0-3])[0-5][0-9]$", coalesce(var.auto_start_time, "x")))
    error_message = "auto_start_time: must be HHMM from 0000 to 2359, or null."
  }
}

variable "auto_shutdown_timezone" {
  type        = string
  default     = null
  description = "Windows name of your time zone, such as \"W. Europe Standard Time\", in which both times of day are; null: that of the region."
}

variable "parked" {
  type        = bool
  default     = false
  description = "Without Bastion and routes, for a firewall that has been given back. `broadside park` and `unpark` set it, which also see to the firewall."
}

variable "budget_amount" {
  type        = number
  default     = 500
  description = "Monthly budget of the resource group, in the subscription's currency; it warns and stops nothing. null: no budget, for subscriptions with an offer that does not support budgets."
  nullable    = true

  validation {
    condition     = try(var.budget_amount > 0, var.budget_amount == null)
    error_message = "budget_amount: must be more than 0, or null."
  }
}

variable "budget_emails" {
  type        = list(string)
  default     = []
  description = "Addresses that receive a mail when half, most or all of the budget is spent. Not needed without a budget."

  validation {
    condition     = (var.budget_amount == null || length(var.budget_emails) > 0) && alltrue([for email in var.budget_emails : can(regex("^[^@ ]+@[^@ ]+$", email))])
    error_message = "budget_emails: at least one e-mail address, or budget_amount = null for a range without a budget."
  }
}

variable "log_retention_days" {
  type        = number
  default     = 30
  description = "Days for which Log Analytics stores metrics and logs."

  validation {
    condition     = var.log_retention_days >= 30 && var.log_retention_days <= 730
    error_message = "log_retention_days: must be 30 to 730."
  }
}

variable "diagnostics_enabled" {
  type        = bool
  default     = true
  description = "Send metrics of firewall, queue and tables to the range's Log Analytics; false where an Azure Policy of your platform team does it. No verdict needs them."
}

variable "coordinator_size" {
  type        = string
  default     = "Standard_B2als_v2"
  description = "Size of the coordinator's VM."
}

variable "bastion_enabled" {
  type        = bool
  default     = true
  description = "Create a Bastion, which gives access to the loopback of the coordinator; false when you have a way into the hub."
}
