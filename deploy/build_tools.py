"""Helpers to build the files of a release, such as sources, wheels and archives.

If you build the same commit again, you will get the same bytes, in any folder and at any time.
Sources should be copied with fixed modes, all times will be set to the time of the commit, and
archives have sorted members without owners.
"""

import atexit
import gzip
import hashlib
import io
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
UV: Final = ROOT / ".tools" / "uv" / "bin" / "uv"
PIP: Final = ROOT / ".tools" / "uv" / "bin" / "pip"
# We add this file to every archive.
NOTICES: Final = "NOTICES.txt"
_FOLDERS: Final = ("agent", "coordinator", "dashboards", "deploy/azure", "exchange", "lab", "src")
_FILES: Final = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "THIRD-PARTY-NOTICES.md")
_NOT_SOURCES: Final = (
    "__pycache__",
    "docs_site",
    "*.so",
    "*.egg-info",
    "node_modules",
    ".terraform",
    "*.tfstate*",
    "*.tfplan",
)
# 1980, because a wheel is a zip file, and these do not support an earlier time.
_ZIP_MIN_AT_S: Final = 315_532_800


def version_number() -> str:
    """Return the version of ``pyproject.toml``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def commit() -> str | None:
    """Return the commit of this checkout as in ``broadside --version``, or None without git."""
    module = runpy.run_path(str(ROOT / "exchange" / "version.py"))
    known: str | None = module["read_commit"](ROOT, ROOT / "COMMIT")
    return known


def version_line() -> str:
    """Return the output of ``broadside --version`` for a build of this checkout."""
    return f"broadside {version_number()} ({commit() or 'unknown commit'})"


def source_date_s() -> int:
    """Return the Unix timestamp of the commit, or ``SOURCE_DATE_EPOCH`` if it is set."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return max(_ZIP_MIN_AT_S, int(given))
    if not (ROOT / ".git").exists() or commit() is None:
        return _ZIP_MIN_AT_S
    return max(_ZIP_MIN_AT_S, int(run(["git", "-C", ROOT, "log", "-1", "--format=%ct"])))


def copy_sources(source: Path) -> None:
    """Copy the sources of a wheel, with modes that do not depend on the umask of the checkout."""
    source.mkdir()
    for name in _FILES:
        shutil.copyfile(ROOT / name, source / name)
    ignored = shutil.ignore_patterns(*_NOT_SOURCES)
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=ignored, symlinks=True)
    shutil.copytree(_docs_site(), source / "dashboards" / "docs_site")
    normalise_modes(source)


@cache
def _docs_site() -> Path:
    """Build the site of the documentation in a temporary folder, once per process."""
    folder = Path(tempfile.mkdtemp(prefix="broadside-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    run(
        [*command, "--config-file", ROOT / "mkdocs.yml", "--site-dir", folder / "site"],
        {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "SOURCE_DATE_EPOCH": str(source_date_s()),
        },
    )
    return folder / "site"


def normalise_modes(folder: Path) -> None:
    """Set the modes of all files in a folder to the ones that a umask of 022 would give."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)


def build_wheel(wheels: Path, work: Path) -> Path:
    """Build the wheel of Broadside, which works with Python 3.11 and later.

    The C code does not use the Python API.

    Args:
        wheels: Folder to write to.
        work: Empty folder for a copy of the sources, because the build writes to them.

    Returns:
        The path of the wheel.
    """
    source = work / "wheel-sources"
    copy_sources(source)
    _build(source, wheels, "--wheel", "-C--build-option=--py-limited-api=cp311")
    (wheel,) = wheels.glob("broadside-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = {Path(name).name for name in opened.namelist()}
    if not {"libbodies.abi3.so", "libconnections.abi3.so", "libgate.abi3.so"} <= names:
        sys.exit("the C code of the agent was not built; run: apt-get install gcc libc6-dev")
    return wheel


def build_sdist(folder: Path, work: Path) -> Path:
    """Build the source distribution. Its members have no owner and the time of the commit.

    Args:
        folder: Folder to write to.
        work: Empty folder for the build.

    Returns:
        The path of the archive.
    """
    source, built = work / "sdist-sources", work / "sdist"
    copy_sources(source)
    _build(source, built, "--sdist")
    (archive,) = built.glob("*.tar.gz")
    # We do not use tarfile, because its filters are available only since Python 3.11.4.
    (work / "sdist-members").mkdir()
    run(["tar", "-xzf", archive, "-C", work / "sdist-members"])
    (members,) = (work / "sdist-members").iterdir()
    output = folder / archive.name
    pack(members, output, members.name)
    return output


def _build(source: Path, folder: Path, *options: str) -> None:
    environment = {
        "SOURCE_DATE_EPOCH": str(source_date_s()),
        "BROADSIDE_COMMIT": commit() or "",
    }
    run(
        [
            UV, "build", "-q", "--no-build-isolation", "--python", sys.executable, *options,
            "--out-dir", folder, source,
        ],
        environment,
    )  # fmt: skip
    # This file is created by uv.
    (folder / ".gitignore").unlink(missing_ok=True)


def fetch_wheels(wheels: Path, locks: Sequence[Path], python: str, glibc_minor: int) -> None:
    """Download all locked wheels and check their hashes.

    Args:
        wheels: Folder to write to.
        locks: Lock files, created with `make lock`.
        python: Version such as 3.13.
        glibc_minor: Oldest minor version of glibc 2 on the hosts. Wheels for newer versions will be
            skipped.
    """
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(17, glibc_minor + 1)]
    for lock in locks:
        run(
            [
                PIP, "download", "-q", "--disable-pip-version-check",
                "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", wheels,
                "--implementation", "cp", "--python-version", python,
                *(part for tag in ("cp" + python.replace(".", ""), "abi3", "none")
                  for part in ("--abi", tag)),
                *(part for platform in platforms for part in ("--platform", platform)),
                "-r", lock,
            ]
        )  # fmt: skip


def pack(folder: Path, output: Path, top: str = "") -> None:
    """Write a folder to a ``.tar.gz`` file and print its size and its hash.

    Args:
        folder: Folder to pack.
        output: File to write.
        top: Folder to add in front of all names.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(gzip.compress(tar(folder, top), 6, mtime=0))
    size_mb = output.stat().st_size / 1e6
    sys.stdout.write(f"{output}: {size_mb:.1f} MB, SHA-256 {sha256(output)}\n")


def tar(folder: Path, top: str = "") -> bytes:
    """Return a folder as a tar file with sorted members, no owners and a fixed time.

    Args:
        folder: Folder to pack.
        top: Folder to add in front of all names.
    """
    date_s = source_date_s()

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = date_s
        executable = entry.isdir() or entry.mode & 0o100
        entry.mode = 0o755 if executable else 0o644
        return entry

    members = io.BytesIO()
    with tarfile.open(fileobj=members, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            name = str(top / path.relative_to(folder))
            archive.add(path, name, recursive=False, filter=plain)
    return members.getvalue()


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(argv: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    """Run a command. If it fails, exit with the error of the command.

    Args:
        argv: Command line.
        environment: Variables to add to the environment. None adds none.

    Returns:
        Standard output as text.
    """
    return run_bytes(argv, environment).decode(errors="replace")


def run_bytes(argv: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> bytes:
    """Run a command as in :func:`run`.

    Args:
        argv: Command line.
        environment: Variables to add to the environment. None adds none.

    Returns:
        Standard output as bytes.
    """
    done = subprocess.run(
        [str(part) for part in argv],
        capture_output=True,
        check=False,
        umask=0o022,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", **(environment or {})},
    )
    if done.returncode:
        error = (done.stderr or done.stdout).decode(errors="replace").strip()
        sys.exit(f"{Path(str(argv[0])).name} failed: {error[-1500:]}")
    return done.stdout
