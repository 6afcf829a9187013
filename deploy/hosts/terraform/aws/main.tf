# AWS with a group of clients and a group of servers. The routes of their subnets go through the
# appliance under test. The network, the appliance and the coordinator already exist, see
# docs/hosts.md.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0, < 7.0"
    }
  }
}

locals {
  subnet_ids = { client = var.client_subnet_id, server = var.server_subnet_id }
}

resource "aws_launch_template" "agent" {
  for_each = local.subnet_ids

  name_prefix   = "broadside-${each.key}-"
  image_id      = var.image_id
  instance_type = var.instance_type
  user_data     = base64encode(local.user_data[each.key])

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }

  network_interfaces {
    associate_public_ip_address = false
    security_groups             = var.security_group_ids
    subnet_id                   = each.value
  }
}

resource "aws_autoscaling_group" "agents" {
  for_each = local.subnet_ids

  name                = "broadside-${each.key}s"
  min_size            = var.pairs_count
  max_size            = var.pairs_count
  desired_capacity    = var.pairs_count
  vpc_zone_identifier = [each.value]
  # A burst uses all cores. An instance that looks unhealthy because of this should not be replaced.
  suspended_processes = ["ReplaceUnhealthy", "AZRebalance"]

  launch_template {
    id      = aws_launch_template.agent[each.key].id
    version = aws_launch_template.agent[each.key].latest_version
  }

  tag {
    key                 = "Name"
    value               = "broadside-${each.key}"
    propagate_at_launch = true
  }
}
