"""Tests for workspace that need processes, sockets or real time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broadside.agent.workspace import sweep

DIES = """
from broadside.agent.workspace import Workspace
import os
print(Workspace("twin").path, flush=True)
os._exit(9)
"""


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_sweep_removes_only_folders_of_dead_agents(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    died = subprocess.run(
        [sys.executable, "-c", DIES], env=environment, capture_output=True, text=True, check=False
    )
    left = Path(died.stdout.strip())
    assert left.parent == tmp_path
    others = [tmp_path / "broadside-twins@1", tmp_path / "elsewhere"]
    for folder in others:
        folder.mkdir()
    (tmp_path / "broadside-twin@file").touch()
    (tmp_path / "broadside-twin@link").symlink_to(others[1])
    assert left.is_dir()
    sweep("twin")
    assert not left.exists()
    assert all(folder.is_dir() for folder in others)
    assert (tmp_path / "broadside-twin@file").exists()
    assert (tmp_path / "broadside-twin@link").is_symlink()
