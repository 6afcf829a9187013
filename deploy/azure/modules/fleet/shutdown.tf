# Every day at the set time the scale set is held at 0 for half an hour; after that anything up to the
# maximum may be set again, and nothing grows by itself, for there are no rules.

locals {
  minutes   = var.machine.shutdown_time == null ? 0 : 60 * tonumber(substr(var.machine.shutdown_time, 0, 2)) + tonumber(substr(var.machine.shutdown_time, 2, 2))
  days      = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
  resume_at = local.minutes + 30
}

resource "azurerm_monitor_autoscale_setting" "shutdown" {
  count = var.machine.shutdown_time == null ? 0 : 1

  name                = "${var.context.names.autoscale}-${var.role}s-shutdown"
  resource_group_name = var.context.group_name
  location            = var.context.location
  target_resource_id  = azurerm_linux_virtual_machine_scale_set.this.id
  tags                = var.context.tags

  profile {
    name = "shutdown"

    capacity {
      minimum = 0
      default = 0
      maximum = 0
    }

    recurrence {
      timezone = var.machine.shutdown_timezone
      days     = local.days
      hours    = [floor(local.minutes / 60)]
      minutes  = [local.minutes % 60]
    }
  }

  profile {
    # Azure's own form for what holds after a recurring profile.
    name = jsonencode({ name = "by-hand", for = "shutdown" })

    capacity {
      minimum = 0
      default = 0
      maximum = 1000
    }

    recurrence {
      timezone = var.machine.shutdown_timezone
      days     = local.days
      hours    = [floor(local.resume_at / 60)]
      minutes  = [local.resume_at % 60]
    }
  }
}
