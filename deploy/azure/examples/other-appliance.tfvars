# Use another appliance instead of Azure Firewall, here two Cisco 8000v behind an internal load
# balancer with HA ports. For a Palo Alto VM-Series use publisher "paloaltonetworks", offer
# "vmseries-flex" and sku "byol". The configuration of the appliance (interfaces, routes, rules,
# licence) is up to you. The bootstrap data can be set in `custom_data`. To list all images:
#   az vm image list --publisher cisco --offer cisco-c8000v-byol --all --output table
# Accept the legal terms of the image once per subscription. `up --check` will test this:
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
