"""Tests for the Kubernetes and Ansible examples in deploy/hosts."""

from typing import Final

import yaml

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from tests.deploy_check import tools

HOSTS: Final = tools.ROOT / "deploy" / "hosts"


def test_ansible_example_uses_existing_settings() -> None:
    inventory = yaml.safe_load((HOSTS / "ansible" / "inventory.example.yml").read_text())
    host = inventory["all"]["children"]["broadside_coordinator_host"]["hosts"]
    (variables,) = host.values()
    known = {f"BROADSIDE_{name.upper()}" for name in CoordinatorSettings.model_fields}
    assert set(variables["broadside_settings"]) <= known
