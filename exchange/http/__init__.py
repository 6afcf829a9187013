"""The fabric of any hosts: queue, tables and raw output over HTTPS to the coordinator."""
