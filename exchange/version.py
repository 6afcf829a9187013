"""Version of this Broadside: its number and the commit that it was built from.

The number is the one of ``pyproject.toml``, as the package's metadata has it. The commit comes from
git in a checkout, and from a file that ``setup.py`` writes at build time everywhere else.
"""

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

COMMIT_FILE: Final = "commit.txt"  # beside this module in every built package
UNKNOWN: Final = "unknown commit"
_HERE: Final = Path(__file__).resolve().parent
_GIT_TIMEOUT_S: Final = 5.0


@cache
def version_text() -> str:
    """Return the number and the commit, such as ``0.9.0 (3d009671)``."""
    return f"{version_number()} ({commit() or UNKNOWN})"


@cache
def version_number() -> str:
    """Return the package's version number, such as ``0.9.0``."""
    return version("broadside")


@cache
def commit() -> str | None:
    """Return the commit's short id, with ``-dirty`` after it where files differ from that commit.

    Returns:
        The id; None where neither git nor a build recorded one.
    """
    return read_commit(_HERE.parent, _HERE / COMMIT_FILE)


def read_commit(root: Path, written: Path) -> str | None:
    """Read the commit of a checkout, or what a build wrote.

    Args:
        root: the folder that is a checkout if it holds ``.git``.
        written: the file that a build wrote; read where ``root`` is no checkout.

    Returns:
        The short id, ``-dirty`` appended for a changed tree; None where it is not known.
    """
    if not (root / ".git").exists():
        return written.read_text("ascii").strip() or None if written.is_file() else None
    # One process for both answers. No tag takes the place of the id.
    describe = ("describe", "--always", "--dirty", "--abbrev=8", "--exclude=*")
    try:
        asked = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *describe],
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):  # no git here
        return None
    # It refuses a checkout of another user, and has no id before the first commit.
    return asked.stdout.strip() or None if asked.returncode == 0 else None
