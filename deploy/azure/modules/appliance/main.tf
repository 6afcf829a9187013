# Third-party appliance, using VMs with a marketplace image behind an internal load balancer. The
# load balancer has a single rule for all ports and protocols (HA ports), so that its frontend can
# be used as a next hop. Each VM has one interface with IP forwarding. The rules of the appliance
# are part of its own configuration. The legal terms of the image have to be accepted by a user once
# per subscription (see `up --check`). We do not use a resource for this. It would fail if the terms
# have already been accepted, and deleting it would cancel them for all users.

resource "azurerm_lb" "this" {
  name                = "${var.context.names.lbi}-appliance"
  resource_group_name = var.context.group_name
  location            = var.context.location
  sku                 = "Standard" # required for HA ports
  tags                = var.context.tags

  frontend_ip_configuration {
    name                          = "next-hop"
    subnet_id                     = var.subnet_id
    private_ip_address_allocation = "Static"
    private_ip_address            = cidrhost(var.subnet_prefix, 4)
    zones                         = var.zones
  }
}

resource "azurerm_lb_backend_address_pool" "this" {
  name            = "appliances"
  loadbalancer_id = azurerm_lb.this.id
}

resource "azurerm_lb_probe" "this" {
  name                = "alive"
  loadbalancer_id     = azurerm_lb.this.id
  protocol            = "Tcp"
  port                = var.image.probe_port
  interval_in_seconds = 5
}

resource "azurerm_lb_rule" "ha_ports" {
  name                           = "everything"
  loadbalancer_id                = azurerm_lb.this.id
  protocol                       = "All"
  frontend_port                  = 0
  backend_port                   = 0
  frontend_ip_configuration_name = "next-hop"
  backend_address_pool_ids       = [azurerm_lb_backend_address_pool.this.id]
  probe_id                       = azurerm_lb_probe.this.id
  load_distribution              = "Default" # based on the 5-tuple, so the streams of a pair are spread over all appliances
  idle_timeout_in_minutes        = 30        # the control connection of iperf3 is idle during a burst
}

resource "azurerm_network_interface" "this" {
  count = var.image.instances

  name                           = "${var.context.names.nic}-appliance-${count.index + 1}"
  resource_group_name            = var.context.group_name
  location                       = var.context.location
  ip_forwarding_enabled          = true
  accelerated_networking_enabled = true
  tags                           = var.context.tags

  ip_configuration {
    name                          = "traffic"
    subnet_id                     = var.subnet_id
    private_ip_address_allocation = "Dynamic"
  }
}

resource "azurerm_network_interface_backend_address_pool_association" "this" {
  count = var.image.instances

  network_interface_id    = azurerm_network_interface.this[count.index].id
  ip_configuration_name   = "traffic"
  backend_address_pool_id = azurerm_lb_backend_address_pool.this.id
}

resource "azurerm_linux_virtual_machine" "this" {
  count = var.image.instances

  name                            = "${var.context.names.vm}-appliance-${count.index + 1}"
  resource_group_name             = var.context.group_name
  location                        = var.context.location
  size                            = var.image.size
  admin_username                  = var.image.admin_user_name
  disable_password_authentication = true
  network_interface_ids           = [azurerm_network_interface.this[count.index].id]
  custom_data                     = var.image.custom_data == null ? null : base64encode(var.image.custom_data)
  allow_extension_operations      = false
  encryption_at_host_enabled      = var.encryption_at_host_enabled
  tags                            = var.context.tags

  admin_ssh_key {
    username   = var.image.admin_user_name
    public_key = var.ssh_public_key
  }

  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }

  source_image_reference {
    publisher = var.image.publisher
    offer     = var.image.offer
    sku       = var.image.sku
    version   = var.image.version
  }

  dynamic "plan" {
    for_each = var.image.marketplace ? [var.image] : []

    content {
      name      = plan.value.sku
      product   = plan.value.offer
      publisher = plan.value.publisher
    }
  }

  # Console of the vendor, which shows why an appliance does not start.
  boot_diagnostics {}
}
