"""Judges everything under deploy/ without Azure: ``python -m deploy.check``.

:mod:`~deploy.check.hcl` reads Terraform, :mod:`~deploy.check.schema` holds it to the provider's own
schema, :mod:`~deploy.check.values` follows references to literal values,
:mod:`~deploy.check.range_rules` says what must hold of them, :mod:`~deploy.check.boot` renders what
a VM is told at its first boot. All of these are pure. :mod:`~deploy.check.tools` runs the tools of
others.
"""
