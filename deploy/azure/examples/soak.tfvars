# A soak over days: few pairs at a modest rate, and no nightly shutdown to end it.
# Standard is enough for a stability test below 30 Gbit/s, and cheaper an hour.
firewall_tier      = "Standard"
instances          = 4
auto_shutdown_time = null
budget_amount      = 2000
