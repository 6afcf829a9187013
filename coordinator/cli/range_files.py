"""Locations for the Terraform files and state.

Terraform stores its state next to its files. An installed package folder should not be used for
this, because the package manager replaces it on upgrade. ``up`` therefore copies the files to
``broadside/azure`` under ``$XDG_STATE_HOME``, or to an empty folder given by the user. A checkout
is used in place.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import typer

from broadside.coordinator.cli.exit_codes import exit_usage, exit_with_error

PACKAGED: Final = (Path(__file__).parents[2] / "deploy" / "azure").resolve()
# Files that `up` needs. pyproject.toml includes the same files in the wheel.
WANTED: Final = (
    "*.tf",
    ".terraform.lock.hcl",
    "backend.tf.example",
    "examples/*.tfvars",
    "modules/*/*.tf",
    "modules/*/*.tftpl",
    "modules/*/*.toml",
    "modules/*/files/*",
)
# Files that belong to the user, and to an interrupted `up`.
NOT_WANTED: Final = ("backend.tf", "resume_imports.tf")
# Lists the files that were copied.
MANIFEST: Final = ".broadside-files.json"
# Terraform reads this file with every command.
BUNDLE: Final = "bundle.auto.tfvars"
_SETS_BUNDLE: Final = re.compile(r"^\s*bundle_path\s*=", re.MULTILINE)


def in_checkout() -> bool:
    """Return True if this package runs from a checkout."""
    return (PACKAGED.parents[1] / "pyproject.toml").is_file()


def user_directory() -> Path:
    """Return the folder to use for Terraform files and state when the package is installed."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "broadside" / "azure"


def default_directory() -> Path:
    """Return the default Terraform directory."""
    return PACKAGED if in_checkout() else user_directory()


def packaged_files() -> Iterator[Path]:
    """Yield the files that `up` needs, relative to ``PACKAGED``."""
    for pattern in WANTED:
        for path in sorted(PACKAGED.glob(pattern)):
            if path.is_file() and path.name not in NOT_WANTED:
                yield path.relative_to(PACKAGED)


def copy_files(directory: Path, *, update: bool = False) -> None:
    """Copy the Terraform files to a user folder. A checkout is not changed.

    Args:
        directory: The Terraform directory. Files are copied to the default directory, to an empty
            folder, or to a folder with earlier copies.
        update: Replace files that were copied from another package version.
    """
    manifest = directory / MANIFEST
    has_copies = manifest.is_file()
    if has_copies and not update:
        return
    if not has_copies:
        is_empty = directory.is_dir() and not any(directory.iterdir())
        is_default = directory == user_directory()
        if (directory / "main.tf").exists() or not (is_empty or is_default):
            return
    files = list(map(str, packaged_files()))
    if "main.tf" not in files:
        exit_with_error(
            "this installation has no Terraform files; install the released wheel, or give "
            "deploy/azure of a checkout with --directory"
        )
    before = json.loads(manifest.read_text("utf-8")) if has_copies else []
    try:
        for name in files:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PACKAGED / name, directory / name)
        for name in set(before) - set(files):
            (directory / name).unlink(missing_ok=True)
        manifest.write_text(json.dumps(files, indent=1), encoding="utf-8")
    except OSError as error:
        exit_with_error(f"directory {directory}: {error.strerror}; use another --directory")
    if not has_copies:
        typer.echo(f"the Terraform files and state are in {directory}", err=True)


def store_bundle(directory: Path, bundle: Path | None) -> None:
    """Configure the bundle that Terraform uses in this and in later commands.

    Args:
        directory: The Terraform directory to use.
        bundle: Bundle path. None changes nothing.
    """
    if bundle is None:
        return
    if not bundle.is_file():
        exit_usage(f"--bundle {bundle}: no such file")
    # In a Terraform string `${` begins an expression.
    text = json.dumps(str(bundle.resolve())).replace("${", "$${").replace("%{", "%%{")
    (directory / BUNDLE).write_text(f"bundle_path = {text}\n", encoding="utf-8")


def require_bundle(directory: Path, options: Sequence[str]) -> None:
    """Exit if the package for the VMs is missing, and print how to get it.

    Args:
        directory: The Terraform directory to use.
        options: The variables, as Terraform options.
    """
    if not (directory / MANIFEST).is_file():
        # In a checkout, variables.tf reports a missing package.
        return
    files = (directory / "terraform.tfvars", *directory.glob("*.auto.tfvars"))
    automatic = [f"-var-file={path}" for path in files if path.is_file()]
    for argument in (*options, *automatic):
        option, _, value = argument.partition("=")
        if option == "-var" and _SETS_BUNDLE.match(value):
            return
        if option == "-var-file" and _SETS_BUNDLE.search(Path(value).read_text("utf-8")):
            return
    name = f"broadside-bundle-{version('broadside')}.tar.gz"
    exit_usage(
        f"--bundle: missing; download {name}, which the VMs install, from the same release, and "
        "give --bundle FILE"
    )
