"""Live view of a running burst, with status, new seconds and findings. Pure."""
