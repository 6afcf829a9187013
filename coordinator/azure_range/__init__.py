"""Reachability of a range on Azure: what each VM needs, and whether it can reach and use it.

:func:`~broadside.coordinator.azure_range.walk.walk` follows every need of every VM over the applied
resources: name, route, security groups, firewall, listener, identity and role.
"""
