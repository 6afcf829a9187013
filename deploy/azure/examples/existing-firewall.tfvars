# Use an existing firewall in the hub of a platform team, without any changes to it. The range needs
# the other half of two peerings, rules for the traffic, and access to the metrics of the firewall.
# The commands for the owners of the firewall are in the output `proposal`:
#   broadside up --vars examples/existing-firewall.tfvars
#   terraform -chdir=deploy/azure output -json proposal
# If the owners allow these changes, set may_change = ["peerings", "rules", "metrics"].
appliance            = "existing-firewall"
existing_firewall_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/rg-hub/providers/Microsoft.Network/azureFirewalls/afw-hub"
may_change           = []
name_prefix          = "contoso"
instances            = 10
budget_amount        = 300
