# Every day at the set time the scale set is held at 0 for half an hour; after that anything up to the
# maximum may be set again, and nothing grows by itself, for there are no rules.

locals {
  minutes = var.machine.shutdown_time == null ? 0 : 60 * tonumber(substr(var.machine.shutdown_time, 0, 2)) + tonumber(substr(var.machine.shutdown_time, 2, 2))
}

resource "azurerm_monitor_autoscale_setting" "shutdown" {
  count = var.machine.shutdown_time == null ? 0 : 1

  name                = "${var.context.names.autoscale}-${var.role}s-shutdown"
  resource_group_name = var.context.group_name
  location            = var.context.location
  target_resource_id  = azurerm_linux_virtual_machine_scale_set.this.id
  tags                = var.context.tags

  dynamic "profile" {
    for_each = [
      { name = "shutdown", maximum = 0, at = local.minutes },
      # Azure's own form for what holds after a recurring profile.
      { name = jsonencode({ name = "by-hand", for = "shutdown" }), maximum = 1000, at = local.minutes + 30 },
    ]

    content {
      name = profile.value.name

      capacity {
        minimum = 0
        default = 0
        maximum = profile.value.maximum
      }

      recurrence {
        timezone = var.machine.shutdown_timezone
        days     = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
        hours    = [floor(profile.value.at / 60)]
        minutes  = [profile.value.at % 60]
      }
    }
  }
}
