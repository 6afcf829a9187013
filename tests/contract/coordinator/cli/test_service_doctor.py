"""Tests that the doctor checks a service as its unit starts it, also with another user."""

import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broadside.coordinator.cli import doctor, installed_services
from broadside.exchange.checks import HostCheck

# As root, the service has another user. Otherwise it has the user of the tests.
USER = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name

# Runs a command as another user, who may use the interpreter although it is in root's home folder.
# The mounts are those of the process.
_AS_USER = """
closed=$1 base=$2 user=$3; shift 3
if [ -n "$closed" ]; then
    mount --bind "$base" /mnt && mount -t tmpfs -o mode=755 none "$closed" && mkdir -p "$base" &&
        mount --bind /mnt "$base" || exit 99
fi
exec setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups "$@"
"""


class _Checks(dict[str, HostCheck]):
    """Checks by name. A missing one is reported together with the checks that there are."""

    def __missing__(self, name: str) -> HostCheck:
        raise AssertionError(f"no check {name!r} among {list(self.values())}")


Checked = Callable[..., _Checks]


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield a folder that every user can enter, in place of / of an installed host."""
    folder = Path(tempfile.mkdtemp(prefix="broadside-doctor-"))
    folder.chmod(0o755)
    (folder / "data").mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder / "data", USER)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def checked(root: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Return a function that runs the checks of a coordinator with the given environment."""
    base = Path(sys.base_prefix)
    closed = next((p for p in reversed(base.parents) if not p.stat().st_mode & stat.S_IXOTH), "")

    def run_as_user(
        argv: list[str], *, user: str | None = None, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        if user is not None:
            del options["group"], options["extra_groups"]
            script = ["sh", "-c", _AS_USER, "sh", str(closed), str(base), user]
            argv = ["unshare", "--mount", *script, *argv]
        return subprocess.run(argv, **options)

    patched = SimpleNamespace(**{**vars(subprocess), "run": run_as_user})
    monkeypatch.setattr(installed_services, "subprocess", patched)
    monkeypatch.setattr(installed_services, "UNITS_PATH", root)
    monkeypatch.setattr(installed_services, "BOOTED_PATH", root / "none")

    def run(user: str = USER, is_active: bool = False, **environment: object) -> _Checks:
        settings = {"BROADSIDE_DATA_DIR": root / "data", "BROADSIDE_PORT": 0, **environment}
        lines = [f'{name}="{value}"' for name, value in settings.items()]
        (root / "environment").write_text("# settings\n" + "\n".join(lines))
        (root / "broadside-coordinator.service").write_text(
            f"[Unit]\nDescription=test\n[Service]\nUser={user}\nWorkingDirectory={root}\n"
            f"EnvironmentFile={root}/environment\nExecStart={sys.prefix}/bin/broadside serve\n"
        )
        state = HostCheck(name="service coordinator", ok=is_active, detail="")
        monkeypatch.setattr(doctor, "check_service", lambda name: state)
        checks = doctor.service_checks("coordinator")
        return _Checks((check.name, check) for check in checks)

    return run


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_command_has_user_environment_and_folder_of_the_unit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed_services, "UNITS_PATH", root)
    monkeypatch.setattr(installed_services, "BOOTED_PATH", root / "none")
    (root / "environment").write_text("A='of file'\n")
    (root / "broadside-agent.service").write_text(
        f"[Service]\nUser={USER}\nWorkingDirectory={root}\nEnvironment=A=first B=2\n"
        f"EnvironmentFile={root}/environment\nEnvironmentFile=-{root}/none\n"
    )
    script = 'echo "$(id -un) $A $B $(pwd) $(umask) $(id -G)"'
    done = installed_services.run_as_service("agent", ["sh", "-c", script], 10)
    assert done is not None
    groups = " ".join(map(str, os.getgrouplist(USER, pwd.getpwnam(USER).pw_gid)))
    assert done.stdout == f"{USER} of file 2 {root} 0077 {groups}\n"


def test_healthy_service(checked: Checked) -> None:
    checks = checked()
    assert f"run as {USER}" in checks["user"].detail
    assert f"{USER} can write to" in checks["BROADSIDE_DATA_DIR"].detail
    failed = {name for name, check in checks.items() if check.required and not check.ok}
    assert failed == {"service coordinator"}


def test_settings_are_those_of_the_unit(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROADSIDE_TELEMETRY_FILE", "/of/the/shell.toml")
    checks = checked()
    assert "BROADSIDE_TELEMETRY_FILE" not in checks
    assert "BROADSIDE_PORT" in (checked(BROADSIDE_PORT="many")["settings"].fix or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that the service cannot use")
def test_fails_for_files_that_the_service_user_cannot_use(root: Path, checked: Checked) -> None:
    secret = root / "telemetry.toml"
    secret.write_text("")
    secret.chmod(0o600)
    shutil.chown(root / "data", "root")
    checks = checked(BROADSIDE_TELEMETRY_FILE=secret)
    for name, text in (
        ("BROADSIDE_TELEMETRY_FILE", f"{USER} cannot read {secret}: Permission denied"),
        ("BROADSIDE_DATA_DIR", f"{USER} cannot write to {root}/data: Permission denied"),
    ):
        assert not checks[name].ok and checks[name].required and checks[name].fix
        assert checks[name].detail == text


def test_fails_for_a_port_in_use_unless_by_the_service(checked: Checked) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = checked(BROADSIDE_PORT=port)["port"]
        assert not taken.ok and "Address already in use" in taken.detail
        running = checked(BROADSIDE_PORT=port, is_active=True)["port"]
        assert running.ok and "by the running service" in running.detail


def test_fails_for_public_address_without_sign_in(checked: Checked) -> None:
    check = checked(BROADSIDE_HOST="0.0.0.0")["sign-in"]  # noqa: S104 - nothing listens there
    assert not check.ok and "BROADSIDE_SIGN_IN=on" in (check.fix or "")


def test_fails_for_a_source_without_values(root: Path, checked: Checked) -> None:
    readings, telemetry = root / "readings.csv", root / "telemetry.toml"
    readings.write_text("time,bytes\n2025-11-25T12:00:00Z,1\n2025-11-25T12:01:00Z,1\n")
    telemetry.write_text(
        f'[[source]]\ntype = "csv"\ndevice = "fw"\nfile = "{readings}"\n'
        'byte_counter = { column = "bytes" }\n'
    )
    check = checked(BROADSIDE_TELEMETRY_FILE=telemetry)["telemetry fw (csv)"]
    assert not check.ok and check.required
    assert "its byte counter has no value in the last 15 minutes" in check.detail


def test_unit_without_its_user_or_environment(root: Path, checked: Checked) -> None:
    assert (
        "user broadside-none does not exist"
        in checked("broadside-none")["unit broadside-coordinator"].detail
    )
    checked()
    (root / "environment").unlink()
    result = doctor.service_checks("coordinator")
    if os.geteuid() == 0:
        assert "does not exist" in result[-1].detail and not result[-1].ok


def test_other_user_reads_what_was_not_checked(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(["x"] * 7))
    check = checked()["checks of coordinator"]
    assert not check.ok and not check.required
    assert f"not checked, because the service runs as {USER}" in check.detail
    assert check.fix == "run `sudo broadside doctor`"
