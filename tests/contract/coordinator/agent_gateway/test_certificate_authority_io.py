"""Tests for certificate authority that need processes, sockets or real time."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_commands_fail_until_new_authority_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("BROADSIDE_HOSTS_LISTEN", "127.0.0.1:0")

    def broadside(*parts: str) -> tuple[int, str]:
        command = [sys.executable, "-P", "-m", "broadside.coordinator", *parts]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    assert broadside("enroll", "new", "--role", "client")[0] == 0
    shutil.rmtree(tmp_path / "data" / "tls")
    for parts in (["enroll", "new", "--role", "client"], ["serve", "--port", "0"]):
        code, error = broadside(*parts)
        assert code == 4, error
        assert "enroll new-authority" in error
        assert "Traceback" not in error
    assert broadside("enroll", "new-authority")[0] == 0
    assert broadside("enroll", "new-authority")[0] == 3
    assert broadside("enroll", "new", "--role", "client")[0] == 0
