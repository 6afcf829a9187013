"""Unit tests for the list of packages in an image."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from deploy.components import ComponentSource
from deploy.image import read_layout

STATUS = """Package: libc6
Status: install ok installed
Version: 2.36-9
Description: one
 more

Package: removed
Status: deinstall ok config-files
Version: 1

Package: zlib1g
Status: install ok installed
Version: 1:1.2
"""


def layer(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def write_layout(folder: Path, *layers: tuple[str, bytes]) -> Path:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def store(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}"}

    stored = [{"mediaType": kind, **store(content)} for kind, content in layers]
    manifest = store(json.dumps({"layers": stored}).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [manifest]}))
    return folder


def test_installed_packages_of_all_layers_are_listed(tmp_path: Path) -> None:
    site = "usr/lib/python3/site-packages"
    layout = write_layout(
        tmp_path,
        ("tar+gzip", gzip.compress(layer({
            "./var/lib/dpkg/status": "Package: old\nStatus: install ok installed\nVersion: 0\n",
            "./usr/share/doc/libc6/copyright": "License: LGPL-2.1\n",
        }))),
        ("tar", layer({
            # A later layer replaces a file of an earlier one.
            "var/lib/dpkg/status": STATUS,
            f"{site}/Some_Lib-2.dist-info/METADATA": "Name: Some_Lib\nVersion: 2\nLicense: MIT\n",
            f"{site}/bare-1.dist-info/METADATA": "Name: bare\nVersion: 1\n",
            f"{site}/broadside-9.dist-info/METADATA": "Name: broadside\nVersion: 9\n",
            f"{site}/other/METADATA": "Name: no-package\nVersion: 1\n",
        })),
    )  # fmt: skip
    listed = [(one.kind, one.title, one.licence, len(one.texts)) for one in read_layout(layout)]
    assert listed == [
        (ComponentSource.DEBIAN, "libc6 2.36-9", "LGPL-2.1", 1),
        (ComponentSource.DEBIAN, "zlib1g 1:1.2", "see /usr/share/doc/zlib1g/copyright", 0),
        (ComponentSource.PYTHON, "some-lib 2", "MIT", 0),
        (ComponentSource.PYTHON, "bare 1", "see its text", 0),
    ]
