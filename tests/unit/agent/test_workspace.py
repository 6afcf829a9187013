"""Tests for engine workspaces and their cleanup."""

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
