# Range for all tests in the field notebook (docs/scenarios.md). It has eight pairs, HTTP, HTTPS and
# FTP in addition to iperf3, VXLAN tunnels, probes, and modes of the firewall for A/B studies.
#   broadside up --vars examples/notebook.tfvars
#   broadside launch vxlan-64-flows
#   broadside study matrix inspection --mode off --mode alert --mode deny --switch idps
# Some tests need other settings, as described in the runbook:
#   --set bypass=true, --set vm_size=Standard_D8_v4, --set accelerated_networking_enabled=false
firewall_tier           = "Premium"
idps_mode               = "Off"
firewall_switch_enabled = true
instances               = 8
service_ports           = { http = [8080], https = [8443], ftp = [2121] }
vxlan_port              = 4789
