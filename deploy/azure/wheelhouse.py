"""Builds what a VM installs offline: ``python deploy/azure/wheelhouse.py`` (`make wheelhouse`).

One file, ``dist/broadside-bundle.tar.gz``: Broadside's own wheel with the start gate in it, every
locked wheel for the image's Python (by hash), Debian packages of chrony and the traffic engines
with all they need, as an apt archive, and vegeta, which Debian does not have, as deploy/go.sh
builds it. Debian 13: Python 3.13, iperf3 3.18, chrony 4.6.

Needs a Debian with apt, for the packages' signatures, and a C compiler whose libc is not newer than
the image's.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BUNDLE: Final = ROOT / "deploy" / "azure" / "bundle"
SUITE: Final = "trixie"
PYTHON: Final = "3.13"
PACKAGES: Final = ("iperf3", "chrony", "lftp", "nginx", "vsftpd", "openssl", "iproute2")
PROGRAMS: Final = ("vegeta",)  # built in the checkout, from source: in no Debian
GLIBC_MINOR: Final = 36  # the oldest that this image has; Python's wheels name it
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LOCKS: Final = ("agent.lock", "coordinator.lock")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "broadside-bundle.tar.gz")
    parser.add_argument("--archive", help="a Debian archive's URI; default: this machine's own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="broadside-bundle-") as folder:
        work = Path(folder)
        bundle = work / "bundle"
        bundle.mkdir()
        for name in ("install.sh", *LOCKS):
            shutil.copy(BUNDLE / name, bundle / name)
        (bundle / "packages").write_text("\n".join(PACKAGES))
        build_wheel(bundle / "wheels", work)
        fetch_wheels(bundle / "wheels", [BUNDLE / lock for lock in LOCKS], PYTHON, GLIBC_MINOR)
        build_programs(bundle / "bin")
        fetch_packages(bundle / "debs", work, options.archive or own_archive())
        pack(bundle, options.output)
    return 0


def build_wheel(wheels: Path, work: Path) -> None:
    """Broadside's own wheel, for any Python from 3.11: its C holds no Python."""
    source = work / "source"  # a build leaves folders beside its sources
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    for name in ("agent", "coordinator", "dashboards", "exchange", "lab", "src"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "node_modules")
        # src holds links to the other folders.
        shutil.copytree(ROOT / name, source / name, ignore=ignored, symlinks=True)
    run(
        [
            ROOT / ".tools/uv/bin/uv", "build", "-q", "--wheel", "--no-build-isolation",
            "--python", ROOT / ".venv/bin/python", "-C--build-option=--py-limited-api=cp311",
            "--out-dir", wheels, source,
        ]
    )  # fmt: skip
    (wheel,) = wheels.glob("broadside-*.whl")
    if not any(name.endswith("libgate.abi3.so") for name in zipfile.ZipFile(wheel).namelist()):
        sys.exit("wheelhouse: the start gate was not built; run: apt-get install gcc libc6-dev")


def build_programs(folder: Path) -> None:
    """The static programs that the checkout builds for itself, for /usr/local/bin of a VM."""
    folder.mkdir()
    for name in PROGRAMS:
        run(["sh", ROOT / "deploy" / "go.sh", name])
        shutil.copy(ROOT / ".tools" / name / "bin" / name, folder / name)


def fetch_wheels(wheels: Path, locks: Sequence[Path], python: str, glibc_minor: int) -> None:
    """Every locked wheel for a Python (such as 3.13) where glibc is 2.``glibc_minor`` or newer."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(17, glibc_minor + 1)]
    for lock in locks:
        run(
            [
                ROOT / ".tools/uv/bin/pip", "download", "-q", "--disable-pip-version-check",
                "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", wheels,
                "--implementation", "cp", "--python-version", python,
                *(word for tag in ("cp" + python.replace(".", ""), "abi3", "none")
                  for word in ("--abi", tag)),
                *(word for platform in platforms for word in ("--platform", platform)),
                "-r", lock,
            ]
        )  # fmt: skip


def own_archive() -> str:
    """The Debian archive of this machine's own apt."""
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in asked.stdout.splitlines():
        origin, _, rest = line.partition(" ")
        if origin == "Debian" and rest.startswith("Debian "):
            return rest.removeprefix("Debian ").strip()
    sys.exit("wheelhouse: no Debian archive in this machine's apt: apt-get update, or --archive")


def fetch_packages(debs: Path, work: Path, archive: str) -> None:
    """The packages and all that they need, checked by apt, with an index of their own.

    As if nothing were installed: what the image has already, apt there leaves alone.
    """
    state = work / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (state / "sources.list").write_text(f"deb {signed}{archive} {SUITE} main\n")
    apt: list[str | Path] = ["apt-get", "-qq", *(
        f"-o{name}={value}"
        for name, value in {
            "Dir::Etc::sourcelist": state / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": state,
            "Dir::State::status": state / "status",
            "Dir::Cache": state / "cache",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        }.items()
    )]  # fmt: skip
    run([*apt, "update"])
    run([*apt, "install", "-y", "--download-only", "--no-install-recommends", *PACKAGES])
    debs.mkdir()
    index = []
    for deb in sorted((state / "cache" / "archives").glob("*.deb")):
        kept = debs / deb.name.replace("%3a", ".")  # an epoch's colon
        shutil.copy(deb, kept)
        control = run(["dpkg-deb", "--field", kept]).rstrip("\n")
        digest = hashlib.sha256(kept.read_bytes()).hexdigest()
        size = kept.stat().st_size
        index.append(f"{control}\nFilename: ./{kept.name}\nSize: {size}\nSHA256: {digest}\n")
    (debs / "Packages").write_text("\n".join(index))


def pack(bundle: Path, output: Path, top: str = "") -> None:
    """Write the archive, and say its size and digest. The same files, below ``top``, give the same
    bytes: no times, no owners, sorted."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = "root"
        return entry

    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=output.parent, suffix=".tar") as whole:
        with tarfile.open(whole.name, "w") as archive:
            for path in sorted(bundle.rglob("*")):
                name = top / path.relative_to(bundle)
                archive.add(path, name, recursive=False, filter=plain)
        packed = run_bytes(["gzip", "-n", "-6", "-c", whole.name])
        output.write_bytes(packed)
    digest = hashlib.sha256(packed).hexdigest()
    sys.stdout.write(f"{output}: {len(packed) / 1e6:.1f} MB, SHA-256 {digest}\n")


def run(argv: Sequence[str | Path]) -> str:
    """What a command printed; ends the process with its own words when it fails."""
    return run_bytes(argv).decode()


def run_bytes(argv: Sequence[str | Path]) -> bytes:
    done = subprocess.run(
        [str(word) for word in argv],
        capture_output=True,
        check=False,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        sys.exit(f"wheelhouse: {Path(str(argv[0])).name} failed: {said[-1500:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
