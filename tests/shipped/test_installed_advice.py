"""Test that an installation without a checkout does not name a command that needs one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "coordinator", "dashboards", "exchange", "lab")

pytestmark = pytest.mark.live


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Copy the packages as a wheel installs them, without the start gate."""
    site = tmp_path / "site"
    (site / "broadside").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "broadside" / "__init__.py", site / "broadside")
    for name in PACKAGES:
        leave = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, site / "broadside" / name, ignore=leave)
    return site


def test_doctor_of_installed_copy_advises_existing_commands(site: Path, tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if "BROADSIDE" not in name},
        "PYTHONPATH": str(site),
        "BROADSIDE_DATA_DIR": str(tmp_path / "data"),
        "BROADSIDE_AGENT_IPERF3": str(tmp_path / "none"),
    }
    place = "import broadside.exchange as found; print(found.__file__)"
    done = [
        subprocess.run(
            [sys.executable, "-P", *parts],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        for parts in (("-c", place), ("-m", "broadside.coordinator", "doctor", "-o", "json"))
    ]
    assert done[0].stdout.startswith(str(site)), done[0].stderr
    checks = {check["name"]: check for check in json.loads(done[1].stdout)}
    assert not checks["iperf3"]["ok"]
    assert not checks["start gate"]["ok"]
    fixes = {name: check["fix"] for name, check in checks.items() if not check["ok"]}
    assert "apt-get install iperf3" in fixes["iperf3"]
    assert "install broadside again" in fixes["start gate"]
    assert re.search(r"\bmake\b|\.venv", json.dumps(checks)) is None, fixes
