# Every test of the field's notebook (docs/scenarios.md) on one range: eight pairs, HTTP, HTTPS and
# FTP beside iperf3, VXLAN tunnels, probes, and switches of the firewall's modes for A/B studies.
#   broadside up --vars examples/notebook.tfvars
#   broadside launch vxlan-64-flows
#   broadside study matrix inspection --mode off --mode alert --mode deny --switch idps
# What needs another state of the range is set beside it, as the runbook says:
#   --set bypass=true, --set vm_size=Standard_D8_v4, --set accelerated_networking_enabled=false
firewall_tier           = "Premium"
idps_mode               = "Off"
firewall_switch_enabled = true
instances               = 8
service_ports           = { http = [8080], https = [8443], ftp = [2121] }
vxlan_port              = 4789
