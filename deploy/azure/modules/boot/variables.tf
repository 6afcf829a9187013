variable "service" {
  type        = string
  description = "Service of the VM: `agent` or `coordinator`."

  validation {
    condition     = contains(["agent", "coordinator"], var.service)
    error_message = "service: must be agent or coordinator."
  }
}

variable "environment" {
  type        = map(string)
  description = "Settings of the service: its environment file. No secrets."

  validation {
    condition     = alltrue([for value in values(var.environment) : can(regex("^[^\n\"'\\\\]*$", value))])
    error_message = "environment: values must be one line without quotes and backslashes."
  }
}

variable "switches" {
  type        = string
  default     = ""
  description = "The coordinator's file of switches; empty: none."
}

variable "telemetry" {
  type        = string
  default     = ""
  description = "The coordinator's telemetry file; empty: none."
}

variable "capabilities" {
  type        = list(string)
  description = "Linux capabilities of the agent."
}

variable "bundle_url" {
  type        = string
  description = "URL of the package."
}

variable "bundle_sha256" {
  type        = string
  description = "SHA-256 of the package."
}

variable "identity_client_id" {
  type        = string
  description = "Client id of the identity that downloads it."
}
