# Variables for the examples of all clouds, with the archive, the coordinator and the codes. The
# other folders have a link to this file.
variable "archive_url" {
  type        = string
  description = "Where instances fetch the archive of `make hosts-archive`, without credentials."

  validation {
    condition     = startswith(var.archive_url, "https://")
    error_message = "archive_url: write https://..."
  }
}

variable "archive_sha256" {
  type        = string
  description = "What it must be; `make hosts-archive` prints it."

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.archive_sha256))
    error_message = "archive_sha256: 64 hexadecimal digits."
  }
}

variable "coordinator" {
  type        = string
  description = "https://host:8443, as instances reach it."
}

variable "join_codes" {
  type        = object({ client = string, server = string })
  sensitive   = true
  description = "Of `broadside enroll new`, for each role; each lets in pairs_count agents."
}

variable "pairs_count" {
  type        = number
  description = "Clients, and as many servers."
}

locals {
  user_data = { for role, code in var.join_codes : role => templatefile(
    "${path.module}/../cloud-init.yaml.tftpl",
    {
      archive_sha256 = var.archive_sha256
      archive_url    = var.archive_url
      coordinator    = var.coordinator
      join_code      = code
      role           = role
    }
  ) }
}
