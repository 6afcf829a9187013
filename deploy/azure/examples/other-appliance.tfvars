# Another appliance in place of Azure Firewall: a Cisco 8000v, two of them behind an internal load
# balancer with HA ports. For a Palo Alto VM-Series take publisher "paloaltonetworks", offer
# "vmseries-flex", sku "byol". Its own configuration (interfaces, routes, what it allows, its licence)
# is the vendor's business: `custom_data` carries the bootstrap. List what there is:
#   az vm image list --publisher cisco --offer cisco-c8000v-byol --all --output table
# Accept the image's legal terms once in the subscription, which `up --check` looks for:
#   az vm image terms accept --publisher cisco --offer cisco-c8000v-byol --plan 17_15_01a-byol
appliance = "nva"
nva = {
  publisher   = "cisco"
  offer       = "cisco-c8000v-byol"
  sku         = "17_15_01a-byol"
  size        = "Standard_D16_v4"
  instances   = 2
  custom_data = <<-EOT
    Section: IOS configuration
    hostname appliance
    ip ssh version 2
  EOT
}
instances = 10
