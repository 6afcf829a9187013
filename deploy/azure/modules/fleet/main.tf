# Scale set for agents, used twice in the root module. It has uniform orchestration.

module "boot" {
  source = "../boot"

  service            = "agent"
  capabilities       = sort(var.capabilities)
  bundle_url         = var.machine.bundle_url
  bundle_sha256      = var.machine.bundle_sha256
  identity_client_id = var.identity.client_id

  environment = merge(var.exchange_environment, {
    BROADSIDE_MANAGED_IDENTITY_CLIENT_ID = var.identity.client_id
    BROADSIDE_AGENT_ROLE                 = var.role
    BROADSIDE_AGENT_PORTS                = join(",", var.endpoint_ports)
    BROADSIDE_AGENT_ALLOWED_NETWORKS     = var.target_prefix
    BROADSIDE_AGENT_ALLOW_TUNNELS        = tostring(var.tunnels_allowed)
    BROADSIDE_AGENT_VM_SIZE              = var.size
    BROADSIDE_AGENT_HOST_ALONE           = "true"
    BROADSIDE_AGENT_NIC_BITS_PER_SECOND  = format("%d", var.bits_per_second)
    BROADSIDE_AGENT_LOG_JSON             = "true"
    }, var.role == "client" ? {} : {
    BROADSIDE_AGENT_SERVICES  = var.services
    BROADSIDE_AGENT_ECHO_PORT = tostring(var.echo_port)
    }, var.role == "client" || length(var.canary_ports) == 0 ? {} : {
    BROADSIDE_AGENT_CANARY_PORTS = join(",", var.canary_ports)
  }, var.settings)
}

resource "azurerm_linux_virtual_machine_scale_set" "this" {
  #checkov:skip=CKV_AZURE_97:set with a variable, because the feature has to be registered in the subscription
  name                            = "${var.context.names.vmss}-${var.role}s"
  resource_group_name             = var.context.group_name
  location                        = var.context.location
  sku                             = var.size
  instances                       = var.instances
  computer_name_prefix            = var.role
  admin_username                  = var.machine.admin_user_name
  disable_password_authentication = true
  custom_data                     = module.boot.custom_data
  # If Azure created more VMs than requested and deleted them later, a job could be lost with them.
  overprovision = false
  # A new model does not change running VMs. Use `broadside scale 0` and then `scale 30` to create
  # new ones.
  upgrade_mode                 = "Manual"
  single_placement_group       = false # allows up to 1,000 VMs
  platform_fault_domain_count  = 1     # spread over as many hosts as possible
  zones                        = var.zones
  zone_balance                 = length(var.zones) > 1
  proximity_placement_group_id = var.proximity_placement_group_id
  encryption_at_host_enabled   = var.machine.encryption_at_host_enabled
  extension_operations_enabled = false
  secure_boot_enabled          = true
  vtpm_enabled                 = true
  tags                         = var.context.tags

  admin_ssh_key {
    username   = var.machine.admin_user_name
    public_key = var.machine.ssh_public_key
  }

  identity {
    type         = "UserAssigned"
    identity_ids = [var.identity.id]
  }

  network_interface {
    name                           = "traffic"
    primary                        = true
    accelerated_networking_enabled = var.accelerated_networking_enabled

    ip_configuration {
      name      = "traffic"
      primary   = true
      subnet_id = var.subnet_id
    }
  }

  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }

  source_image_reference {
    publisher = var.machine.image.publisher
    offer     = var.machine.image.offer
    sku       = var.machine.image.sku
    version   = var.machine.image.version
  }

  boot_diagnostics {}

  lifecycle {
    ignore_changes = [instances] # this is set by `broadside scale` and by the nightly shutdown
  }
}
