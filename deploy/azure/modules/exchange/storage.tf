# Storage account for the tables (tables.tf), with a container for the package of the agents.

resource "azurerm_storage_account" "this" {
  #checkov:skip=CKV_AZURE_59:only the operator's address is allowed (network_rules), to upload the package
  #checkov:skip=CKV_AZURE_206:ZRS is used if there are zones, and test results do not need a second region
  #checkov:skip=CKV_AZURE_33:the queues of this account are not used
  #checkov:skip=CKV2_AZURE_33:created with private_endpoints = true, and the default is to use service endpoints inside Azure
  #checkov:skip=CKV2_AZURE_1:test results are encrypted with the keys of Microsoft
  name                             = var.account.name
  resource_group_name              = var.context.group_name
  location                         = var.context.location
  account_kind                     = "StorageV2"
  account_tier                     = "Standard"
  account_replication_type         = var.account.replication
  min_tls_version                  = "TLS1_2"
  shared_access_key_enabled        = false # use managed identities only
  default_to_oauth_authentication  = true
  local_user_enabled               = false
  allow_nested_items_to_be_public  = false
  cross_tenant_replication_enabled = false
  # Used for the upload of the package. The rules below deny access to all others. With private
  # endpoints, `broadside up` allows access only for the time of the upload.
  public_network_access_enabled = !var.private_endpoints
  tags                          = var.context.tags

  network_rules {
    default_action             = "Deny"
    bypass                     = ["AzureServices"]
    ip_rules                   = var.operators.addresses
    virtual_network_subnet_ids = concat(var.subnet_ids, var.operators.subnet_ids)
  }

  blob_properties {
    delete_retention_policy {
      days = 7
    }
  }

  sas_policy {
    expiration_period = "00.01:00:00"
  }
}

resource "azurerm_storage_container" "agent" {
  #checkov:skip=CKV2_AZURE_21:a single package that is downloaded at boot, and there are metrics
  name                  = "agent"
  storage_account_id    = azurerm_storage_account.this.id
  container_access_type = "private"
}

locals {
  package = "broadside-bundle-${substr(var.bundle.sha256, 0, 12)}.tar.gz"
}

# The upload needs a data role, which even an owner of the subscription does not have.
resource "azurerm_role_assignment" "deployer" {
  name                 = uuidv5("url", "${azurerm_storage_container.agent.id}/Storage Blob Data Contributor/${var.deployer_principal_id}")
  scope                = azurerm_storage_container.agent.id
  role_definition_name = "Storage Blob Data Contributor"
  principal_id         = var.deployer_principal_id
}

resource "terraform_data" "role_settles" {
  count = var.private_endpoints ? 0 : 1

  triggers_replace = azurerm_role_assignment.deployer.id

  provisioner "local-exec" {
    command = "sleep ${var.role_settle_s}"
  }
}

# With private endpoints, the package could not be accessed in the next plan. In this case there is
# no resource, and `broadside up` uploads it (see output `package`).
resource "azurerm_storage_blob" "bundle" {
  count = var.private_endpoints ? 0 : 1

  name                 = local.package
  storage_container_id = azurerm_storage_container.agent.id
  type                 = "Block"
  source               = var.bundle.path
  content_type         = "application/gzip"

  depends_on = [terraform_data.role_settles]
}
