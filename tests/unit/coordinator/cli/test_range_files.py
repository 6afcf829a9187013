"""Tests for the Terraform files when they are in a checkout or an installed package."""

import os
import tomllib
from pathlib import Path
from typing import Final

import pytest

from broadside.coordinator.cli import range_commands, range_files
from tests.live.commands import run_command

ROOT: Final = Path(__file__).parents[4]
AZURE: Final = ROOT / "deploy" / "azure"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an installed package with Terraform files and set an empty home."""
    package = tmp_path / "site-packages" / "broadside" / "deploy" / "azure"
    for name in ("main.tf", "examples/one.tfvars", "modules/boot/files/fetch.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(f"# {name}\n")
    monkeypatch.setattr(range_files, "PACKAGED", package)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return package


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_checkout_files_are_not_copied() -> None:
    assert AZURE.resolve() == range_commands.DIRECTORY
    before = names(AZURE)
    range_files.copy_files(AZURE, update=True)
    assert names(AZURE) == before


def test_wheel_contains_the_files_that_up_copies() -> None:
    """Terraform also needs some of the files in deploy/azure."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    assert project["package-data"]["broadside"] == [
        f"deploy/azure/{name}" for name in range_files.WANTED
    ]
    assert project["exclude-package-data"]["broadside"] == [
        f"deploy/azure/{name}" for name in range_files.NOT_WANTED
    ]
    copied = set(map(str, range_files.packaged_files()))
    assert {"main.tf", "modules/boot/cloud-init.yaml.tftpl", "examples/scale-180g.tfvars"} <= copied
    assert not [name for name in copied if name.startswith(("tests/", "bundle/"))]
    read = {
        str(path.relative_to(AZURE))
        for folder in ("modules", "examples")
        for path in (AZURE / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert read <= copied


def test_installed_package_is_copied_and_not_changed(installed: Path) -> None:
    directory = range_files.default_directory()
    assert directory == Path(os.environ["XDG_STATE_HOME"]) / "broadside" / "azure"
    before = names(installed)
    range_files.copy_files(directory, update=True)
    assert names(installed) == before
    assert names(directory) == before | {range_files.MANIFEST}


def test_upgrade_replaces_files_and_preserves_user_files(installed: Path) -> None:
    directory = range_files.default_directory()
    range_files.copy_files(directory)
    (directory / "terraform.tfstate").write_text("state")
    (directory / "backend.tf").write_text("theirs")
    (installed / "main.tf").write_text("# newer\n")
    (installed / "examples" / "one.tfvars").rename(installed / "examples" / "two.tfvars")
    range_files.copy_files(directory)
    assert (directory / "main.tf").read_text() == "# main.tf\n"
    range_files.copy_files(directory, update=True)
    assert (directory / "main.tf").read_text() == "# newer\n"
    assert names(directory) == names(installed) | {
        range_files.MANIFEST,
        "backend.tf",
        "terraform.tfstate",
    }
    assert (directory / "terraform.tfstate").read_text() == "state"


def test_copies_only_into_an_existing_empty_folder(installed: Path, tmp_path: Path) -> None:
    empty, used, absent = (tmp_path / name for name in ("empty", "used", "absent"))
    empty.mkdir()
    used.mkdir()
    (used / "notes.txt").write_text("mine")
    for folder in (empty, used, absent):
        range_files.copy_files(folder, update=True)
    assert "main.tf" in names(empty)
    assert names(used) == {"notes.txt"}
    assert not absent.exists()


def test_missing_terraform_files_error_names_the_wheel(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (installed / "main.tf").unlink()
    with pytest.raises(BaseException):  # noqa: B017
        range_files.copy_files(range_files.default_directory())
    assert "install the released wheel" in capsys.readouterr().err


def up(
    *arguments: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Call `up` when terraform is not on the PATH and return the exit code and errors."""
    monkeypatch.setenv("PATH", "/nonexistent")
    directory = str(range_files.default_directory())
    done = run_command(["up", "--directory", directory, *arguments], monkeypatch, capfd)
    return done.returncode, done.stderr


@pytest.mark.usefixtures("installed")
def test_up_names_the_bundle_to_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, text = up(monkeypatch=monkeypatch, capfd=capfd)
    assert code == 3
    assert "broadside-bundle-" in text
    assert "--bundle FILE" in text
    # The make targets are not available in an installed package.
    assert "make" not in text
    absent = str(tmp_path / "absent.tar.gz")
    code, text = up("--bundle", absent, monkeypatch=monkeypatch, capfd=capfd)
    assert (code, "no such file" in text) == (3, True)
