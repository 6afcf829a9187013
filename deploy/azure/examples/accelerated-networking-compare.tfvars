# Effect of accelerated networking. If it is changed, new VMs are created:
#   broadside up --vars examples/accelerated-networking-compare.tfvars
#   broadside launch ... --set labels.accelerated=without
#   broadside scale 0
#   broadside up --vars examples/accelerated-networking-compare.tfvars --set accelerated_networking_enabled=true
#   broadside scale 4
#   broadside launch ... --set labels.accelerated=with
firewall_tier                  = "Standard"
instances                      = 4
accelerated_networking_enabled = false
