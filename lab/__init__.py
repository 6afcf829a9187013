"""Azure in miniature on one Linux host: namespaces, a firewall that counts, clocks, faults."""
