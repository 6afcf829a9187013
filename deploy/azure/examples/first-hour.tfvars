# Cheapest proof that a range works in a subscription (docs/azure-first-hour.md): two pairs behind a
# Basic firewall, which carries 250 Mbit/s. Premium features are tested later.
#   broadside up --vars examples/first-hour.tfvars
firewall_tier = "Basic"
instances     = 2
budget_amount = 20
