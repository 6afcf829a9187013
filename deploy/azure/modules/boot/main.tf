# Data for the first boot of a VM, as cloud-init. There are no secrets in it. The package is
# downloaded using the managed identity of the VM, and only accepted with the SHA-256 below.
#
# There are no resources in this module, so the tests can render it without a provider.

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
    telemetry     = trimspace(var.telemetry)
    sysctl        = trimspace(file("${local.files}/sysctl.conf"))
    unit          = trimspace(local.unit)
  })
}
