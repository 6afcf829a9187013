"""Builds what a host of any kind installs offline: ``python -m deploy.hosts.archive``.

One file, ``dist/broadside-hosts.tar.gz``, for x86_64 with systemd and a Python 3.11, 3.12 or 3.13:
Debian 12 and 13, Ubuntu 24.04, RHEL 9 and 10 with theirs. In it are the installer, two units, every
locked wheel for each of those Pythons (by hash), and Debian's iperf3 with the libraries that it
runs on (by hash), so that it is the same one everywhere. Needs what deploy/azure/wheelhouse.py
needs.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy import debian_packages
from deploy.build_tools import ROOT, build_wheel, fetch_wheels, pack, run, sha256, version_line
from deploy.components import Carried, read_common_licences, read_debs, read_wheels, write_notices
from deploy.debian_packages import LICENCE_TEXTS, read_lock

HERE: Final = ROOT / "deploy" / "hosts"
BOOT: Final = ROOT / "deploy" / "azure" / "modules" / "boot" / "files"
LOCK: Final = HERE / "hosts.lock"
PYTHONS: Final = ("3.11", "3.12", "3.13")
# Version on RHEL 9.
GLIBC_MINOR_MAX: Final = 34
# iperf3 and the libraries that it loads. libgcc-s1 is loaded when a thread ends. Its licence is in
# gcc-14-base.
ENGINE: Final = (
    "iperf3", "libiperf0", "libc6", "libgcc-s1", "gcc-14-base", "libsctp1", "libssl3t64",
    "libzstd1", "zlib1g",
)  # fmt: skip
# An agent without tunnels does not need any.
CAPABILITIES: Final = ""


def main() -> int:
    """Build the archive and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "broadside-hosts.tar.gz")
    parser.add_argument("--python", action="append", help="only for this one; may be repeated")
    parser.add_argument("--archive", help="a Debian archive's URI; default: this machine's own")
    options = parser.parse_args()
    build(options.output, options.python or PYTHONS, archive=options.archive)
    return 0


def build(
    output: Path,
    pythons: Sequence[str] = PYTHONS,
    *,
    wheel: Path | None = None,
    archive: str | None = None,
) -> Sequence[Carried]:
    """Build the archive.

    Args:
        output: File to write.
        pythons: Python versions on the hosts.
        wheel: Wheel of Broadside, or None to build it.
        archive: URI of a Debian archive, or None to use the archive of this machine's apt.

    Returns:
        The third-party components in the archive.
    """
    with tempfile.TemporaryDirectory(prefix="broadside-hosts-") as folder:
        work = Path(folder)
        complete = work / "broadside-hosts"
        complete.mkdir()
        for path in (HERE / "install.sh", HERE / "broadside", LOCK, BOOT / "sysctl.conf"):
            shutil.copy(path, complete / path.name)
        for service in ("agent", "coordinator"):
            name = f"broadside-{service}.service"
            text = (BOOT / name).read_text().replace("${capabilities}", CAPABILITIES)
            (complete / name).write_text(text)
        shutil.copy(ROOT / "LICENSE", complete)
        (complete / "VERSION").write_text(f"{version_line()}\n", "utf-8")
        (complete / "wheels").mkdir()
        if wheel is None:
            local = build_wheel(complete / "wheels", work)
        else:
            local = Path(shutil.copy(wheel, complete / "wheels"))
        with (complete / LOCK.name).open("a") as lock:
            lock.write(locked(local))
        for python in pythons:
            fetch_wheels(complete / "wheels", (LOCK,), python, GLIBC_MINOR_MAX)
        carried = [
            *read_wheels((complete / "wheels").glob("*.whl")),
            *add_iperf3(complete / "iperf3", work, archive),
        ]
        write_notices(complete, "the archive for hosts", carried)
        pack(complete, output, "broadside-hosts")
    return carried


def locked(wheel: Path) -> str:
    """Return the line of a wheel for a lock file, with its hash."""
    name, version, *_ = wheel.name.split("-")
    return f"{name}=={version} --hash=sha256:{sha256(wheel)}\n"


def add_iperf3(home: Path, work: Path, archive: str | None) -> Sequence[Carried]:
    """Add the locked iperf3 with its libraries, and a wrapper that runs it with their loader.

    Args:
        home: Folder to create.
        work: Folder for downloads.
        archive: URI of a Debian archive, or None to use the archive of this machine's apt.

    Returns:
        The components of the packages.
    """
    fetched, debs = work / "debs", work / "engine"
    wanted = [package for package in read_lock() if package.name in (*ENGINE, LICENCE_TEXTS)]
    debian_packages.fetch(wanted, fetched, archive)
    (texts,) = (fetched / package.file_name for package in wanted if package.name == LICENCE_TEXTS)
    packages = [package for package in wanted if package.name != LICENCE_TEXTS]
    debs.mkdir()
    for package in packages:
        shutil.move(fetched / package.file_name, debs / package.file_name)
    run(["sh", ROOT / "deploy" / "iperf3.sh", "unpack", debs, home])
    return read_debs(packages, debs, read_common_licences(texts))


if __name__ == "__main__":
    sys.exit(main())
