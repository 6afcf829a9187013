"""Checks of all files under deploy/ without Azure (``python -m tests.deploy_check``).

:mod:`~tests.deploy_check.hcl` reads Terraform. :mod:`~tests.deploy_check.schema` checks it with the
provider's schema. :mod:`~tests.deploy_check.values` resolves references to literal values.
:mod:`~tests.deploy_check.range_rules` has the rules. :mod:`~tests.deploy_check.boot` renders the
first-boot configuration of a VM. All of these are pure. :mod:`~tests.deploy_check.tools` runs
external tools.
"""
