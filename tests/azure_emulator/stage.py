"""Test environment of the emulator: tools, a copy of the range's files, and commands."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Final

from tests.azure_emulator.azure_catalogue import SUBSCRIPTION
from tests.azure_emulator.computed import TENANT
from tests.azure_emulator.data_plane import DataPlane
from tests.azure_emulator.proxy import APPLICATION, make_authority, serving
from tests.azure_emulator.published import Published
from tests.azure_emulator.subscription import Subscription
from tests.deploy_check.tools import AZURE, ROOT, install_in_venv

AZ_VERSION: Final = "2.91.0"
TERRAFORM_HINT: Final = "terraform is missing: install Terraform 1.9 or newer"
PROVIDER_HINT: Final = """the azurerm provider is missing; one of
  terraform -chdir=deploy/azure providers mirror "$PWD/.tools/terraform/mirror" (by its registry)
  sh deploy/azure/provider.sh build (by Go, about 15 minutes)
  or name a filesystem mirror in BROADSIDE_TERRAFORM_MIRROR"""
TYPES_HINT: Final = """Microsoft's published types are missing; one of
  git clone --depth 1 https://github.com/Azure/bicep-types-az .tools/bicep-types
  or name a checkout of it in BROADSIDE_BICEP_TYPES"""
KEY: Final = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE3LkOrqJJBWuTgvk5Po/4XjOrWgNJ0rJzQJVhFvjTUR nobody"
)
VALUES: Final = f"""\
subscription_id    = "{SUBSCRIPTION}"
operator_addresses = ["203.0.113.7"]
budget_emails      = ["operator@example.com"]
ssh_public_key     = "{KEY}"
bundle_path        = "bundle.tar.gz"
role_settle_s      = 3
"""


class Missing(Exception):
    """Missing tool or folder. The message explains how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Tools found on this machine."""

    terraform_config: Path
    types: Path
    az: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Command that ended, or was killed (``returncode`` below 0)."""

    argv: tuple[str, ...]
    returncode: int
    output: str
    took_s: float


def find_tools() -> Tools:
    """Return all tools after installing az from PyPI. Raises :class:`Missing`."""
    if shutil.which("terraform") is None:
        raise Missing(TERRAFORM_HINT)
    completed = subprocess.run(
        ["sh", str(AZURE / "provider.sh")], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise Missing(PROVIDER_HINT)
    types = Path(os.environ.get("BROADSIDE_BICEP_TYPES") or ROOT / ".tools" / "bicep-types")
    if not any(types.rglob("types.json")):
        raise Missing(TYPES_HINT)
    return Tools(terraform_config=Path(completed.stdout.strip()), types=types, az=_find_az())


def _find_az() -> Path:
    """Return the Azure CLI in its own virtual environment, because its pins conflict."""
    home = Path(os.environ.get("BROADSIDE_AZ_HOME") or ROOT / ".tools" / "az")
    if not (home / "bin" / "az").exists() and (
        fault := install_in_venv(home, "install", f"azure-cli=={AZ_VERSION}")
    ):
        raise Missing(f"the Azure CLI could not be installed: {fault}")
    return home / "bin" / "az"


class Stopped(BaseException):
    """Request to stop the tests."""


# Runs a command as the first process of its own PID namespace, so that the kernel kills all its
# descendants with it. It is killed itself when the rehearsal ends in any way.
_ENCLOSED: Final = ("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child")


@cache
def enclosure() -> tuple[str, ...]:
    """Return the words before a command that end its descendants with it, empty if not allowed."""
    try:
        done = subprocess.run([*_ENCLOSED, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return () if done.returncode else _ENCLOSED


class Commands:
    """Commands of all stages, each in its own session with its children.

    A terminated test would leave them running, so :meth:`stop` kills them and prevents new ones.
    After SIGKILL nothing can be stopped, so each command also has an :func:`enclosure`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def start(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[str]
    ) -> "subprocess.Popen[str]":
        """Start a command. Raises :class:`Stopped` after :meth:`stop`."""
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                [*enclosure(), *argv], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        return process

    def ended(self, process: "subprocess.Popen[str]") -> None:
        """Remove a command that has ended."""
        with self._lock:
            self._running.discard(process)

    def stop(self) -> None:
        """Kill all running commands. A later start raises :class:`Stopped`."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


COMMANDS: Final = Commands()


@dataclass(kw_only=True)
class Stage:
    """Copy of the range's files with one subscription and its commands."""

    folder: Path
    data: DataPlane
    environment: dict[str, str]
    log: list[Done] = field(default_factory=list)

    @property
    def subscription(self) -> Subscription:
        return self.data.subscription

    @property
    def directory(self) -> Path:
        return self.folder / "azure"

    def broadside(self, verb: str, *words: str, kill_after_s: float | None = None) -> Done:
        """Run the command line of this project."""
        argv = [
            sys.executable,
            "-m",
            "broadside.coordinator",
            verb,
            "--directory",
            str(self.directory),
        ]
        return self.run([*argv, *words], kill_after_s=kill_after_s)

    def terraform(self, *words: str) -> Done:
        return self.run(["terraform", f"-chdir={self.directory}", *words])

    def az(self, *words: str) -> Done:
        return self.run(["az", *words])

    def run(
        self, argv: Sequence[str], *, kill_after_s: float | None = None, cwd: Path = ROOT
    ) -> Done:
        """Run a command to its end, or kill it with its children."""
        began_s = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = COMMANDS.start(argv, cwd=cwd, env=self.environment, output=output)
            try:
                process.wait(kill_after_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            finally:
                COMMANDS.ended(process)
            output.seek(0)
            reported = output.read()
        done = Done(
            argv=tuple(argv), returncode=process.returncode, output=reported,
            took_s=time.monotonic() - began_s,
        )  # fmt: skip
        self.log.append(done)
        return done


@contextmanager
def set_stage(tools: Tools, folder: Path) -> Iterator[Stage]:
    """Copy the range's files, serve a subscription, and sign in with az."""
    shutil.copytree(
        AZURE, folder / "azure",
        ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*", "terraform.tfvars", "bundle"),
    )  # fmt: skip
    (folder / "azure" / "terraform.tfvars").write_text(VALUES)
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "azure" / "bundle.tar.gz").write_bytes(os.urandom(200_000))
    authority = make_authority(folder / "certificates")
    data = DataPlane(subscription=Subscription(published=Published(folder=tools.types)))
    with serving(data, folder / "certificates") as proxy:
        stage = Stage(
            folder=folder,
            data=data,
            environment=_environment(tools, folder, proxy, authority),
        )
        parts = ["login", "--service-principal", "-u", APPLICATION, "-p", "x", "--tenant", TENANT]
        done = stage.az(*parts, "--output", "none")
        if done.returncode:
            raise Missing(f"az login at the stand-in ended with {done.returncode}: {done.output}")
        yield stage


def _environment(tools: Tools, folder: Path, proxy: str, authority: Path) -> dict[str, str]:
    dropped = ("_PROXY", "_proxy", "SSL_CERT", "CA_BUNDLE", "ARM_", "TF_", "AZURE_", "BROADSIDE_")
    stored = {
        name: value for name, value in os.environ.items()
        if not any(item in name for item in dropped)
    }  # fmt: skip
    return stored | {
        # The sockets of Terraform's providers remain if they are killed.
        "TMPDIR": str(folder / "tmp"),
        "HTTPS_PROXY": proxy,
        "NO_PROXY": "127.0.0.1,localhost",
        "SSL_CERT_FILE": str(authority),
        "SSL_CERT_DIR": str(folder / "no-other-authorities"),
        "REQUESTS_CA_BUNDLE": str(authority),
        "PATH": f"{tools.az.parent}:{os.environ['PATH']}",
        "ARM_CLIENT_ID": APPLICATION,
        "ARM_CLIENT_SECRET": "rehearsal",
        "ARM_TENANT_ID": TENANT,
        "TF_CLI_CONFIG_FILE": str(tools.terraform_config),
        "TF_CLI_ARGS_apply": "-parallelism=20",
        "TF_CLI_ARGS_destroy": "-parallelism=20",
        "TF_IN_AUTOMATION": "1",
        "CHECKPOINT_DISABLE": "1",
        "AZURE_CONFIG_DIR": str(folder / "az"),
        "AZURE_CORE_COLLECT_TELEMETRY": "0",
        "AZURE_EXTENSION_DIR": str(folder / "extensions"),
        "NO_COLOR": "1",
    }
