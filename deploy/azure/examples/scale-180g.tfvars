# 180 Gbit/s test, with 30 + 30 VMs of 10 Gbit/s each and a Premium firewall without IDPS.
# The run:  broadside capacity set --min 20 --max 20 -- broadside launch scale-180g
# The original test reached 180 Gbit/s with 20 instances. This is more than the documented 100
# Gbit/s.
firewall_tier = "Premium"
idps_mode     = "Off"
instances     = 30
vm_size       = "Standard_D4_v4"
budget_amount = 1000
