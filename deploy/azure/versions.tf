terraform {
  required_version = ">= 1.9" # validations that look at a second variable

  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = "~> 5.2"
    }
  }
}

provider "azurerm" {
  subscription_id = var.subscription_id
  environment     = var.cloud
  # Shared keys of the storage account are off, so blobs are written with the deployer's own identity.
  storage_use_azuread = true
  # azurerm 5 registers none by itself; in an empty subscription nothing could be made.
  resource_provider_registrations = "none"
  resource_providers_to_register  = var.register_resource_providers ? local.resource_providers : []

  features {
    template_deployment {
      delete_nested_items_during_deletion = false # the account takes its tables with it
    }

    resource_group {
      # Application Insights puts an alert rule of its own beside itself; `down` takes that too.
      prevent_deletion_if_contains_resources = false
    }
  }
}

# The subscription of an existing firewall and its hub; the range's own otherwise.
provider "azurerm" {
  alias           = "hub"
  subscription_id = local.hub_subscription
  environment     = var.cloud

  resource_provider_registrations = "none"
  resource_providers_to_register  = []

  features {}
}
