"""Test a command as nobody if only the owner can enter the checkout."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.live import as_nobody

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

OTHER_USER = 1234


@pytest.mark.parametrize("owner", [0, OTHER_USER])
@pytest.mark.parametrize("mask", [0o022, 0o077])
@pytest.mark.parametrize("name", ["checkout", "a check out"])
def test_unprivileged_user_reads_checkout_in_closed_folder(
    tmp_path: Path, name: str, mask: int, owner: int
) -> None:
    home = tmp_path / "home"
    checkout = home / name
    script = checkout / "tests" / "live" / "as_nobody.py"
    script.parent.mkdir(parents=True)
    shutil.copy(as_nobody.__file__, script)
    (checkout / "read.me").write_text("for all")
    (home / "private").write_text("not for all")
    home.chmod(0o700)
    for path in (checkout, *checkout.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
        os.chown(path, owner, owner)
    before = {path: path.stat() for path in (home, *home.rglob("*"))}
    show = "id -u; pwd; cat read.me; ls .."
    parts = [str(script) if part == as_nobody.__file__ else part for part in as_nobody.as_nobody()]
    done = subprocess.run([*parts, "sh", "-ec", show], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{as_nobody.NOBODY}\n{checkout}\nfor all{name}\n"
    assert {path: path.stat().st_mode for path in before} == {
        path: result.st_mode for path, result in before.items()
    }
