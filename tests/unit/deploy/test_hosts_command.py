"""deploy/hosts/broadside: Broadside's command with the settings of the host."""

import subprocess
from pathlib import Path

import pytest

from tests.deploy_check.tools import ROOT

SETTINGS = """# a comment
BROADSIDE_DATA_DIR=/var/lib/broadside
BROADSIDE_API="two words"
BROADSIDE_NAME='$(touch made)'
BROADSIDE_x;touch made=1
PATH=/nowhere
BROADSIDE_LAST=no newline behind it"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The script, with settings of the test, which prints the environment of what it starts."""
    (settings := tmp_path / "environment").write_text(SETTINGS)
    text = (ROOT / "deploy" / "hosts" / "broadside").read_text()
    assert text.count("/etc/broadside/environment") == 2
    text = text.replace("/etc/broadside/environment", str(settings))
    text, count = text.replace("/opt/broadside/venv/bin/broadside", "env"), text.count("/opt/")
    assert count == 1
    (script := tmp_path / "broadside").write_text(text)
    return ["sh", str(script)]


def started_with(command: list[str], folder: Path, **environment: str) -> dict[str, str]:
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_the_hosts_settings_are_read_as_systemd_reads_them(
    command: list[str], tmp_path: Path
) -> None:
    reported = started_with(command, tmp_path)
    assert reported["BROADSIDE_DATA_DIR"] == "/var/lib/broadside"
    assert reported["BROADSIDE_API"] == "two words"
    assert reported["BROADSIDE_NAME"] == "$(touch made)"
    assert reported["BROADSIDE_LAST"] == "no newline behind it"
    assert reported["PATH"] == "/usr/bin:/bin"
    assert not (tmp_path / "made").exists()


def test_the_callers_environment_wins_even_where_it_is_empty(
    command: list[str], tmp_path: Path
) -> None:
    fields = {"BROADSIDE_DATA_DIR": "/srv/other", "BROADSIDE_API": ""}
    reported = started_with(command, tmp_path, **fields)
    assert {name: reported[name] for name in fields} == fields
    assert reported["BROADSIDE_LAST"] == "no newline behind it"


def test_the_installer_keeps_secrets_to_root_from_the_first_byte(tmp_path: Path) -> None:
    """Whatever the caller's umask: with no right taken away afterwards, none was there."""
    text = (ROOT / "deploy" / "hosts" / "install.sh").read_text()
    part = text.partition("install -d -m 0755 /etc/broadside\n")[2].partition("\nfor word in")[0]
    settings = tmp_path / "environment"
    (tmp_path / "environment.new").touch(0o666)  # of an installer that was killed
    script = f"settings={settings}; service=agent; chmod() {{ :; }}\n{part}\n"
    script += "set_to A=1; set_to B=2; set_to A=3\n"
    (umask,) = [line for line in text.splitlines() if line.startswith("umask")]
    subprocess.run(["sh", "-euc", f"umask 0; {umask}\n{script}"], check=True)
    assert settings.read_text() == "B=2\nA=3\n"
    assert settings.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["environment"]
