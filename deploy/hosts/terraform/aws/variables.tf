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

variable "image_id" {
  type        = string
  description = "An image with cloud-init, systemd, chrony and Python 3.11 to 3.13: Debian 12 or 13, Ubuntu 24.04."
}

variable "instance_type" {
  type        = string
  default     = "c7i.4xlarge" # 12.5 Gbit/s
  description = "Size of an instance; its NIC is half of what is measured."
}

variable "client_subnet_id" {
  type        = string
  description = "Whose route to the servers leads through the appliance."
}

variable "server_subnet_id" {
  type        = string
  description = "Whose route to the clients leads through the appliance."
}

variable "security_group_ids" {
  type        = list(string)
  description = "That let the test's traffic through, and TCP 8443 to the coordinator."
}
