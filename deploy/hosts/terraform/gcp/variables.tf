variable "image" {
  type        = string
  default     = "debian-cloud/debian-13"
  description = "An image with cloud-init, systemd, chrony and Python 3.11 to 3.13."
}

variable "machine_type" {
  type        = string
  default     = "c3-standard-22" # 23 Gbit/s
  description = "Size of an instance; its NIC is half of what is measured."
}

variable "region" {
  type        = string
  description = "Of the templates."
}

variable "zone" {
  type        = string
  description = "Of the instances."
}

variable "client_subnetwork" {
  type        = string
  description = "Whose route to the servers leads through the appliance."
}

variable "server_subnetwork" {
  type        = string
  description = "Whose route to the clients leads through the appliance."
}
