# The firewall that stands already, in a platform team's hub: nothing of it is changed. What the range
# needs of its owners (the hub's half of two peerings, rules for the traffic, the right to read the
# firewall's metrics) is the output `proposal`, as commands:
#   broadside up --vars examples/existing-firewall.tfvars
#   terraform -chdir=deploy/azure output -json proposal
# Your owners may let the range do it: may_change = ["peerings", "rules", "metrics"].
appliance            = "existing-firewall"
existing_firewall_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/rg-hub/providers/Microsoft.Network/azureFirewalls/afw-hub"
may_change           = []
name_prefix          = "contoso"
instances            = 10
budget_amount        = 300
