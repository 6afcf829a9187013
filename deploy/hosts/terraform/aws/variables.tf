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
