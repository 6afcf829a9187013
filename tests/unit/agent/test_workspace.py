"""Tests for engine workspaces and their cleanup."""

import zlib
from pathlib import Path

import pytest

from broadside.agent.workspace import Workspace, sweep
from broadside.exchange.engines.port import File


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_workspace_of_a_live_process_survives_a_sweep() -> None:
    mine = Workspace("twin")
    mine.fill([File(name="files/1000", size_bytes=1000)])
    sweep("twin")
    assert (mine.path / "files/1000").stat().st_size == 1000
    before = set(Path("/proc/self/fd").iterdir())
    mine.close()
    assert not mine.path.exists()
    assert set(Path("/proc/self/fd").iterdir()) < before
    mine.close()


def test_random_files_do_not_compress() -> None:
    mine = Workspace("twin")
    mine.fill(
        [
            File(name="files/5000", size_bytes=5000, is_random=True),
            File(name="files/6000", size_bytes=6000),
        ]
    )
    random, zeros = ((mine.path / "files" / name).read_bytes() for name in ("5000", "6000"))
    mine.close()
    assert (len(random), zeros) == (5000, bytes(6000))
    assert len(zlib.compress(random)) >= 5000
