# What accelerated networking is worth. Changing it makes new VMs:
#   broadside up --vars examples/accelerated-networking-compare.tfvars
#   broadside launch ... --label accelerated=off
#   broadside scale 0
#   broadside up --vars examples/accelerated-networking-compare.tfvars --set accelerated_networking_enabled=true
#   broadside scale 4
#   broadside launch ... --label accelerated=on
firewall_tier                  = "Standard"
instances                      = 4
accelerated_networking_enabled = false
