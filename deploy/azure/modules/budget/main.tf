# Warns by e-mail; it stops nothing. What stops: the nightly scale to 0, `broadside down`, and the
# coordinator's own price limit on a run.

resource "azurerm_consumption_budget_resource_group" "this" {
  name              = "${var.context.names.budget}-monthly"
  resource_group_id = var.context.group_id
  amount            = var.amount
  time_grain        = "Monthly"

  time_period {
    start_date = formatdate("YYYY-MM-01'T'00:00:00Z", plantimestamp())
  }

  dynamic "notification" {
    for_each = { half = 50, most = 80, all = 100 }

    content {
      threshold      = notification.value
      operator       = "GreaterThanOrEqualTo"
      threshold_type = "Actual"
      contact_emails = var.emails
    }
  }

  notification {
    threshold      = 100
    operator       = "GreaterThanOrEqualTo"
    threshold_type = "Forecasted"
    contact_emails = var.emails
  }

  lifecycle {
    ignore_changes = [time_period] # it began in the month in which it was made
  }
}
