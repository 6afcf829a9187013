# Soak test for some days, with few pairs, a low rate, and no shutdown at night. Standard is enough
# for a stability test below 30 Gbit/s, and costs less per hour.
firewall_tier      = "Standard"
instances          = 4
auto_shutdown_time = null
budget_amount      = 2000
