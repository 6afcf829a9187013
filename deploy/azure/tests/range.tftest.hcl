# `terraform test` with a mocked provider: every plan is made, nothing is reached. What a plan leaves
# unknown (ids, addresses) is not asserted here; what is refused before any plan is in
# tests/live/test_deploy_network.py, which needs no provider.

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
    error_message = "Another appliance is used instead of the firewall."
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

run "an_existing_firewall_in_a_virtual_hub" {
  command = plan

  variables {
    appliance                     = "existing-firewall"
    existing_firewall_id          = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/azureFirewalls/afw-hub"
    existing_firewall_virtual_hub = true
    may_change                    = ["peerings"]
  }

  override_data {
    target = module.existing_firewall[0].data.azurerm_firewall.this
    values = {
      firewall_policy_id = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/firewallPolicies/afwp-hub"
      ip_configuration   = []
      virtual_hub = [{
        virtual_hub_id      = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/virtualHubs/vhub"
        private_ip_address  = "10.1.0.132"
        public_ip_addresses = []
        public_ip_count     = 1
      }]
    }
  }

  override_data {
    target = module.existing_firewall[0].data.azurerm_virtual_hub_route_table.default[0]
    values = {
      route = [{
        name              = "_policy_PrivateTraffic"
        destinations      = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
        destinations_type = "CIDR"
        next_hop          = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/azureFirewalls/afw-hub"
        next_hop_type     = "ResourceId"
      }]
    }
  }

  assert {
    condition     = length(module.existing_firewall[0].connections) == 2 && length(azurerm_virtual_network_peering.spoke_to_existing_hub) == 0 && length(module.routes.routes) == 0
    error_message = "The spokes are connections of the hub, which gives them their routes."
  }
}

run "a_hub_without_routing_intent" {
  command = plan

  variables {
    appliance                     = "existing-firewall"
    existing_firewall_id          = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/azureFirewalls/afw-hub"
    existing_firewall_virtual_hub = true
  }

  override_data {
    target = module.existing_firewall[0].data.azurerm_firewall.this
    values = {
      firewall_policy_id = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/firewallPolicies/afwp-hub"
      ip_configuration   = []
      virtual_hub = [{
        virtual_hub_id      = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg-hub/providers/Microsoft.Network/virtualHubs/vhub"
        private_ip_address  = "10.1.0.132"
        public_ip_addresses = []
        public_ip_count     = 1
      }]
    }
  }

  override_data {
    target = module.existing_firewall[0].data.azurerm_virtual_hub_route_table.default[0]
    values = { route = [] }
  }

  expect_failures = [output.proposal]
}

run "flow_logs_of_the_firewall" {
  command = plan

  variables {
    firewall_flow_logs = true
  }
}

run "flow_logs_of_a_basic_firewall" {
  command = plan

  variables {
    firewall_tier      = "Basic"
    firewall_flow_logs = true
  }

  expect_failures = [var.firewall_flow_logs]
}

run "an_offer_without_budgets" {
  command = plan

  variables {
    budget_amount = null
    budget_emails = []
  }

  assert {
    condition     = length(module.budget) == 0
    error_message = "A range without a budget can be made."
  }
}

run "zones_without_new_firewalls" {
  command = plan

  variables {
    location = "northeurope"
  }

  assert {
    condition     = local.firewall_zones == toset(["1", "3"]) && local.storage_replication == "ZRS"
    error_message = "The zone in which Azure creates no firewall is left out."
  }

  assert {
    condition     = local.shutdown_timezone == "GMT Standard Time" && output.fabric["BROADSIDE_NIGHTLY_STOP"] == "20:00 Europe/London"
    error_message = "The range stops in the region's own evening, and the coordinator knows."
  }
}

run "an_evening_of_the_operators" {
  command = plan

  variables {
    auto_shutdown_timezone = "Tokyo Standard Time"
    auto_shutdown_time     = "2230"
  }

  assert {
    condition     = output.fabric["BROADSIDE_NIGHTLY_STOP"] == "22:30 Asia/Tokyo"
    error_message = "A time zone that is given wins over the region's."
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
