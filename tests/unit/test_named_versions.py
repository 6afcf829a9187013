"""Test that all places name the same version, which is the one in pyproject.toml.

``tests/shipped/test_release.py`` checks the wheel, the archives and the label of the image.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from broadside.coordinator.api.app import create_app
from broadside.coordinator.cli import app
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.version import version_number

ROOT: Final = Path(__file__).parents[2]
VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


async def test_openapi_document_has_the_version(tmp_path: Path) -> None:
    fabric = open_fabric(FabricSettings(data_dir=tmp_path))
    document: Any = create_app(Coordinator(fabric), tick_s=None).openapi()
    await fabric.close()
    assert document["info"]["version"] == version_number()


def test_command_prints_the_version() -> None:
    printed = CliRunner().invoke(app, ["--version"]).output
    assert printed.startswith(f"broadside {version_number()} (")


def test_installed_package_has_the_version() -> None:
    if version_number() != VERSION:
        pytest.fail(f"{version_number()} is installed, {VERSION} is here: run `make setup`")


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("deploy/hosts/kubernetes/kustomization.yaml", r'newTag: "(.+)"'),
        ("docs/docker.md", r"broadside-image-(\d+\.\d+\.\d+)\.oci\.tar"),
        ("docs/docker.md", r"docker-daemon:broadside:(\d+\.\d+\.\d+)"),
        ("CHANGELOG.md", r"^## \[(\d+\.\d+\.\d+)\]"),
        ("CONTRIBUTING.md", r"git tag -a v(\d+\.\d+\.\d+)"),
    ],
)
def test_files_name_the_version(file: str, pattern: str) -> None:
    matches = re.findall(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE)
    assert matches and matches[0] == VERSION
