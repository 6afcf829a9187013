"""Build of the container image for a release as an OCI archive, using buildah.

The same commit and base image will give the same bytes. All times are set to the time of the
commit, modules are compiled without times, and the Dockerfile does not leave any logs. The Debian
packages are from the mirror, so this is only the case until the mirror is updated.
"""

import gzip
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from email import message_from_bytes
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final

from deploy.build_tools import (
    ROOT,
    commit,
    copy_sources,
    normalise_modes,
    run,
    sha256,
    source_date_s,
    tar,
    version_number,
)
from deploy.components import Carried, ComponentSource, licence_names, licence_of

BUILDAH: Final = "buildah"
STAGE: Final = "broadside"
_STATUS: Final = "var/lib/dpkg/status"


def build(output: Path, base: str | None = None) -> Sequence[Carried]:
    """Build the image.

    Args:
        output: OCI archive to write.
        base: Image to build on, or None to use the one in the Dockerfile.

    Returns:
        The components in the image.
    """
    name = f"localhost/broadside:{version_number()}-release-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="broadside-image-") as folder:
        context, layout = Path(folder) / "context", Path(folder) / "layout"
        copy_context(context)
        arguments = {
            "BROADSIDE_COMMIT": commit() or "",
            "BROADSIDE_VERSION": version_number(),
            "SOURCE_DATE_EPOCH": str(source_date_s()),
            **({"BASE_IMAGE": base} if base else {}),
            **{key: value for key, value in os.environ.items() if key == "PIP_INDEX_URL"},
        }
        try:
            run(
                [
                    BUILDAH, "build", "--quiet", "--isolation=chroot", "--layers=false",
                    f"--timestamp={source_date_s()}", f"--target={STAGE}", f"--tag={name}",
                    *(f"--build-arg={key}={value}" for key, value in arguments.items()),
                    f"--file={context / 'deploy/docker/Dockerfile'}", context,
                ]
            )  # fmt: skip
            run([BUILDAH, "push", "--quiet", name, f"oci:{layout}:broadside:{version_number()}"])
        finally:
            _remove(name)
        output.write_bytes(tar(layout))
        size_mb = output.stat().st_size / 1e6
        sys.stdout.write(f"{output}: {size_mb:.1f} MB, SHA-256 {sha256(output)}\n")
        return read_layout(layout)


def _remove(name: str) -> None:
    """Delete the image from the storage of buildah. The layers of the base will be kept."""
    if name.partition("/")[2] in run([BUILDAH, "images", "--format", "{{.Name}}:{{.Tag}}"]):
        run([BUILDAH, "rmi", "--force", name])


def copy_context(context: Path) -> None:
    """Copy the files for the Dockerfile, with modes that do not depend on the umask."""
    copy_sources(context)
    shutil.copyfile(ROOT / ".dockerignore", context / ".dockerignore")
    shutil.copytree(ROOT / "deploy" / "docker", context / "deploy" / "docker")
    normalise_modes(context)


def read_layout(layout: Path) -> Sequence[Carried]:
    """Return the Debian and Python packages of an image in an OCI layout."""
    files: dict[str, bytes] = {}
    for layer in _layers(layout):
        with tarfile.open(fileobj=io.BytesIO(layer)) as members:
            for member in members:
                name = member.name.removeprefix("./")
                if _is_read(name) and member.isfile() and (file := members.extractfile(member)):
                    files[name] = file.read()
    return [*_debian(files), *_python(files)]


def _is_read(name: str) -> bool:
    return (
        name == _STATUS
        or (name.startswith("usr/share/doc/") and name.endswith("/copyright"))
        or name.endswith(".dist-info/METADATA")
    )


def _layers(layout: Path) -> Iterator[bytes]:
    def blob(described: Mapping[str, Any]) -> bytes:
        return (layout / "blobs" / str(described["digest"]).replace(":", "/")).read_bytes()

    (described,) = json.loads((layout / "index.json").read_text("utf-8"))["manifests"]
    for layer in json.loads(blob(described))["layers"]:
        content = blob(layer)
        yield gzip.decompress(content) if layer["mediaType"].endswith("gzip") else content


def _debian(files: Mapping[str, bytes]) -> Iterator[Carried]:
    for paragraph in files[_STATUS].decode("utf-8").split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if not str(fields["Status"]).endswith(" installed"):
            continue
        name = str(fields["Package"])
        text = files.get(f"usr/share/doc/{name}/copyright", b"").decode("utf-8", "replace")
        yield Carried(
            kind=ComponentSource.DEBIAN,
            name=name,
            version=str(fields["Version"]),
            licence=licence_names(text) or f"see /usr/share/doc/{name}/copyright",
            texts=[text] if text else [],
        )


def _python(files: Mapping[str, bytes]) -> Iterator[Carried]:
    for name in sorted(files):
        if name.endswith(".dist-info/METADATA"):
            fields = message_from_bytes(files[name])
            package = str(fields["Name"]).lower().replace("_", "-")
            if package != "broadside":
                yield Carried(
                    kind=ComponentSource.PYTHON,
                    name=package,
                    version=str(fields["Version"]),
                    licence=licence_of(fields) or "see its text",
                    texts=[],
                )
