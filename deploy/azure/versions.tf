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
  # Shared keys of the storage account are off, so blobs are written with the deployer's own identity.
  storage_use_azuread = true

  features {
    resource_group {
      # Application Insights puts an alert rule of its own beside itself; `down` takes that too.
      prevent_deletion_if_contains_resources = false
    }
  }
}
