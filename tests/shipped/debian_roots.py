"""Cached root file systems of Debian releases for hosts that are booted by tests.

Use ``debian_root("bookworm")`` to get a folder with Debian 12. It will be created using mmdebstrap
and the mirror that apt of this machine uses. A root contains the parts of Debian's images that are
required by Broadside's documents, and nothing of Broadside. Tests use an overlay and must never
write to a root.

Roots are cached in ``.tools/roots`` of the checkout, or in the folder given by the environment
variable ``SHIPPED_ROOTS``. To renew a root, remove this folder.

To create the roots of both releases, run ``python -m tests.shipped.debian_roots``.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.azure.wheelhouse import default_archive

ROOT: Final = Path(__file__).parents[2]
# Debian 12 with Python 3.11.2.
BOOKWORM: Final = "bookworm"
# Debian 13 with Python 3.13.
TRIXIE: Final = "trixie"
SUITES: Final = (BOOKWORM, TRIXIE)

# A Debian image with systemd, and the requirements of docs/hosts.md: Python and chrony.
HOST_PACKAGES: Final = ("systemd-sysv", "procps", "iproute2", "python3", "chrony")


def roots_folder() -> Path:
    """Return the folder of cached roots."""
    named = os.environ.get("SHIPPED_ROOTS")
    return Path(named) if named else ROOT / ".tools" / "roots"


def debian_root(suite: str, packages: Sequence[str] = HOST_PACKAGES) -> Path:
    """Return the root file system of a Debian release, which will be created if it is not cached.

    If processes need the same root at the same time, they will wait for the first one.

    Args:
        suite: Code name of the release, for example ``bookworm``.
        packages: Debian packages to install in addition, without recommendations.

    Returns:
        Folder that must not be written to.

    Raises:
        RuntimeError: This process is not root, mmdebstrap is missing, or mmdebstrap failed.
    """
    wanted = sorted(packages)
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:8]
    folder = roots_folder()
    root = folder / f"{suite}-{digest}"
    if root.exists():
        return root
    if os.geteuid() != 0:
        raise RuntimeError(f"{root}: not made yet, and only root can make it")
    if shutil.which("mmdebstrap") is None:
        raise RuntimeError("mmdebstrap is missing; run: make tools")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            partial = folder / f"{root.name}.partial"
            # A killed process may have left it. The lock ensures that no process uses it.
            shutil.rmtree(partial, ignore_errors=True)
            _make(partial, suite, wanted)
            partial.rename(root)
    return root


def _make(folder: Path, suite: str, packages: Sequence[str]) -> None:
    made = subprocess.run(
        [
            "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase",
            "--aptopt=APT::Sandbox::User \"root\"",
            f"--include={','.join(packages)}",
            "--components=main", suite, str(folder), default_archive(),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )  # fmt: skip
    if made.returncode:
        raise RuntimeError(f"mmdebstrap could not make {suite}: {made.stderr.strip()[-1500:]}")


if __name__ == "__main__":
    for release in SUITES:
        sys.stdout.write(f"{debian_root(release)}\n")
