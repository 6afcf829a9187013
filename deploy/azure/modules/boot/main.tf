# What a VM is told at its first boot, as cloud-init. It holds no secret: the package is fetched with
# the VM's managed identity and believed only if its SHA-256 is the one below.
#
# No resource is here, so this module renders without a provider: the tests run what it renders.

locals {
  files = "${path.module}/files"

  unit = templatefile("${local.files}/broadside-${var.service}.service", {
    capabilities = join(" ", var.capabilities)
  })

  environment = join("\n", [for name, value in var.environment : "${name}=${value}"])

  bundle = jsonencode({
    client_id = var.identity_client_id
    service   = var.service
    sha256    = var.bundle_sha256
    url       = var.bundle_url
  })

  cloud_init = templatefile("${path.module}/cloud-init.yaml.tftpl", {
    bundle        = local.bundle
    chrony        = trimspace(file("${local.files}/chrony.conf"))
    environment   = local.environment
    fetch         = trimspace(file("${local.files}/fetch.py"))
    host_settings = trimspace(file("${local.files}/host-settings.sh"))
    host_unit     = trimspace(file("${local.files}/broadside-host.service"))
    install_unit  = trimspace(file("${local.files}/broadside-install.service"))
    service       = var.service
    switches      = trimspace(var.switches)
    sysctl        = trimspace(file("${local.files}/sysctl.conf"))
    unit          = trimspace(local.unit)
  })
}
