terraform {
  required_version = ">= 1.9" # needed for validations that use a second variable

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
  # Shared keys of the storage account are disabled, so blobs are written using the identity of the
  # user.
  storage_use_azuread = true
  # azurerm 5 does not register any provider by itself, so nothing could be created in an empty
  # subscription.
  resource_provider_registrations = "none"
  resource_providers_to_register  = var.register_resource_providers ? local.resource_providers : []

  features {
    template_deployment {
      delete_nested_items_during_deletion = false # the tables are deleted with the account
    }

    resource_group {
      # Application Insights creates an alert rule, which will be deleted by `down` as well.
      prevent_deletion_if_contains_resources = false
    }
  }
}

# Subscription of an existing firewall and its hub, or the subscription of the range.
provider "azurerm" {
  alias           = "hub"
  subscription_id = local.hub_subscription
  environment     = var.cloud

  resource_provider_registrations = "none"
  resource_providers_to_register  = []

  features {}
}
