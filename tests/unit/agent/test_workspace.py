"""Tests for engine workspaces and their cleanup."""

import zlib
from pathlib import Path

import pytest

from broadside.agent.workspace import Workspace, sweep
from broadside.exchange.engines.port import EngineFile


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_workspace_of_a_live_process_survives_a_sweep() -> None:
    mine = Workspace("twin")
    mine.fill([EngineFile(name="files/1000", size_bytes=1000)])
    sweep("twin")
    assert (mine.path / "files/1000").stat().st_size == 1000
    before = set(Path("/proc/self/fd").iterdir())
    mine.close()
    assert not mine.path.exists()
    assert set(Path("/proc/self/fd").iterdir()) < before
    mine.close()


@pytest.mark.parametrize("zeros_percent", [0, 25, 100])
def test_files_compress_by_their_share_of_zeros(zeros_percent: int) -> None:
    mine = Workspace("twin")
    mine.fill([EngineFile(name="body", size_bytes=3_000_500, zeros_percent=zeros_percent)])
    body = (mine.path / "body").read_bytes()
    mine.close()
    assert len(body) == 3_000_500
    share = len(zlib.compress(body)) / len(body)
    assert share == pytest.approx(1 - zeros_percent / 100, abs=0.02)


def test_sparse_files_and_closed_folders_are_deleted() -> None:
    mine = Workspace("twin")
    mine.fill(
        [
            EngineFile(name="files/9000", size_bytes=9000, zeros_percent=25, is_sparse=True),
            EngineFile(name="files/upload", link_to="/dev/null"),
            EngineFile(name="files", is_closed_folder=True),
        ]
    )
    known = (mine.path / "files/9000").stat()
    assert (known.st_size, known.st_blocks, known.st_mtime) == (9000, 0, 25)
    assert (mine.path / "files").stat().st_mode & 0o777 == 0o500
    mine.close()
    assert not mine.path.exists()
