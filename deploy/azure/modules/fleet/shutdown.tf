# Scale the set to 0 every day at a given time, and keep it there for half an hour. After that, it
# can be set to any value up to the maximum. There are no rules, so it will not scale automatically.

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
      # This is the form that Azure uses for the profile that follows a recurring one.
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
