"""Tests for version that need processes, sockets or real time."""

import subprocess
from pathlib import Path

import pytest

from broadside.exchange.version import read_commit


def test_checkout_reads_git_and_marks_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        configured = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        ran = subprocess.run(
            ["git", *configured, *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        return ran.stdout.strip()

    written = tmp_path / "commit.txt"
    written.write_text("0badc0de\n")
    git("init", "-q")
    # No commit exists yet.
    assert read_commit(tmp_path, written) is None
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "--no-verify", "-m", "one")
    git("tag", "v9")
    head = git("rev-parse", "--short=8", "HEAD")
    assert read_commit(tmp_path, written) == head
    (tmp_path / "file").write_text("two")
    assert read_commit(tmp_path, written) == f"{head}-dirty"


def test_commit_is_none_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit(tmp_path, tmp_path / "commit.txt") is None
