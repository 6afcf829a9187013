"""Builds what a VM installs offline: ``python -m deploy.azure.wheelhouse`` (`make wheelhouse`).

One file, ``dist/broadside-bundle.tar.gz``: Broadside's own wheel with the start gate in it, every
locked wheel for the image's Python (by hash), the locked Debian packages of chrony and the traffic
engines with all they need (by hash), as an apt archive, and vegeta, which Debian does not have, as
deploy/go.sh builds it. Debian 13: Python 3.13, iperf3 3.18, chrony 4.6.

You need a Debian with apt, and a C compiler with a libc that is not newer than the one on the
image.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy import debian_packages
from deploy.build_tools import ROOT as ROOT
from deploy.build_tools import build_wheel, fetch_wheels, pack, run, version_line
from deploy.components import (
    Carried,
    read_common_licences,
    read_debs,
    read_go_licences,
    read_wheels,
    write_notices,
)

# Imported here for the tests.
from deploy.debian_packages import KEYRING as KEYRING
from deploy.debian_packages import LICENCE_TEXTS, PACKAGES, read_lock
from deploy.debian_packages import default_archive as default_archive

BUNDLE: Final = ROOT / "deploy" / "azure" / "bundle"
PYTHON: Final = "3.13"
# Programs that you cannot get from Debian, so we build them from source.
PROGRAMS: Final = ("vegeta",)
# Oldest glibc version on this image, which is part of the names of wheels.
GLIBC_MINOR: Final = 36
LOCKS: Final = ("agent.lock", "coordinator.lock")


def main() -> int:
    """Build the bundle and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "broadside-bundle.tar.gz")
    parser.add_argument("--archive", help="a Debian archive's URI; default: this machine's own")
    options = parser.parse_args()
    build(options.output, archive=options.archive)
    return 0


def build(
    output: Path, *, wheel: Path | None = None, archive: str | None = None
) -> Sequence[Carried]:
    """Build the bundle.

    Args:
        output: File to write.
        wheel: Wheel of Broadside, or None to build it.
        archive: URI of a Debian archive, or None to use the archive of this machine's apt.

    Returns:
        The third-party components in the bundle.
    """
    with tempfile.TemporaryDirectory(prefix="broadside-bundle-") as folder:
        work = Path(folder)
        bundle = work / "bundle"
        bundle.mkdir()
        for name in ("install.sh", *LOCKS):
            shutil.copy(BUNDLE / name, bundle / name)
        shutil.copy(ROOT / "LICENSE", bundle)
        (bundle / "VERSION").write_text(f"{version_line()}\n", "utf-8")
        (bundle / "packages").write_text("\n".join(PACKAGES))
        (bundle / "wheels").mkdir()
        if wheel is None:
            build_wheel(bundle / "wheels", work)
        else:
            shutil.copy(wheel, bundle / "wheels")
        fetch_wheels(bundle / "wheels", [BUNDLE / lock for lock in LOCKS], PYTHON, GLIBC_MINOR)
        carried = [
            *read_wheels((bundle / "wheels").glob("*.whl")),
            *add_packages(bundle / "debs", work, archive),
            *add_programs(bundle / "bin"),
        ]
        write_notices(bundle, "the Azure bundle", carried)
        pack(bundle, output)
    return carried


def add_programs(folder: Path) -> Sequence[Carried]:
    """Add the static programs built in this checkout, to be installed in /usr/local/bin."""
    folder.mkdir()
    carried: list[Carried] = []
    for name in PROGRAMS:
        # We should use the pinned version of Go, because you would get a different program from
        # another version.
        run(["sh", ROOT / "deploy" / "go.sh", name], {"BROADSIDE_BRING_GO": "1"})
        shutil.copy(ROOT / ".tools" / name / "bin" / name, folder / name)
        carried += read_go_licences(ROOT / ".tools" / name / "licences")
    return carried


def add_packages(debs: Path, work: Path, archive: str | None) -> Sequence[Carried]:
    """Add the locked packages with their own apt index.

    The lock has all packages that are needed if nothing is installed. If the image already has a
    package, apt will skip it.

    Args:
        debs: Folder to create for the packages.
        work: Folder for downloads.
        archive: URI of a Debian archive, or None to use the archive of this machine's apt.

    Returns:
        The components of the packages.
    """
    fetched = work / "debs"
    locked = read_lock()
    debian_packages.fetch(locked, fetched, archive)
    (texts,) = (fetched / item.file_name for item in locked if item.name == LICENCE_TEXTS)
    packages = [item for item in locked if item.name != LICENCE_TEXTS]
    debs.mkdir()
    index = []
    for package in packages:
        stored = debs / package.file_name
        shutil.copy(fetched / package.file_name, stored)
        control = run(["dpkg-deb", "--field", stored]).rstrip("\n")
        size = stored.stat().st_size
        index.append(
            f"{control}\nFilename: ./{stored.name}\nSize: {size}\nSHA256: {package.sha256}\n"
        )
    (debs / "Packages").write_text("\n".join(index))
    return read_debs(packages, debs, read_common_licences(texts))


if __name__ == "__main__":
    sys.exit(main())
