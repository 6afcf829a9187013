resource "azurerm_firewall_policy" "this" {
  #checkov:skip=CKV_AZURE_220:set with idps_mode, because the modes are compared
  name                     = "${var.context.names.afwp}-firewall"
  resource_group_name      = var.context.group_name
  location                 = var.context.location
  sku                      = var.tier
  threat_intelligence_mode = var.threat_intelligence_mode
  tags                     = var.context.tags

  dynamic "intrusion_detection" {
    for_each = var.tier == "Premium" ? [var.idps_mode] : []

    content {
      mode = intrusion_detection.value
    }
  }

  dynamic "tls_certificate" {
    for_each = var.tls_inspection[*]

    content {
      name                = "inspection"
      key_vault_secret_id = tls_certificate.value.key_vault_secret_id
    }
  }

  dynamic "identity" {
    for_each = var.tls_inspection[*]

    content {
      type         = "UserAssigned"
      identity_ids = [identity.value.identity_id]
    }
  }
}
