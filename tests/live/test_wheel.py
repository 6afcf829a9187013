"""A built wheel holds the page, and so does the image that is made of the same folders."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WEB = ROOT / "dashboards" / "web"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
ASK = """
from broadside.coordinator.api import page_files as web
print(web.FOLDER, sorted(web.site().pages))
"""

pytestmark = pytest.mark.live


def copied_into_the_image() -> list[str]:
    """The folders of Broadside that the Dockerfile installs."""
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text("utf-8")
    return re.findall(r"^COPY (\w+) \1$", text, re.M)


def test_the_wheel_of_the_images_folders_serves_the_page(tmp_path: Path) -> None:
    folders = copied_into_the_image()
    assert {"coordinator", "exchange", "dashboards"} <= set(folders)
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "!dashboards/web" in ignored
    source, wheels, there = tmp_path / "source", tmp_path / "wheels", tmp_path / "there"
    source.mkdir()
    wheels.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in folders:
        leave = shutil.ignore_patterns("__pycache__", "*.so", "grafana", "prometheus", "workbook")
        shutil.copytree(ROOT / name, source / name, ignore=leave)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(wheels)], cwd=source, check=True, capture_output=True
    )
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
        opened.extractall(there)
    files = {f"dashboards/web/{path.name}" for path in WEB.iterdir()}
    assert len(files) > 15
    assert files <= held
    environment = {**os.environ, "PYTHONPATH": str(there)}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", ASK],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == f"{there / 'dashboards' / 'web'} ['index.html', 'report.html']"
