# The 180 Gbit/s test: 30 + 30 VMs of 10 Gbit/s each through a Premium firewall without IDPS.
# The run:  broadside capacity set --min 20 --max 20 -- broadside launch scale-180g
# The original reached 180 Gbit/s on 20 instances, above the 100 Gbit/s that is documented.
firewall_tier = "Premium"
idps_mode     = "Off"
instances     = 30
vm_size       = "Standard_D4_v4"
budget_amount = 1000
