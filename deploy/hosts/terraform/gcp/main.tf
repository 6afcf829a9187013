# Google Cloud with a group of clients and a group of servers. The routes of their subnetworks go
# through the appliance under test. The network, the appliance and the coordinator already exist,
# see docs/hosts.md.
terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0, < 8.0"
    }
  }
}

locals {
  subnetworks = { client = var.client_subnetwork, server = var.server_subnetwork }
}

resource "google_compute_instance_template" "agent" {
  for_each = local.subnetworks

  name_prefix  = "broadside-${each.key}-"
  region       = var.region
  machine_type = var.machine_type
  tags         = ["broadside-${each.key}"]

  disk {
    source_image = var.image
    boot         = true
    auto_delete  = true
  }

  network_interface {
    subnetwork = each.value
    nic_type   = "GVNIC"
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  metadata = {
    block-project-ssh-keys = "true"
    user-data              = local.user_data[each.key]
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_instance_group_manager" "agents" {
  for_each = local.subnetworks

  name               = "broadside-${each.key}s"
  zone               = var.zone
  base_instance_name = "broadside-${each.key}"
  target_size        = var.pairs_count

  version {
    instance_template = google_compute_instance_template.agent[each.key].id
  }
}
