# A small VM instead of Container Apps. It has the same image, package and
# hardened unit as the agents. Its API is only listening on the loopback address, and can be used
# through Bastion.

module "boot" {
  source = "../boot"

  service            = "coordinator"
  capabilities       = []
  bundle_url         = var.machine.bundle_url
  bundle_sha256      = var.machine.bundle_sha256
  identity_client_id = var.identity.client_id

  environment = merge(var.exchange_environment, {
    BROADSIDE_MANAGED_IDENTITY_CLIENT_ID = var.identity.client_id
    }, var.firewall_id == null ? {} : {
    BROADSIDE_TELEMETRY_FILE            = "/etc/broadside/telemetry.toml"
    BROADSIDE_AZURE_MONITOR_RESOURCE_ID = var.firewall_id
    }, var.policy_id == null ? {} : {
    BROADSIDE_SWITCHES_FILE = "/etc/broadside/switches.toml"
  })

  telemetry = var.firewall_id == null ? "" : templatefile("${path.module}/telemetry.toml", {
    client_id   = var.identity.client_id
    endpoint    = var.exchange_environment.BROADSIDE_AZURE_MONITOR_ENDPOINT
    firewall_id = var.firewall_id

    flow_logs     = var.flow_logs.enabled
    logs_endpoint = var.flow_logs.endpoint
  })

  switches = var.policy_id == null ? "" : templatefile("${path.module}/switches.toml", {
    policy_id = var.policy_id
    idps      = lower(var.modes_at_rest.idps)
    threat    = lower(var.modes_at_rest.threat)
  })
}

resource "azurerm_network_interface" "this" {
  name                = "${var.context.names.nic}-coordinator"
  resource_group_name = var.context.group_name
  location            = var.context.location
  tags                = var.context.tags

  ip_configuration {
    name                          = "private"
    subnet_id                     = var.subnet_id
    private_ip_address_allocation = "Dynamic"
  }
}

resource "azurerm_linux_virtual_machine" "this" {
  name                            = "${var.context.names.vm}-coordinator"
  computer_name                   = "coordinator"
  resource_group_name             = var.context.group_name
  location                        = var.context.location
  size                            = var.size
  admin_username                  = var.machine.admin_user_name
  disable_password_authentication = true
  network_interface_ids           = [azurerm_network_interface.this.id]
  custom_data                     = module.boot.custom_data
  allow_extension_operations      = false
  encryption_at_host_enabled      = var.machine.encryption_at_host_enabled
  secure_boot_enabled             = true
  vtpm_enabled                    = true
  tags                            = var.context.tags

  admin_ssh_key {
    username   = var.machine.admin_user_name
    public_key = var.machine.ssh_public_key
  }

  identity {
    type         = "UserAssigned"
    identity_ids = [var.identity.id]
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
}

resource "azurerm_dev_test_global_vm_shutdown_schedule" "this" {
  count = var.machine.shutdown_time == null ? 0 : 1

  virtual_machine_id    = azurerm_linux_virtual_machine.this.id
  location              = var.context.location
  daily_recurrence_time = var.machine.shutdown_time
  timezone              = var.machine.shutdown_timezone
  tags                  = var.context.tags

  notification_settings {
    enabled = false
  }
}
