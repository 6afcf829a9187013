"""The coordinator's side of the fabric of any hosts: what it serves, and to whom."""
