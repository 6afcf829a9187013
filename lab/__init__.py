"""Azure in miniature on one Linux host, with namespaces, a firewall, clocks and faults."""
