"""Builds what a host of any kind installs offline: ``python -m deploy.hosts.archive``.

One file, ``dist/broadside-hosts.tar.gz``, for x86_64 with systemd and a Python 3.11, 3.12 or 3.13:
Debian 12 and 13, Ubuntu 24.04, RHEL 9 and 10 with theirs. In it are the installer, two units, every
locked wheel for each of those Pythons (by hash), and an iperf3 with the libraries that it runs on,
so that it is the same one everywhere. Needs what deploy/azure/wheelhouse.py needs.
"""

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.azure.wheelhouse import ROOT, build_wheel, fetch_wheels, pack, run

HERE: Final = ROOT / "deploy" / "hosts"
BOOT: Final = ROOT / "deploy" / "azure" / "modules" / "boot" / "files"
LOCK: Final = HERE / "hosts.lock"
PYTHONS: Final = ("3.11", "3.12", "3.13")
GLIBC_MINOR_MAX: Final = 34  # RHEL 9's
IPERF3_MINIMUM: Final = (3, 18)
CAPABILITIES: Final = ""  # an agent without tunnels needs none


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "broadside-hosts.tar.gz")
    parser.add_argument("--python", action="append", help="only for this one; may be repeated")
    options = parser.parse_args()
    build(options.output, options.python or PYTHONS)
    return 0


def build(output: Path, pythons: Sequence[str]) -> None:
    """The archive, for hosts with one of these Pythons."""
    with tempfile.TemporaryDirectory(prefix="broadside-hosts-") as folder:
        work = Path(folder)
        whole = work / "broadside-hosts"
        whole.mkdir()
        for path in (HERE / "install.sh", HERE / "broadside", LOCK, BOOT / "sysctl.conf"):
            shutil.copy(path, whole / path.name)
        for service in ("agent", "coordinator"):
            name = f"broadside-{service}.service"
            text = (BOOT / name).read_text().replace("${capabilities}", CAPABILITIES)
            (whole / name).write_text(text)
        build_wheel(whole / "wheels", work)
        (own,) = (whole / "wheels").glob("broadside-*.whl")
        with (whole / LOCK.name).open("a") as lock:
            lock.write(locked(own))
        for python in pythons:
            fetch_wheels(whole / "wheels", (LOCK,), python, GLIBC_MINOR_MAX)
        shutil.copytree(own_iperf3(), whole / "iperf3", symlinks=True)
        pack(work / "broadside-hosts", output, "broadside-hosts")


def locked(wheel: Path) -> str:
    """A lock's line for a wheel, by its hash."""
    name, version, *_ = wheel.name.split("-")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} --hash=sha256:{digest}\n"


def own_iperf3() -> Path:
    """The folder of an iperf3 with its libraries, as deploy/iperf3.sh brings it."""
    said = run(["sh", ROOT / "deploy" / "iperf3.sh", "own"])
    home = ROOT / ".tools" / "iperf3"
    shown = run([home / "bin" / "iperf3", "--version"]) if home.exists() else said
    found = re.match(r"iperf (\d+)\.(\d+)", shown)
    if found is None or (int(found[1]), int(found[2])) < IPERF3_MINIMUM:
        sys.exit(f"archive: no iperf3 3.18 to put in: {said.strip()}")
    return home


if __name__ == "__main__":
    sys.exit(main())
