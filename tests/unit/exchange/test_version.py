"""The version that is said everywhere: its number and its commit."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from broadside.exchange.version import commit, read_commit, version_number, version_text

ROOT = Path(__file__).parents[3]


def test_the_number_is_the_one_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version_number() == project["version"]
    assert version_text() == f"{version_number()} ({commit() or 'unknown commit'})"


def test_an_image_is_named_after_the_version() -> None:
    text = (ROOT / "deploy" / "hosts" / "kubernetes" / "kustomization.yaml").read_text()
    assert re.findall(r'newTag: "(.+)"', text) == [version_number()]


@pytest.mark.parametrize(("written", "read"), [("3d009671\n", "3d009671"), ("\n", None)])
def test_a_built_package_reads_what_was_written(
    tmp_path: Path, written: str, read: str | None
) -> None:
    file = tmp_path / "commit.txt"
    file.write_text(written)
    assert read_commit(tmp_path, file) == read


def test_neither_known_is_none(tmp_path: Path) -> None:
    assert read_commit(tmp_path, tmp_path / "commit.txt") is None


def test_a_checkout_asks_git_and_says_that_it_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        configured = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        ran = subprocess.run(
            ["git", *configured, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return ran.stdout.strip()

    written = tmp_path / "commit.txt"
    written.write_text("0badc0de\n")
    git("init", "-q")
    assert read_commit(tmp_path, written) is None  # no commit yet
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "--no-verify", "-m", "one")
    git("tag", "v9")
    head = git("rev-parse", "--short=8", "HEAD")
    assert read_commit(tmp_path, written) == head
    (tmp_path / "file").write_text("two")
    assert read_commit(tmp_path, written) == f"{head}-dirty"


def test_a_machine_without_git_knows_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit(tmp_path, tmp_path / "commit.txt") is None
