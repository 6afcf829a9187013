"""Test the check of commit subjects in clones, archives and checkouts without a branch."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "commit_subjects.sh"
LONG = "docs: " + "a" * 67


def git(folder: Path, *args: str) -> None:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.net")
    subprocess.run(["git", "-C", folder, *identity, *args], check=True, capture_output=True)


def commit(folder: Path, subject: str) -> None:
    git(folder, "commit", "-q", "--allow-empty", "-m", subject)


def check(folder: Path) -> str:
    """Return the errors, and none if the check passes."""
    completed = subprocess.run(
        ["sh", folder / ".ci" / SCRIPT.name], capture_output=True, text=True, check=False
    )
    assert (completed.returncode != 0) == bool(completed.stderr)
    return completed.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Checkout with the script, and with a long subject before it."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / ".ci")
    git(folder, "init", "-q", "-b", "main")
    commit(folder, LONG)
    git(folder, "add", ".")
    commit(folder, f"{LONG} and the script")
    return folder


def test_accepts_an_area_and_an_imperative_of_72_characters(checkout: Path) -> None:
    commit(checkout, "docs, web: " + "ä" * 61)
    git(checkout, "checkout", "-q", "--detach")
    assert check(checkout) == ""


@pytest.mark.parametrize("subject", [LONG, "Fix it", "docs:fix", "docs: " + "ä" * 67])
def test_rejects_other_subjects(checkout: Path, subject: str) -> None:
    commit(checkout, subject)
    assert subject in check(checkout)


def test_merges_and_branches_from_before_the_check_are_skipped(checkout: Path) -> None:
    git(checkout, "checkout", "-q", "-b", "older", "main~1")
    commit(checkout, f"{LONG} on a branch")
    git(checkout, "checkout", "-q", "main")
    git(checkout, "merge", "-q", "--no-ff", "-m", "Merge branch 'older'", "older")
    assert check(checkout) == ""
    commit(checkout, LONG)
    assert LONG in check(checkout)


def test_checkout_without_history_passes(checkout: Path, tmp_path: Path) -> None:
    commit(checkout, LONG)
    git(tmp_path, "clone", "-q", "--depth", "1", checkout.as_uri(), "shallow")
    assert check(tmp_path / "shallow") == ""
    shutil.rmtree(checkout / ".git")
    assert check(checkout) == ""
    # The archive is in the folder of another repository.
    git(tmp_path, "init", "-q")
    assert check(checkout) == ""
