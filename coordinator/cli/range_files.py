"""Where the range's Terraform files and state are: in a checkout, or in a folder of the user's.

Terraform keeps its state beside its files. An installed package's folder is no place for it: it
belongs to the package manager, and an upgrade replaces it. There ``up`` copies the files into
``broadside/azure`` under ``$XDG_STATE_HOME``, or into an empty folder that the user names.
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

from broadside.coordinator.cli.exits import Exit, stop

PACKAGED: Final = (Path(__file__).parents[2] / "deploy" / "azure").resolve()
# What `up` needs of that folder; pyproject.toml puts the same into the wheel.
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
NOT_WANTED: Final = ("backend.tf", "resume_imports.tf")  # of the user's, and of a broken-off `up`
MANIFEST: Final = ".broadside-files.json"  # names the files that were copied
BUNDLE: Final = "bundle.auto.tfvars"  # Terraform reads it with every command
_IS_GIVEN: Final = re.compile(r"^\s*bundle_path\s*=", re.MULTILINE)


def in_checkout() -> bool:
    """Return whether this package runs from a checkout."""
    return (PACKAGED.parents[1] / "pyproject.toml").is_file()


def user_directory() -> Path:
    """Return where an installed package keeps the range's files and state."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "broadside" / "azure"


def default_directory() -> Path:
    """Return the Terraform directory of commands that are given none."""
    return PACKAGED if in_checkout() else user_directory()


def packaged_files() -> Iterator[Path]:
    """Yield what `up` needs, relative to :data:`PACKAGED`."""
    for pattern in WANTED:
        for path in sorted(PACKAGED.glob(pattern)):
            if path.is_file() and path.name not in NOT_WANTED:
                yield path.relative_to(PACKAGED)


def lay_files(directory: Path, *, update: bool = False) -> None:
    """Copy the Terraform files into a folder of the user's; a checkout's stays as it is.

    Args:
        directory: The Terraform directory. Files go into the default one, into an empty folder,
            and into one that has such copies already.
        update: Bring copies of another version of the package to this one's.
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
        stop(
            "this installation has no Terraform files: install the released wheel, or give "
            "--directory with deploy/azure of a checkout",
            Exit.CANNOT_RUN,
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
        stop(f"directory {directory}: {error.strerror}; give --directory", Exit.CANNOT_RUN)
    if not has_copies:
        typer.echo(f"Terraform's files and state are in {directory}", err=True)


def note_bundle(directory: Path, bundle: Path | None) -> None:
    """Have Terraform use a bundle, in this command and in later ones."""
    if bundle is None:
        return
    if not bundle.is_file():
        stop(f"bundle {bundle}: no such file", Exit.USAGE)
    # In a Terraform text `${` begins an expression.
    text = json.dumps(str(bundle.resolve())).replace("${", "$${").replace("%{", "%%{")
    (directory / BUNDLE).write_text(f"bundle_path = {text}\n", encoding="utf-8")


def require_bundle(directory: Path, words: Sequence[str]) -> None:
    """End where the VMs' package is missing, with what to get.

    Args:
        directory: The Terraform directory.
        words: The variables as Terraform's own options.
    """
    if not (directory / MANIFEST).is_file():
        return  # a checkout, whose variables.tf says what is missing
    own = (directory / "terraform.tfvars", *directory.glob("*.auto.tfvars"))
    read_anyway = [f"-var-file={path}" for path in own if path.is_file()]
    for word in (*words, *read_anyway):
        option, _, value = word.partition("=")
        if option == "-var" and _IS_GIVEN.match(value):
            return
        if option == "-var-file" and _IS_GIVEN.search(Path(value).read_text("utf-8")):
            return
    name = f"broadside-bundle-{version('broadside')}.tar.gz"
    stop(
        f"bundle: the VMs install {name}, which is not in this package; get it from the release "
        "that this package is of, and give --bundle FILE",
        Exit.USAGE,
    )
