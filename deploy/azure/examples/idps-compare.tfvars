# Effect of intrusion detection, using ten pairs in two modes on the same firewall:
#   broadside up --vars examples/idps-compare.tfvars
#   broadside launch scale-180g --set pairs_count=10 --set labels.idps=off
#   broadside up --vars examples/idps-compare.tfvars --set idps_mode=Deny      (about 10 minutes)
#   broadside launch scale-180g --set pairs_count=10 --set labels.idps=deny
#   broadside compare --label idps
# Original test: 92.1 -> 8.6 Gbit/s.
firewall_tier = "Premium"
idps_mode     = "Off"
instances     = 10
