#!/bin/sh
# The azurerm provider for `terraform validate` and `terraform test`, without Terraform's registry.
#
#   provider.sh         print the CLI configuration that finds a provider built earlier; exit 1 if none
#   provider.sh build   build it from source with Go: about 15 minutes, 3.5 GB of memory, 2 cores
#
# Its checksum is not the release's: `terraform init` takes it where deploy/azure/.terraform.lock.hcl is not.
#
# It is kept in .tools/terraform, or in $BROADSIDE_TERRAFORM_MIRROR. Who can reach the registry needs
# none of this: `terraform init` fetches the released provider.
set -eu
cd "$(dirname "$0")/../.."

version=5.2.0
commit=v1.44.1-0.20260824201233-fae580791926 # what 5.2 is called among Go's modules
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
