# Budget that sends a warning by e-mail but does not stop anything. To stop the costs, there is the
# nightly scale to 0, `broadside down`, and the price limit for a run in the coordinator.

resource "azurerm_consumption_budget_resource_group" "this" {
  name              = "${var.context.names.budget}-monthly"
  resource_group_id = var.context.group_id
  amount            = var.amount
  time_grain        = "Monthly"

  time_period {
    start_date = formatdate("YYYY-MM-01'T'00:00:00Z", plantimestamp())
  }

  dynamic "notification" {
    for_each = [["Actual", 50], ["Actual", 80], ["Actual", 100], ["Forecasted", 100]]

    content {
      threshold      = notification.value[1]
      operator       = "GreaterThanOrEqualTo"
      threshold_type = notification.value[0]
      contact_emails = var.emails
    }
  }

  lifecycle {
    ignore_changes = [time_period] # it starts in the month in which it was created
  }
}
