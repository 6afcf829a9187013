"""Judges everything under deploy/ without Azure: ``python -m tests.deploy_check``.

:mod:`~tests.deploy_check.hcl` reads Terraform, :mod:`~tests.deploy_check.schema` holds it to the
provider's own schema, :mod:`~tests.deploy_check.values` follows references to literal values,
:mod:`~tests.deploy_check.range_rules` says what must hold of them, :mod:`~tests.deploy_check.boot`
renders what
a VM is told at its first boot. All of these are pure. :mod:`~tests.deploy_check.tools` runs the
tools of others.
"""
