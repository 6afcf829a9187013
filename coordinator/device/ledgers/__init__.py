"""Where the firewall's own byte counts come from: one module a source, chosen by settings."""
