"""Debian packages of the Azure bundle and the hosts archive, pinned by hash in ``debian.lock``.

``python -m deploy.debian_packages`` (part of `make lock`) updates the lock to the current packages
in the Debian archive. apt will check the signatures of the archive when you do this. A build will
only check the hashes.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from deploy.build_tools import ROOT, run

LOCK: Final = ROOT / "deploy" / "debian.lock"
SUITE: Final = "trixie"
PACKAGES: Final = ("iperf3", "chrony", "lftp", "nginx", "vsftpd", "openssl", "iproute2")
# Used by builds, because copyright files refer to it. It is not part of the archives.
LICENCE_TEXTS: Final = "base-files"
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_APT_HELPER: Final = Path("/usr/lib/apt/apt-helper")
# Errors of apt when a package has been replaced. You should try again for any other error.
_MOVED_ON: Final = ("404 ", "No such file", "Hash Sum mismatch")
_HEAD: Final = f"""\
# Debian packages of {SUITE} for amd64: {", ".join(PACKAGES)} and all that they need.
# Written by `make lock`. Name, version, SHA-256, path in the Debian archive.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianPackage:
    """Package in the lock.

    ``path`` is relative to the URI of the archive.
    """

    name: str
    version: str
    sha256: str
    path: str

    @property
    def file_name(self) -> str:
        """Name of the file."""
        return self.path.rpartition("/")[2]


def read_lock(lock: Path = LOCK) -> Sequence[DebianPackage]:
    """Return the packages in the lock, sorted by name."""
    lines = [line.split() for line in lock.read_text("utf-8").splitlines() if line[:1] != "#"]
    return [
        DebianPackage(name=name, version=version, sha256=digest, path=path)
        for name, version, digest, path in lines
    ]


def fetch(packages: Sequence[DebianPackage], folder: Path, archive: str | None = None) -> None:
    """Download packages and check their hashes.

    Args:
        packages: Packages in the lock.
        folder: Folder for the files, which will be created.
        archive: URI of a Debian archive, or None to use the archive of this machine's apt.
    """
    archive = archive or default_archive()
    folder.mkdir()
    wanted = [
        part
        for package in packages
        for part in (
            f"{archive.rstrip('/')}/{quote(package.path)}",
            str(folder / package.file_name),
            f"SHA256:{package.sha256}",
        )
    ]
    try:
        run(
            [_APT_HELPER, "-oAPT::Sandbox::User=root", "download-file", *wanted],
            {"LC_ALL": "C.UTF-8"},
        )
    except SystemExit as error:
        moved = any(parts in str(error) for parts in _MOVED_ON)
        advice = (
            f"the Debian archive {archive} no longer has a package as {LOCK.relative_to(ROOT)} pins"
            " it. Run `make lock` for what it has now, review the difference and commit it; or"
            " rebuild an old release with --archive URI of a snapshot of that day.\n"
        )
        sys.exit(f"{advice if moved else ''}{error}")


def default_archive() -> str:
    """Return the URI of the Debian archive used by apt on this machine."""
    targets = run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"])
    for line in targets.splitlines():
        origin, _, rest = line.partition(" ")
        if origin == "Debian" and rest.startswith("Debian "):
            return rest.removeprefix("Debian ").strip()
    sys.exit("no Debian archive in this machine's apt: run apt-get update, or give --archive URI")


def refresh(archive: str | None = None, lock: Path = LOCK) -> None:
    """Write the lock with all packages that apt would install on an empty system.

    Args:
        archive: URI of a Debian archive, or None to use the archive of this machine's apt.
        lock: File to write.
    """
    archive = (archive or default_archive()).rstrip("/")
    with tempfile.TemporaryDirectory(prefix="broadside-apt-") as folder:
        state = Path(folder)
        options = _apt_options(state, archive)
        run(["apt-get", "-qq", *options, "update"])
        apt = ["apt-get", "-qq", "--print-uris", *options]
        plan = run([*apt, "install", "-y", "--no-install-recommends", *PACKAGES])
        plan += run([*apt, "download", LICENCE_TEXTS])
        paths = {
            unquote(line.split()[0].strip("'").removeprefix(f"{archive}/"))
            for line in plan.splitlines()
        }
        fields = run(
            ["apt-cache", *options, "show", *sorted({_package_name(path) for path in paths})]
        )
    results = [
        entry for entry in map(_parse, fields.split("\n\n")) if entry and entry.path in paths
    ]
    if {package.path for package in results} != paths:
        sys.exit(f"apt-cache does not describe {paths - {package.path for package in results}}")
    lines = [
        f"{item.name} {item.version} {item.sha256} {item.path}\n"
        for item in sorted(results, key=lambda package: package.name)
    ]
    lock.write_text(_HEAD + "".join(lines), "utf-8")


def _apt_options(state: Path, archive: str) -> Sequence[str]:
    """Return options for apt to use its own lists and cache, with no installed packages."""
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (state / "sources.list").write_text(f"deb {signed}{archive} {SUITE} main\n")
    values = {
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    return [f"-o{name}={value}" for name, value in values.items()]


def _package_name(path: str) -> str:
    return path.rpartition("/")[2].partition("_")[0]


def _parse(paragraph: str) -> DebianPackage | None:
    lines = (line.partition(": ") for line in paragraph.splitlines() if line[:1] != " ")
    fields = {name: value for name, _, value in lines}
    if "Filename" not in fields:
        return None
    return DebianPackage(
        name=fields["Package"],
        version=fields["Version"],
        sha256=fields["SHA256"],
        path=fields["Filename"],
    )


def main() -> int:
    """Update the lock and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archive", help="a Debian archive's URI; default: this machine's own")
    refresh(parser.parse_args().archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
