"""Build all files of a release, using ``python -m deploy.release`` (`make release`).

Into ``dist/release-VERSION/``: wheel, source distribution, archive for hosts, Azure bundle,
container image, a bill of materials beside each, and SHA256SUMS. If you build the same commit on
the same release of Debian, you will get the same bytes, in any folder and at any time.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy import image
from deploy.azure import wheelhouse
from deploy.build_tools import ROOT, build_sdist, build_wheel, commit, sha256, version_number
from deploy.hosts import archive
from deploy.sbom import carried_components, required_components, write_sbom

SUMS: Final = "SHA256SUMS"
PARTS: Final = ("wheel", "sdist", "hosts", "azure", "image")


def main() -> int:
    """Build the release and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, help="default: dist/release-VERSION; emptied before the build"
    )
    parser.add_argument("--archive", help="a Debian archive's URI; default: this machine's own")
    parser.add_argument(
        "--base-image", help="build the image on this one; default: the one that is pinned"
    )
    parser.add_argument("--python", action="append", help="of hosts; default: all that are known")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="build only this; may be repeated"
    )
    options = parser.parse_args()
    output = options.output or ROOT / "dist" / f"release-{version_number()}"
    build(
        output,
        options.only or PARTS,
        pythons=options.python or archive.PYTHONS,
        debian=options.archive,
        base=options.base_image,
    )
    return 0


def build(
    output: Path,
    parts: Sequence[str] = PARTS,
    *,
    pythons: Sequence[str] = archive.PYTHONS,
    debian: str | None = None,
    base: str | None = None,
) -> None:
    """Build a release.

    Args:
        output: Folder to write to, which is deleted first.
        parts: Parts to build, out of :data:`PARTS`.
        pythons: Python versions for the archive for hosts.
        debian: URI of a Debian archive, or None to use the archive of this machine's apt.
        base: Image to build on, or None to use the one in the Dockerfile.
    """
    version = version_number()
    known = commit() or "unknown commit"
    if known.endswith("-dirty"):
        _print(f"files differ from the commit; every version in this release ends with {known}")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="broadside-release-") as folder:
        work = Path(folder)
        wheel = build_wheel(work / "wheels", work)
        if "wheel" in parts:
            stored = Path(shutil.copy(wheel, output))
            write_sbom(stored, required_components(wheel))
        if "sdist" in parts:
            write_sbom(build_sdist(output, work), required_components(wheel))
        if "hosts" in parts:
            path = output / f"broadside-hosts-{version}.tar.gz"
            carried = archive.build(path, pythons, wheel=wheel, archive=debian)
            write_sbom(path, carried_components(carried))
        if "azure" in parts:
            path = output / f"broadside-bundle-{version}.tar.gz"
            carried = wheelhouse.build(path, wheel=wheel, archive=debian)
            write_sbom(path, carried_components(carried))
        if "image" in parts and shutil.which(image.BUILDAH) is None:
            _print("the image is left out: no buildah here; run: apt-get install buildah")
        elif "image" in parts:
            path = output / f"broadside-image-{version}.oci.tar"
            write_sbom(path, carried_components(image.build(path, base)))
    files = sorted(path for path in output.iterdir())
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in files)
    (output / SUMS).write_text(sums, "ascii")
    _print(f"{output}: Broadside {version} ({known}), {len(files)} files and {SUMS}")


def _print(line: str) -> None:
    sys.stdout.write(f"release: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
