"""Tests for hosts command that need processes, sockets or real time."""

import subprocess
from pathlib import Path

import pytest

from tests.deploy_check.tools import ROOT

SETTINGS = """# a comment
BROADSIDE_DATA_DIR=/var/lib/broadside
BROADSIDE_API="two parts"
BROADSIDE_NAME='$(touch created)'
BROADSIDE_x;touch created=1
PATH=/nowhere
BROADSIDE_LAST=no newline at the end"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Return a copy of the script to print the environment instead of calling the command."""
    (settings := tmp_path / "environment").write_text(SETTINGS)
    text = (ROOT / "deploy" / "hosts" / "broadside").read_text()
    assert text.count("/etc/broadside/environment") == 2
    text = text.replace("/etc/broadside/environment", str(settings))
    text, count = text.replace("/opt/broadside/venv/bin/broadside", "env"), text.count("/opt/")
    assert count == 1
    (script := tmp_path / "broadside").write_text(text)
    return ["sh", str(script)]


def run_script(command: list[str], folder: Path, **environment: str) -> dict[str, str]:
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_settings_are_parsed_like_systemd(command: list[str], tmp_path: Path) -> None:
    environment = run_script(command, tmp_path)
    assert environment["BROADSIDE_DATA_DIR"] == "/var/lib/broadside"
    assert environment["BROADSIDE_API"] == "two parts"
    assert environment["BROADSIDE_NAME"] == "$(touch created)"
    assert environment["BROADSIDE_LAST"] == "no newline at the end"
    assert environment["PATH"] == "/usr/bin:/bin"
    assert not (tmp_path / "created").exists()


def test_environment_of_caller_overrides_settings(command: list[str], tmp_path: Path) -> None:
    fields = {"BROADSIDE_DATA_DIR": "/srv/other", "BROADSIDE_API": ""}
    environment = run_script(command, tmp_path, **fields)
    assert {name: environment[name] for name in fields} == fields
    assert environment["BROADSIDE_LAST"] == "no newline at the end"


def test_installer_creates_settings_with_private_mode(tmp_path: Path) -> None:
    """The file must be private when it is created, even with a umask of 0."""
    text = (ROOT / "deploy" / "hosts" / "install.sh").read_text()
    part = text.partition("install -d -m 0755 /etc/broadside\n")[2].partition("\nfor word in")[0]
    settings = tmp_path / "environment"
    # This file is left if the installer was killed.
    (tmp_path / "environment.new").touch(0o666)
    script = f"settings={settings}; service=agent; chmod() {{ :; }}\n{part}\n"
    script += "set_to A=1; set_to B=2; set_to A=3\n"
    (umask,) = [line for line in text.splitlines() if line.startswith("umask")]
    subprocess.run(["sh", "-euc", f"umask 0; {umask}\n{script}"], check=True)
    assert settings.read_text() == "B=2\nA=3\n"
    assert settings.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["environment"]
