#!/bin/sh
# Provide azurerm for `terraform validate` and `terraform test`, without the Terraform registry.
#
#   provider.sh         print the CLI configuration for a provider built before; exit 1 if none
#   provider.sh build   build it from source using Go, with 15 minutes, 3.5 GB of memory and 2 cores
#
# The checksum is different from the released one. `terraform init` accepts it if there is no
# deploy/azure/.terraform.lock.hcl.
#
# The provider is stored in .tools/terraform, or in $BROADSIDE_TERRAFORM_MIRROR. If you have access
# to the registry, you do not need this script, because `terraform init` downloads the released
# provider.
set -eu
cd "$(dirname "$0")/../.."

version=5.2.0
# Name of version 5.2 as a Go module.
commit=v1.44.1-0.20260824201233-fae580791926
mirror=${BROADSIDE_TERRAFORM_MIRROR:-$PWD/.tools/terraform/mirror}
binary=$mirror/registry.terraform.io/hashicorp/azurerm/$version/linux_amd64/terraform-provider-azurerm

if [ "${1-}" = build ] && [ ! -x "$binary" ]; then
    command -v go >/dev/null || { echo "provider: go is missing; see your system's golang package" >&2; exit 1; }
    mkdir -p "$(dirname "$binary")"
    GOBIN=$(dirname "$binary") go install "github.com/hashicorp/terraform-provider-azurerm@$commit" >&2
fi
[ -x "$binary" ] || exit 1

config=$mirror/terraformrc
[ -f "$config" ] || cat >"$config" <<EOF
provider_installation {
  filesystem_mirror {
    path = "$mirror"
  }
}
EOF
echo "$config"
