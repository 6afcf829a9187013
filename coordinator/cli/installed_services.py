"""Services of this installation that systemd runs on this host, for ``broadside doctor``.

What a service finds is not what root finds: it is another user, in a sandbox. So an agent's checks
run in the sandbox of the agent's own unit.
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
# Of a unit's [Service]: how it starts and ends, and its folder, which the running service has made.
_NOT_SANDBOX: Final = re.compile(
    r"(Type|Exec\w+|Restart\w*|KillMode|Timeout\w+|OOMScoreAdjust|StateDirectory\w*)="
)


def installed_services(units_path: Path = UNITS_PATH) -> list[Service]:
    """Return the services whose units start this installation; none in a checkout."""
    return [name for name in SERVICES if f"={sys.prefix}/" in _unit_text(name, units_path)]


def check_service(name: Service) -> Check:
    """Return whether a service is at work."""
    unit = f"broadside-{name}.service"
    asked = ["systemctl", "show", unit, "--property=ActiveState,NRestarts,Result"]
    try:
        done = subprocess.run(
            asked,
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
    again = "" if restarts == "0" else f", restarted {restarts} times since it was started"
    ended = "" if result == "success" else f", last end: {result}"
    return Check(
        name=f"service {name}",
        ok=state == "active",
        detail=f"{unit} is {state}{again}{ended}",
        fix=None if state == "active" else f"`journalctl -u {unit} -n 20` says why",
    )


def run_in_sandbox(
    name: Service,
    argv: Sequence[str],
    timeout_s: float,
    units_path: Path = UNITS_PATH,
) -> "subprocess.CompletedProcess[str]":
    """Run a command as a service's user, in the service's sandbox. Only root may.

    By a unit of its own in ``/run``: ``systemd-run`` needs a message bus, which not every host has.

    Raises:
        OSError: The unit cannot be written.
        subprocess.TimeoutExpired: It did not end in time.
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
    """Return a unit that runs a command once, with user and sandbox of a service's unit."""
    section = service.partition("[Service]\n")[2].partition("\n[")[0]
    settings = [
        line
        for line in map(str.strip, section.splitlines())
        if "=" in line and not line.startswith(("#", ";")) and not _NOT_SANDBOX.match(line)
    ]
    own = [
        "Type=oneshot",
        f"ExecStart={shlex.join(argv)}",
        f"StandardOutput=file:{output}",
        f"StandardError=file:{errors}",
    ]
    return "\n".join(["[Service]", *settings, *own, ""])


def _unit_text(name: Service, units_path: Path) -> str:
    try:
        return (units_path / f"broadside-{name}.service").read_text()
    except OSError:
        return ""
