"""Tests for the reported version number and commit."""

import re
import tomllib
from pathlib import Path

import pytest

from broadside.exchange.version import commit, read_commit, version_number, version_text

ROOT = Path(__file__).parents[3]


def test_version_number_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version_number() == project["version"]
    assert version_text() == f"{version_number()} ({commit() or 'unknown commit'})"


def test_image_tag_is_the_version() -> None:
    text = (ROOT / "deploy" / "hosts" / "kubernetes" / "kustomization.yaml").read_text()
    assert re.findall(r'newTag: "(.+)"', text) == [version_number()]


@pytest.mark.parametrize(("written", "read"), [("3d009671\n", "3d009671"), ("\n", None)])
def test_built_package_reads_its_commit_file(
    tmp_path: Path, written: str, read: str | None
) -> None:
    file = tmp_path / "commit.txt"
    file.write_text(written)
    assert read_commit(tmp_path, file) == read


def test_unknown_commit_is_none(tmp_path: Path) -> None:
    assert read_commit(tmp_path, tmp_path / "commit.txt") is None
