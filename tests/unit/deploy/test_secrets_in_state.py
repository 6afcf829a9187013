"""Tests to find secrets in the Terraform state which are not marked as sensitive."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy_check.hcl import Module, load

ROOT = Path(__file__).parents[3]
FOLDERS = ("deploy/azure",)
SECRET = re.compile(
    r"(^|_)(codes?|secrets?|tokens?|passwords?|passphrase|sas)($|_)|private_key|access_key|api_key"
    r"|connection_string|instrumentation_key"
)
# These names do not contain the secret itself.
NO_SECRETS = re.compile(r"secret_id$|^http_tokens$")


def modules(folder: str) -> dict[str, Module]:
    base = ROOT / folder
    return load(
        {
            str(path.relative_to(base)): path.read_text("utf-8")
            for path in base.rglob("*.tf")
            if "tests" not in path.parts
        }
    )


def is_secret(name: str) -> bool:
    return SECRET.search(name) is not None and not NO_SECRETS.search(name)


def unmarked(modules_by_name: dict[str, Module]) -> Iterator[str]:
    """Yield variables, outputs and resources to be marked as sensitive."""
    for module in modules_by_name.values():
        for name, variable in module.variables.items():
            if is_secret(name) and variable.literal("sensitive") is not True:
                yield f"{module}: variable {name}"
        for name, output in module.outputs.items():
            value = str(output.arguments.get("value"))
            parts = [name, *re.findall(r"\w+", value)]
            if any(map(is_secret, parts)) and output.literal("sensitive") is not True:
                yield f"{module}: output {name}"
        for kind, name in module.resources:
            if kind in ("tls_private_key", "random_password", "local_file", "null_resource"):
                yield f"{module}: {kind}.{name} stores a secret in the state"


@pytest.mark.parametrize("folder", FOLDERS)
def test_secrets_are_marked_as_sensitive(folder: str) -> None:
    result = modules(folder)
    assert result
    assert list(unmarked(result)) == []


@pytest.mark.parametrize(
    "text",
    [
        'variable "join_codes" {\n  type = string\n}\n',
        'variable "api_token" {\n  type = string\n  sensitive = false\n}\n',
        'output "key" {\n  value = azurerm_storage_account.this.primary_access_key\n}\n',
        'output "join_code" {\n  value = "x"\n}\n',
        'resource "tls_private_key" "this" {\n  algorithm = "ED25519"\n}\n',
    ],
)
def test_detects_unmarked_secret(text: str) -> None:
    assert list(unmarked(load({"main.tf": text})))
