# `terraform test` with a mocked provider: every plan is made, nothing is reached. What a plan leaves
# unknown (ids, addresses) is not asserted here.

mock_provider "azurerm" {}

mock_provider "azurerm" {
  alias = "hub"
}

variables {
  subscription_id    = "00000000-0000-0000-0000-000000000000"
  operator_addresses = ["203.0.113.7"]
  budget_emails      = ["operator@example.com"]
  ssh_public_key     = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE3LkOrqJJBWuTgvk5Po/4XjOrWgNJ0rJzQJVhFvjTUR nobody: its private half was thrown away"
  bundle_path        = "tests/bundle.txt"
}

run "defaults" {
  command = plan

  assert {
    condition     = length(module.firewall) == 1 && length(module.appliance) == 0
    error_message = "The default appliance is an Azure Firewall."
  }

  assert {
    condition     = toset(output.scale_sets) == toset(["broadside-clients", "broadside-servers"])
    error_message = "There are two scale sets, named by role."
  }

  assert {
    condition     = output.name == "broadside" && output.resource_group == "broadside"
    error_message = "The range is found by its name."
  }

  assert {
    condition     = output.fabric["BROADSIDE_SERVICEBUS_QUEUE"] == "jobs" && output.fabric["BROADSIDE_TABLES_RESULTS"] == "results" && output.fabric["BROADSIDE_TABLES_CONTROL"] == "control"
    error_message = "Agents look for the queue and the table that are made."
  }
}

run "basic_firewall" {
  command = plan

  variables {
    firewall_tier = "Basic"
  }
}

run "standard_firewall" {
  command = plan

  variables {
    firewall_tier = "Standard"
  }
}

run "bypass" {
  command = plan

  variables {
    bypass = true
  }
}

run "private_endpoints" {
  command = plan

  variables {
    private_endpoints = true
  }
}

run "no_nightly_shutdown" {
  command = plan

  variables {
    auto_shutdown_time = null
    bastion_enabled    = false
  }

  assert {
    condition     = output.tunnel == null
    error_message = "Without a Bastion there is no tunnel to tell of."
  }
}

run "one_zone_one_placement_group" {
  command = plan

  variables {
    fleet_zones         = ["1"]
    proximity_placement = true
  }
}

run "tls_inspection" {
  command = plan

  variables {
    idps_mode = "Deny"
    tls_inspection = {
      key_vault_secret_id = "https://example.vault.azure.net/secrets/ca/0123456789abcdef0123456789abcdef"
      identity_id         = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/x/providers/Microsoft.ManagedIdentity/userAssignedIdentities/x"
      ports               = [8443]
    }
  }
}

run "a_switch_of_the_firewalls_modes" {
  command = plan

  variables {
    firewall_switch_enabled = true
  }
}

run "another_appliance" {
  command = plan

  variables {
    appliance = "nva"
    nva = {
      publisher = "cisco"
      offer     = "cisco-c8000v-byol"
      sku       = "17_15_01a-byol"
    }
  }

  assert {
    condition     = length(module.firewall) == 0 && output.firewall_id == null
    error_message = "Another appliance stands in place of the firewall."
  }
}

run "tunnels_and_services" {
  command = plan

  variables {
    vxlan_port    = 4789
    service_ports = { http = [8080], ftp = [2121] }
  }
}

run "an_existing_firewall" {
  command = plan

  variables {
    appliance            = "existing-firewall"
    existing_firewall_id = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/azureFirewalls/afw-hub"
    name_prefix          = "contoso"
  }

  override_data {
    target = module.existing_firewall[0].data.azurerm_firewall.this
    values = {
      firewall_policy_id = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/firewallPolicies/afwp-hub"
      ip_configuration = [{
        name                 = "data"
        private_ip_address   = "10.0.0.4"
        public_ip_address_id = ""
        subnet_id            = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/virtualNetworks/vnet-hub/subnets/AzureFirewallSubnet"
      }]
    }
  }

  assert {
    condition     = length(module.firewall) == 0 && length(module.existing_rules) == 0
    error_message = "Nothing is made in place of it, and nothing of it is changed."
  }

  assert {
    condition     = length(local.proposed_rules) == 4 && strcontains(local.proposed_rules[0], "--policy-name afwp-hub")
    error_message = "The rules are proposed to the owners of its policy."
  }

  assert {
    condition     = output.resource_group == "rg-contoso-broadside" && toset(output.scale_sets) == toset(["vmss-contoso-broadside-clients", "vmss-contoso-broadside-servers"])
    error_message = "Names are the Cloud Adoption Framework's, with the prefix."
  }
}

run "a_region_without_zones" {
  command = plan

  variables {
    location = "westus"
  }

  assert {
    condition     = length(local.firewall_zones) == 0 && local.storage_replication == "LRS"
    error_message = "A region without zones gets neither zones nor ZRS."
  }
}

run "parked" {
  command = plan

  variables {
    parked = true
  }

  assert {
    condition     = output.tunnel == null
    error_message = "A parked range has no Bastion."
  }
}

# Mistakes ------------------------------------------------------------------------------------------

run "a_tier_that_is_none" {
  command = plan
  variables {
    firewall_tier = "Gold"
  }
  expect_failures = [var.firewall_tier]
}

run "idps_on_a_standard_firewall" {
  command = plan
  variables {
    firewall_tier = "Standard"
    idps_mode     = "Deny"
  }
  expect_failures = [var.idps_mode]
}

run "a_switch_of_a_standard_firewall" {
  command = plan
  variables {
    firewall_tier           = "Standard"
    firewall_switch_enabled = true
  }
  expect_failures = [var.firewall_switch_enabled]
}

run "every_port" {
  command = plan
  variables {
    extra_tcp_ports = ["*"]
  }
  expect_failures = [var.extra_tcp_ports]
}

run "tunnels_on_a_port_that_is_none" {
  command = plan
  variables {
    vxlan_port = 99999
  }
  expect_failures = [var.vxlan_port]
}

run "a_size_without_a_bandwidth" {
  command = plan
  variables {
    vm_size = "Standard_X1"
  }
  expect_failures = [var.vm_size]
}

run "a_login_that_debian_has_taken" {
  command = plan
  variables {
    admin_user_name = "operator"
  }
  expect_failures = [var.admin_user_name]
}

run "two_zones_in_one_placement_group" {
  command = plan
  variables {
    fleet_zones         = ["1", "2"]
    proximity_placement = true
  }
  expect_failures = [var.proximity_placement]
}

run "nobody_to_tell" {
  command = plan
  variables {
    budget_emails = []
  }
  expect_failures = [var.budget_emails]
}

run "an_appliance_without_an_image" {
  command = plan
  variables {
    appliance = "nva"
  }
  expect_failures = [var.nva]
}

run "a_service_on_the_port_of_iperf3" {
  command = plan
  variables {
    service_ports = { http = [5201] }
  }
  expect_failures = [var.service_ports]
}

run "services_without_their_ports" {
  command = plan
  variables {
    agent_settings = { BROADSIDE_AGENT_SERVICES = "http=8080" }
  }
  expect_failures = [var.agent_settings]
}

run "a_hub_that_overlaps_a_spoke" {
  command = plan
  variables {
    hub_cidr = "10.64.0.0/12"
  }
  expect_failures = [var.servers_cidr]
}

run "a_location_as_people_write_it" {
  command = plan
  variables {
    location = "West Europe"
  }
  expect_failures = [var.location]
}

run "a_location_of_another_cloud" {
  command = plan

  variables {
    cloud = "usgovernment"
  }

  expect_failures = [var.location]
}

run "a_sovereign_cloud" {
  command = plan

  variables {
    cloud    = "usgovernment"
    location = "usgovvirginia"
  }

  assert {
    condition     = endswith(module.exchange.servicebus_host, ".servicebus.usgovcloudapi.net")
    error_message = "A cloud's hosts are its own."
  }
}

run "an_existing_firewall_without_its_id" {
  command = plan
  variables {
    appliance = "existing-firewall"
  }
  expect_failures = [var.existing_firewall_id]
}

run "a_change_of_nobodys_firewall" {
  command = plan
  variables {
    may_change = ["rules"]
  }
  expect_failures = [var.may_change]
}

run "half_of_the_subnets" {
  command = plan
  variables {
    existing_subnet_ids = { clients = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/x/providers/Microsoft.Network/virtualNetworks/x/subnets/x" }
  }
  expect_failures = [var.existing_subnet_ids]
}

run "nowhere_to_upload_from" {
  command = plan
  variables {
    operator_addresses = []
  }
  expect_failures = [var.operator_addresses]
}

run "a_secret_in_quotes" {
  command = plan
  variables {
    agent_settings = { BROADSIDE_AGENT_NIC = "eth0\"; rm" }
  }
  expect_failures = [var.agent_settings]
}
