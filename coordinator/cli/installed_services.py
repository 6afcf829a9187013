"""Services of this installation that systemd runs, for ``broadside doctor``.

A service has its own user and a sandbox, so its checks can differ from a check that root runs. The
agent checks therefore run in the agent's sandbox.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from broadside.exchange.checks import Check
from broadside.exchange.programs import program_environment

Service = Literal["agent", "coordinator"]
SERVICES: Final[Sequence[Service]] = ("agent", "coordinator")
UNITS_PATH: Final = Path("/etc/systemd/system")
RUNTIME_UNITS_PATH: Final = Path("/run/systemd/system")
SYSTEMCTL_TIMEOUT_S: Final = 10.0
# [Service] settings that do not belong to the sandbox. They are used to start and stop the service,
# or name folders that the running service has created.
_NOT_SANDBOX: Final = re.compile(
    r"(Type|Exec\w+|Restart\w*|KillMode|Timeout\w+|OOMScoreAdjust|StateDirectory\w*)="
)


def installed_services(units_path: Path = UNITS_PATH) -> list[Service]:
    """Return the services whose units start this installation. A checkout has none."""
    return [name for name in SERVICES if f"={sys.prefix}/" in _unit_text(name, units_path)]


def check_service(name: Service) -> Check:
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
        return Check(name=f"service {name}", ok=False, detail=f"systemctl: {error}")
    shown = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    state, result = shown.get("ActiveState", "unknown"), shown.get("Result", "success")
    restarts = shown.get("NRestarts", "0")
    again = "" if restarts == "0" else f", restarted {restarts} times"
    ended = "" if result == "success" else f", last result: {result}"
    return Check(
        name=f"service {name}",
        ok=state == "active",
        detail=f"{unit} is {state}{again}{ended}",
        fix=None if state == "active" else f"see `journalctl -u {unit} -n 20`",
    )


def run_in_sandbox(
    name: Service,
    argv: Sequence[str],
    timeout_s: float,
    units_path: Path = UNITS_PATH,
) -> "subprocess.CompletedProcess[str]":
    """Run a command using the same user and sandbox as a service. This requires root.

    It uses a temporary unit in ``/run``, because ``systemd-run`` needs a message bus that some
    hosts do not have.

    Args:
        name: The service.
        argv: The command to run.
        timeout_s: Seconds to wait until the command ends.
        units_path: Folder to read the units from.

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
            code = subprocess.run(
                ["systemctl", "start", unit.name],
                env=program_environment(),
                capture_output=True,
                timeout=timeout_s,
                check=False,
            ).returncode
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
    return subprocess.CompletedProcess(list(argv), code, *texts)


def sandboxed_unit(service: str, argv: Sequence[str], output: Path, errors: Path) -> str:
    """Return the text for a unit that runs a command once, using the sandbox from another unit.

    Args:
        service: Text of the service unit, used to get the sandbox settings.
        argv: The command to run.
        output: File to use for standard output.
        errors: File to use for standard error.
    """
    section = service.partition("[Service]\n")[2].partition("\n[")[0]
    settings = [
        line
        for line in map(str.strip, section.splitlines())
        if "=" in line and not line.startswith(("#", ";")) and not _NOT_SANDBOX.match(line)
    ]
    unit = [
        "Type=oneshot",
        f"ExecStart={shlex.join(argv)}",
        f"StandardOutput=file:{output}",
        f"StandardError=file:{errors}",
    ]
    return "\n".join(["[Service]", *settings, *unit, ""])


def _unit_text(name: Service, units_path: Path) -> str:
    try:
        return (units_path / f"broadside-{name}.service").read_text()
    except OSError:
        return ""
