"""Tests for the reported version number and commit."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from broadside.exchange.version import commit, read_commit, version_number, version_text

ROOT = Path(__file__).parents[3]


def test_version_number_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version_number() == project["version"]
    assert version_text() == f"{version_number()} ({commit() or 'unknown commit'})"


def test_image_tag_is_the_version() -> None:
    text = (ROOT / "deploy" / "hosts" / "kubernetes" / "kustomization.yaml").read_text()
    assert re.findall(r'newTag: "(.+)"', text) == [version_number()]


@pytest.mark.parametrize(("written", "read"), [("3d009671\n", "3d009671"), ("\n", None)])
def test_built_package_reads_its_commit_file(
    tmp_path: Path, written: str, read: str | None
) -> None:
    file = tmp_path / "commit.txt"
    file.write_text(written)
    assert read_commit(tmp_path, file) == read


def test_unknown_commit_is_none(tmp_path: Path) -> None:
    assert read_commit(tmp_path, tmp_path / "commit.txt") is None


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
