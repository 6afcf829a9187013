"""Version number of Broadside and the commit from which it was built.

The number comes from ``pyproject.toml``, through the metadata of the package. In a checkout, git
supplies the commit. Other installations have a file with the commit, which ``setup.py`` writes at
build time.
"""

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

# File next to this module in every built package.
COMMIT_FILE: Final = "commit.txt"
UNKNOWN: Final = "unknown commit"
_HERE: Final = Path(__file__).resolve().parent
_GIT_TIMEOUT_S: Final = 5.0


@cache
def version_text() -> str:
    """Return version number and commit, such as ``1.0.0 (3d009671)``."""
    return f"{version_number()} ({commit() or UNKNOWN})"


@cache
def version_number() -> str:
    """Return the package's version number, such as ``1.0.0``."""
    return version("broadside")


@cache
def commit() -> str | None:
    """Return the short commit id, with ``-dirty`` if files differ from the commit.

    Returns:
        Commit id, or None if it is unknown.
    """
    return read_commit(_HERE.parent, _HERE / COMMIT_FILE)


def read_commit(root: Path, written: Path) -> str | None:
    """Read the commit of a checkout or of a build.

    Args:
        root: The folder of the sources. It is a checkout if it contains ``.git``.
        written: The file from the build, which is read if ``root`` is not a checkout.

    Returns:
        Short id, with ``-dirty`` for a changed tree, or None if it is unknown.
    """
    if not (root / ".git").exists():
        return written.read_text("ascii").strip() or None if written.is_file() else None
    # We use one command to get both id and state. A tag should not be used in place of the id.
    describe = ("describe", "--always", "--dirty", "--abbrev=8", "--exclude=*")
    try:
        completed = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *describe],
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_TIMEOUT_S,
        )
    # git is not installed or does not respond.
    except (OSError, subprocess.TimeoutExpired):
        return None
    # git rejects a checkout that belongs to another user. Before the first commit there is no id.
    return completed.stdout.strip() or None if completed.returncode == 0 else None
