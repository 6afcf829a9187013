"""Services of this installation that systemd runs, for ``broadside doctor``.

A service has its own user and a sandbox, so its checks can differ from a check that root runs. The
agent checks therefore run in the agent's sandbox.
"""

import os
import pwd
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from broadside.exchange.checks import HostCheck
from broadside.exchange.programs import program_environment

ServiceName = Literal["agent", "coordinator"]
SERVICES: Final[Sequence[ServiceName]] = ("agent", "coordinator")
UNITS_PATH: Final = Path("/etc/systemd/system")
# This folder exists if systemd is the init process.
BOOTED_PATH: Final = Path("/run/systemd/system")
RUNTIME_UNITS_PATH: Final = Path("/run/systemd/system")
SYSTEMCTL_TIMEOUT_S: Final = 10.0
# [Service] settings that do not belong to the sandbox. They are used to start and stop the service,
# or name folders that the running service has created.
_NOT_SANDBOX: Final = re.compile(
    r"(Type|Exec\w+|Restart\w*|KillMode|Timeout\w+|OOMScoreAdjust|StateDirectory\w*)="
)


def installed_services(units_path: Path = UNITS_PATH) -> list[ServiceName]:
    """Return the services whose units start this installation. A checkout has none."""
    return [name for name in SERVICES if f"={sys.prefix}/" in _unit_text(name, units_path)]


def check_service(name: ServiceName) -> HostCheck:
    """Check if a service is active."""
    unit = f"broadside-{name}.service"
    command = ["systemctl", "show", unit, "--property=ActiveState,NRestarts,Result"]
    try:
        done = subprocess.run(
            command,
            env=program_environment(),
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return HostCheck(name=f"service {name}", ok=False, detail=f"systemctl: {error}")
    shown = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    state, result = shown.get("ActiveState", "unknown"), shown.get("Result", "success")
    restarts = shown.get("NRestarts", "0")
    again = "" if restarts == "0" else f", restarted {restarts} times"
    ended = "" if result == "success" else f", last result: {result}"
    return HostCheck(
        name=f"service {name}",
        ok=state == "active",
        detail=f"{unit} is {state}{again}{ended}",
        fix=None if state == "active" else f"see `journalctl -u {unit} -n 20`",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUnit:
    """Settings of a unit that decide whether its program can start.

    Attributes:
        user: User of the service. None for root.
        group: Group of the service. None for the user's group.
        environment: Variables of Environment= and of all readable files of EnvironmentFile=.
        unreadable: Required files of EnvironmentFile= that this process cannot read.
        folder: Working directory, or None.
    """

    user: str | None
    group: str | None
    environment: Mapping[str, str]
    unreadable: tuple[str, ...]
    folder: Path | None


def read_unit(name: ServiceName, units_path: Path | None = None) -> ServiceUnit:
    """Read the unit of a service.

    Args:
        name: The service.
        units_path: Folder with the units. None for that of systemd.

    Returns:
        User, group and environment. Empty if the unit has none of them.
    """
    values: dict[str, list[str]] = {}
    for line in _service_lines(_unit_text(name, units_path or UNITS_PATH)):
        field, _, value = line.partition("=")
        values.setdefault(field, []).append(value.strip())
    environment: dict[str, str] = {}
    for value in values.get("Environment", []):
        environment |= _assignments(shlex.split(value))
    unreadable = []
    for value in values.get("EnvironmentFile", []):
        try:
            lines = Path(value.lstrip("-")).read_text(encoding="utf-8").splitlines()
        except OSError:
            if not value.startswith("-"):
                unreadable.append(value)
            continue
        environment |= _assignments(lines)
    folder = next(iter(values.get("WorkingDirectory", [])), None)
    return ServiceUnit(
        user=next(iter(values.get("User", [])), None),
        group=next(iter(values.get("Group", [])), None),
        environment=environment,
        unreadable=tuple(unreadable),
        folder=None if folder is None else Path(folder.lstrip("-")),
    )


def _assignments(lines: Iterable[str]) -> dict[str, str]:
    """Return the variables of assignments. Quotes around a value are removed as by systemd."""
    variables = {}
    for line in map(str.strip, lines):
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            variables[name.strip()] = value[1:-1] if is_quoted else value
    return variables


def unit_checks(name: ServiceName, unit: ServiceUnit) -> list[HostCheck]:
    """Check what systemd needs to start the program: the user, its folder and its environment.

    Args:
        name: The service.
        unit: The unit of the service.

    Returns:
        One failed check for each problem, with a fix. Empty without a problem.
    """
    problems = []
    if unit.user is not None and not _user_exists(unit.user):
        problems.append((f"the user {unit.user} does not exist", "run the installer again"))
    if os.geteuid() == 0:
        problems += [
            (f"{file}, which the unit needs, does not exist", "run the installer again")
            for file in unit.unreadable
        ]
    if unit.folder is not None and not unit.folder.is_dir() and os.geteuid() == 0:
        problems.append((f"the folder {unit.folder} does not exist", "run the installer again"))
    return [
        HostCheck(name=f"unit broadside-{name}", ok=False, detail=detail, fix=fix)
        for detail, fix in problems
    ]


def _user_exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def run_as_service(
    name: ServiceName, argv: Sequence[str], timeout_s: float
) -> "subprocess.CompletedProcess[str] | None":
    """Run a command as a service runs: with its user, its environment and its sandbox.

    Without systemd, the sandbox is missing.

    Args:
        name: The service.
        argv: The command to run.
        timeout_s: Seconds to wait until the command ends.

    Returns:
        The result, or None if this user can neither be nor become the user of the service.

    Raises:
        OSError: The command cannot be started.
        subprocess.TimeoutExpired: The command did not end in time.
    """
    unit, is_root = read_unit(name), os.geteuid() == 0
    user = unit.user or "root"
    if is_root and BOOTED_PATH.is_dir():
        return run_in_sandbox(name, argv, timeout_s, UNITS_PATH)
    if not is_root and (user != pwd.getpwuid(os.geteuid()).pw_name or unit.unreadable):
        return None
    account = pwd.getpwnam(user)
    switch: dict[str, Any] = {}
    if is_root and account.pw_uid:
        group = unit.group or account.pw_gid
        groups = os.getgrouplist(user, account.pw_gid)
        switch = {"user": user, "group": group, "extra_groups": groups}
    basics = {key: os.environ[key] for key in ("PATH", "LANG", "PYTHONPATH") if key in os.environ}
    return subprocess.run(
        argv,
        env={**basics, "HOME": account.pw_dir, "USER": user, **unit.environment},
        cwd=unit.folder or "/",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        umask=0o077,
        **switch,
    )


def run_in_sandbox(
    name: ServiceName,
    argv: Sequence[str],
    timeout_s: float,
    units_path: Path = UNITS_PATH,
) -> "subprocess.CompletedProcess[str]":
    """Run a command using the same user and sandbox as a service. This requires root.

    It uses a temporary unit in ``/run``. ``systemd-run`` needs a bus that some hosts do not have.

    Args:
        name: The service.
        argv: The command to run.
        timeout_s: Seconds to wait until the command ends.
        units_path: Folder to read the units from.

    Returns:
        The ended process with its exit code and texts.

    Raises:
        OSError: The unit cannot be written.
        subprocess.TimeoutExpired: The command did not end in time.
    """
    with tempfile.TemporaryDirectory(dir="/run", prefix="broadside-doctor-") as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        unit = RUNTIME_UNITS_PATH / f"{Path(folder).name}.service"
        unit.parent.mkdir(exist_ok=True)
        unit.write_text(sandboxed_unit(_unit_text(name, units_path), argv, output, errors))
        try:
            done = subprocess.run(
                ["systemctl", "start", unit.name],
                env=program_environment(),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            texts = [path.read_text() if path.exists() else "" for path in (output, errors)]
        finally:
            for verb in ("stop", "reset-failed"):
                subprocess.run(
                    ["systemctl", verb, unit.name],
                    env=program_environment(),
                    capture_output=True,
                    check=False,
                )
            unit.unlink()
    # The error of a unit that cannot start is that of systemctl.
    texts[1] = texts[1] or done.stderr
    return subprocess.CompletedProcess(list(argv), done.returncode, *texts)


def sandboxed_unit(service: str, argv: Sequence[str], output: Path, errors: Path) -> str:
    """Return the text for a unit that runs a command once, using the sandbox from another unit.

    Args:
        service: Text of the service unit, used to get the sandbox settings.
        argv: The command to run.
        output: File to use for standard output.
        errors: File to use for standard error.
    """
    lines = _service_lines(service)
    settings = [line for line in lines if not _NOT_SANDBOX.match(line)]
    # systemd has created these folders for the service, which may write to them.
    settings += [
        f"ReadWritePaths=-/var/lib/{folder}"
        for line in lines
        if line.startswith("StateDirectory=")
        for folder in line.partition("=")[2].split()
    ]
    unit = [
        "Type=oneshot",
        f"ExecStart={shlex.join(argv)}",
        f"StandardOutput=file:{output}",
        f"StandardError=file:{errors}",
    ]
    return "\n".join(["[Service]", *settings, *unit, ""])


def _service_lines(unit: str) -> list[str]:
    """Return the settings of the section [Service]."""
    section = unit.partition("[Service]\n")[2].partition("\n[")[0]
    lines = map(str.strip, section.splitlines())
    return [line for line in lines if "=" in line and not line.startswith(("#", ";"))]


def _unit_text(name: ServiceName, units_path: Path) -> str:
    try:
        return (units_path / f"broadside-{name}.service").read_text()
    except OSError:
        return ""
