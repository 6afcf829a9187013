# Ports for the security groups and the firewall, and the settings of the agents for this traffic.
# There are no resources in this file, so it can be tested without a provider.

locals {
  # The FTP server chooses passive ports for its data connections (exchange/engines/ftp.py).
  service_ports = concat(
    flatten(values(var.service_ports)),
    contains(keys(var.service_ports), "ftp") ? ["50000-59999"] : [],
  )
  tcp_ports = distinct(concat(
    [for port in concat(var.endpoint_ports, local.service_ports, slice(var.canary_ports, 0, min(1, length(var.canary_ports)))) : tostring(port)],
    var.extra_tcp_ports,
  ))
  # Only the device should block it, so the security groups let it through.
  forbidden_ports = [for port in slice(var.canary_ports, min(1, length(var.canary_ports)), length(var.canary_ports)) : tostring(port)]
  udp_ports = distinct(concat(
    [for port in concat(var.endpoint_ports, [var.echo_port], slice(var.canary_ports, 0, min(1, length(var.canary_ports)))) : tostring(port)],
    var.extra_udp_ports,
  ))

  services     = join(" ", [for engine, ports in var.service_ports : "${engine}=${join(",", ports)}"])
  capabilities = setunion(var.agent_capabilities, var.vxlan_port == null ? [] : ["CAP_NET_ADMIN"])
}
