"""Tests for build tools that need processes, sockets or real time."""

import hashlib
from pathlib import Path

import pytest

from deploy import debian_packages
from deploy.debian_packages import DebianPackage

CONTENT = b"a package"


PACKAGE = DebianPackage(
    name="iperf3",
    version="1:3.18-2+b1",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    path="pool/main/i/iperf3/iperf3_3.18-2+b1_amd64.deb",
)


def mirror(place: Path, content: bytes | None) -> str:
    path = place / "mirror" / PACKAGE.path
    path.parent.mkdir(parents=True)
    if content is not None:
        path.write_bytes(content)
    return f"file://{place}/mirror"


def test_fetches_locked_package(tmp_path: Path) -> None:
    debian_packages.fetch([PACKAGE], tmp_path / "debs", mirror(tmp_path, CONTENT))
    assert (tmp_path / "debs" / PACKAGE.file_name).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [None, b"another package"])
def test_error_for_outdated_lock_names_mirror_and_fix(
    tmp_path: Path, content: bytes | None
) -> None:
    """The package can be missing, or it can have other content."""
    archive = mirror(tmp_path, content)
    with pytest.raises(SystemExit) as stopped:
        debian_packages.fetch([PACKAGE], tmp_path / "debs", archive)
    text = str(stopped.value)
    assert archive in text
    assert "deploy/debian.lock" in text
    assert "make lock" in text
    assert PACKAGE.name in text
