"""Tests for reproducible archives and for the lock file of Debian packages."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from deploy.build_tools import pack
from deploy.components import read_wheels
from deploy.debian_packages import LICENCE_TEXTS, PACKAGES, read_lock
from deploy.hosts.archive import ENGINE


def tree(place: Path, mode: int, at_s: int) -> Path:
    for name in ("b/second", "a", "b/first"):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(mode)
        os.utime(path, (at_s, at_s))
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o700)
    (place / "link").symlink_to("a")
    return place


def test_archive_depends_only_on_names_and_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first, second = tmp_path / "first.tar.gz", tmp_path / "two" / "second.tar.gz"
    pack(tree(tmp_path / "x", 0o644, 1), first, "top")
    pack(tree(tmp_path / "y", 0o600, 2_000_000_000), second, "top")
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(first.read_bytes())) as opened:
        entries = opened.getmembers()
    assert [entry.name for entry in entries] == [
        "top/a", "top/b", "top/b/first", "top/b/second", "top/link", "top/run.sh",
    ]  # fmt: skip
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname) for entry in entries} == {
        (1_700_000_000, 0, 0, "root")
    }
    assert {entry.name: entry.mode for entry in entries}["top/run.sh"] == 0o755


def test_lock_pins_the_packages_of_archives() -> None:
    locked = {item.name: item for item in read_lock()}
    assert {*PACKAGES, *ENGINE, LICENCE_TEXTS} <= locked.keys()
    for item in locked.values():
        assert len(item.sha256) == 64
        assert item.path.startswith("pool/main/"), item


def test_no_components_without_wheels(tmp_path: Path) -> None:
    assert read_wheels(tmp_path.glob("*.whl")) == []
