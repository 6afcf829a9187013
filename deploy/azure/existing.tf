# Resources that already exist, names, and data on the region. There are no resources in this file.

locals {
  own_group         = var.existing_resource_group_name == null
  existing_firewall = var.appliance == "existing-firewall"
  hub_subscription  = local.existing_firewall ? split("/", coalesce(var.existing_firewall_id, "/subscriptions/${var.subscription_id}"))[2] : var.subscription_id

  # If there is a prefix, use the abbreviations of the Cloud Adoption Framework.
  kinds = [
    "afw", "afwp", "appi", "autoscale", "bas", "budget", "deploy", "id", "lbi", "log", "logic", "ng",
    "nic", "nsg", "pep", "pip", "ppg", "rg", "rt", "sbns", "vm", "vmss", "vnet",
  ]
  names = { for kind in local.kinds : kind => var.name_prefix == null ? var.name : "${kind}-${var.name_prefix}-${var.name}" }
  # Without hyphens, up to 24 characters, and globally unique.
  account_name = "${substr(replace("${var.name_prefix == null ? "" : "st${var.name_prefix}"}${var.name}", "-", ""), 0, 16)}${local.suffix}"

  firewall_zones      = var.firewall_zones == null ? local.firewall_zones_open : var.firewall_zones
  storage_replication = var.storage_replication == null ? (local.zoned ? "ZRS" : "LRS") : var.storage_replication

  # `-var=x=null` sets a text with four letters. Use `broadside up --set x=null` to get a null.
  shutdown_time = var.auto_shutdown_time
  start_time    = var.auto_shutdown_time == null ? null : var.auto_start_time

  own_hub    = !contains(keys(var.existing_subnet_ids), "coordinator")
  own_spokes = !contains(keys(var.existing_subnet_ids), "clients")

  nat_gateways_count = (local.own_hub ? 1 : 0) + (local.own_spokes && !var.private_endpoints ? 2 : 0)

  # Data used by `broadside up --check`, `park` and `down`. It should not depend on any resource, so that
  # it is known without a plan.
  needs = {
    name                   = var.name
    subscription_id        = var.subscription_id
    resource_group         = local.own_group ? local.names.rg : var.existing_resource_group_name
    own_group              = local.own_group
    location               = var.location
    vm_size                = var.vm_size
    instances              = var.instances
    fleet_zones            = sort(var.fleet_zones)
    firewall_zones         = local.has_firewall ? sort(local.firewall_zones) : []
    firewall_zones_closed  = local.firewall_zones_closed
    nightly_stop           = local.nightly_stop
    coordinator_size       = var.coordinator_size
    appliance              = var.appliance
    firewall_tier          = var.firewall_tier
    bastion                = var.bastion_enabled
    image_plan             = try(var.nva.marketplace, false) ? ["--publisher", var.nva.publisher, "--offer", var.nva.offer, "--plan", var.nva.sku] : []
    nva_size               = var.appliance == "nva" ? var.nva.size : null
    nva_count              = var.appliance == "nva" ? var.nva.instances : 0
    nat_gateways_count     = local.nat_gateways_count
    private_endpoints      = var.private_endpoints
    public_addresses_count = (var.appliance == "azure-firewall" ? (var.firewall_tier == "Basic" ? 2 : 1) : 0) + (var.bastion_enabled ? 1 : 0) + local.nat_gateways_count
  }
}
