# Values for `broadside scale`, `down` and `capacity`, which use `terraform output -json`, and for
# operators.

output "name" {
  value       = var.name
  description = "Value of the tag `broadside` on everything here."
}

output "subscription_id" {
  value       = var.subscription_id
  description = "Subscription in which it is."
}

output "resource_group" {
  value       = local.group_name
  description = "Resource group with all resources that the range created."
}

output "own_group" {
  value       = local.own_group
  description = "Whether the range created its group, and `down` deletes it."
}

output "scale_sets" {
  value       = [for fleet in module.fleet : fleet.name]
  description = "The two scale sets."
}

output "firewall_id" {
  value       = local.firewall_id
  description = "The Azure Firewall, for `broadside capacity --firewall`; null with another appliance."
}

output "fabric" {
  value       = local.coordinator_environment
  description = "Settings with which a coordinator elsewhere would meet these agents."
}

output "tunnel" {
  value = module.coordinator.bastion_name == null ? null : join(" ", [
    "env AZURE_EXTENSION_USE_DYNAMIC_INSTALL=yes_without_prompt az network bastion tunnel --name ${module.coordinator.bastion_name}",
    "--resource-group ${local.group_name}",
    "--target-resource-id ${module.coordinator.vm_id} --resource-port 22 --port 2222",
  ])
  description = "Opens port 2222 of this machine to the coordinator's SSH; then: ssh -p 2222 -L 8080:127.0.0.1:8080 <admin_user_name>@127.0.0.1"
}

output "package" {
  value       = module.exchange.package
  description = "The package that `broadside up` uploads itself, with private endpoints; null where Terraform does."
}

output "boot" {
  value = {
    coordinator_id = module.coordinator.vm_id
    table          = module.exchange.boot_table
  }
  description = "Where `broadside up` reads whether the VMs are ready: the coordinator's VM, and the table of boot statuses; null where its network is private."
}

output "proposal" {
  value       = local.proposal
  description = "Commands for the owners of existing resources; with `may_change` the range executes them."

  precondition {
    condition     = !var.existing_firewall_virtual_hub || try(module.existing_firewall[0].inspects_private_traffic, false)
    error_message = "existing_firewall_id: the virtual hub has no routing intent that sends private traffic to this firewall, so the spokes would reach each other without it. Its owner sets it: az network vhub routing-intent create."
  }
}

output "parked" {
  value       = var.parked
  description = "Whether firewall and Bastion are given back."
}

output "firewall_addresses" {
  value       = one(module.firewall[*].address_configurations)
  description = "Configuration that `broadside unpark` restores to the range's own firewall; null if the firewall is not its own."
}
