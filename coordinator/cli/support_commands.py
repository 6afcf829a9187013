"""The ``broadside support-bundle`` command: one file for those who help, without secrets.

Each part is optional. A part that this host does not have, or that cannot be read, is named in the
manifest. So the command works on a coordinator, on the host of an agent, and on the machine from
which a range on Azure was created.
"""

import asyncio
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broadside.coordinator.cli.exit_codes import exit_usage
from broadside.coordinator.cli.output_files import save
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.cli.range_commands import DIRECTORY
from broadside.coordinator.cli.session import Session
from broadside.coordinator.cli.support_causes import Bundle, FailureCause, find_causes
from broadside.coordinator.cli.support_redaction import (
    MASK,
    Scrubber,
    is_secret_name,
    known_secrets,
)
from broadside.coordinator.cli.terminal_text import printable
from broadside.exchange.outage_log import utc_now
from broadside.exchange.programs import program_environment
from broadside.exchange.strict_json import parse_strict_json
from broadside.exchange.version import version_text

if TYPE_CHECKING:
    from broadside.coordinator.cli.operations import Operations

FORMAT: Final = 1
PART_TIMEOUT_S: Final = 150.0
PROGRAM_TIMEOUT_S: Final = 120.0
RUNS_COUNT: Final = 3
PAIRS_MAX: Final = 1000
LOG_MAX_BYTES: Final = 2 << 20
READ_MAX_BYTES: Final = 256 << 20
JOURNAL_LINES: Final = 20_000
PROGRAMS: Final[Mapping[str, tuple[str, ...]]] = {
    "iperf3": ("--version",), "chronyc": ("--version",), "terraform": ("version",),
    "az": ("version", "--output", "tsv"),
}  # fmt: skip

BundleFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", help="Output file (.tar.gz), - for stdout."),
]


def support_bundle(
    session: Session,
    file: BundleFile = None,
    logs: Annotated[list[Path] | None, typer.Option("--logs", metavar="PATH")] = None,
    directory: Annotated[Path, typer.Option(metavar="DIR")] = DIRECTORY,
    read: Annotated[Path | None, typer.Option("--read", metavar="FILE")] = None,
) -> None:
    """Write logs, state and versions to one file.

    Secrets are not in it. With --read, it prints what such a file shows.

    Args:
        logs: Log file, or folder with logs, to add to those of systemd; repeatable.
        directory: Terraform folder of a range on Azure.
        read: Print the probable causes that a bundle shows, the most probable one first.
    """
    if read is not None:
        bundle = read_bundle(read)
        causes = find_causes(bundle)
        session.show([asdict(cause) for cause in causes], lambda _: _print_causes(bundle, causes))
        return
    with show_progress("collecting", limit_s=PART_TIMEOUT_S):
        collected = Collected(_scrubber())
        collected.collect(session, logs or [], directory)
    name = f"broadside-support-{utc_now():%Y%m%dT%H%M%SZ}.tar.gz"
    save(packed(collected.files), file or Path(name))


def _print_causes(bundle: Bundle, causes: Sequence[FailureCause]) -> None:
    manifest = bundle["manifest.json"]
    typer.echo(f"written {manifest['created_at']} by Broadside {manifest['version']}")
    for number, cause in enumerate(causes, 1):
        typer.echo(printable(f"{number}. {cause.text} [{cause.source}]"))
        if cause.fix:
            typer.echo(printable(f"   next: {cause.fix}"))
    if not causes:
        typer.echo("the bundle shows no fault")


# File of a bundle ---------------------------------------------------------------------------------


def packed(files: Mapping[str, str]) -> bytes:
    """Return the bundle as a gzip-compressed tar file."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode(errors="replace")
            info = tarfile.TarInfo(f"broadside-support/{name}")
            info.size, info.mode = len(data), 0o600
            archive.addfile(info, io.BytesIO(data))
    return body.getvalue()


def read_bundle(path: Path) -> Bundle:
    """Return the files of a bundle by name, with parsed JSON. Exit with 3 if it is none."""
    bundle: dict[str, Any] = {}
    left_bytes = READ_MAX_BYTES
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                stream, name = archive.extractfile(member), member.name.partition("/")[2]
                left_bytes -= member.size
                if stream is None or left_bytes < 0:
                    exit_usage(f"--read {path}: it is no support bundle, or too large")
                text = stream.read().decode(errors="replace")
                is_json = name.endswith(".json")
                bundle[name] = parse_strict_json(text, READ_MAX_BYTES) if is_json else text
        if bundle["manifest.json"]["format"] != FORMAT:
            exit_usage(f"--read {path}: a newer version of Broadside has written it")
    except (OSError, tarfile.TarError, EOFError, ValueError, LookupError, TypeError) as error:
        exit_usage(f"--read {path}: it is no support bundle ({error})")
    return bundle


# Content ------------------------------------------------------------------------------------------


def _service_environment() -> dict[str, str]:
    """Return the variables of the installed services and of this process."""
    from broadside.coordinator.cli.installed_services import installed_services, read_unit

    services: dict[str, str] = {}
    for name in installed_services():
        services |= read_unit(name).environment
    return {**services, **os.environ}


def _scrubber() -> Scrubber:
    environment = _service_environment()
    state = Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    data = Path(environment.get("BROADSIDE_DATA_DIR", ".broadside"))
    return Scrubber(known_secrets(environment, (state / "broadside", data)))


class Collected:
    """Files of a bundle, without secrets.

    Attributes:
        files: Text by name.
        missing: Reason by part that is not in the bundle. It begins with ``none`` if this host does
            not have the part.
    """

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self.files: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._is_live = False

    def add(self, name: str, content: Any) -> None:
        """Add a file: JSON for a name that ends with ``.json``, otherwise text.

        Args:
            name: File name in the bundle.
            content: JSON value, or text. Secrets are removed from both.
        """
        if name.endswith(".json"):
            self.files[name] = json.dumps(self._scrubber.scrub_value(content), indent=1)
        else:
            self.files[name] = self._scrubber.scrub(content)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Record why a part is missing, for every error."""
        try:
            yield
        except _NotHere as reason:
            self.missing[name] = f"none: {reason}"
        except (Exception, SystemExit) as error:
            text = " ".join(str(error).split())[:500]
            self.missing[name] = self._scrubber.scrub(text or type(error).__name__)

    def collect(self, session: Session, logs: list[Path], directory: Path) -> None:
        """Collect all parts. The manifest names those that are missing.

        Args:
            session: Session to read the runs with.
            logs: Log files to add.
            directory: Folder of the range.
        """
        with self.part("versions"):
            self.add("versions.json", _versions())
        with self.part("settings"):
            self.add("settings.json", _settings())
        with self.part("checks"):
            self.add("checks.json", _checks())
        with self.part("range"):
            self._add_range(directory)
        with self.part("coordinator"):
            asyncio.run(asyncio.wait_for(self._add_store(session), PART_TIMEOUT_S))
        with self.part("journal"):
            self.add("logs/journal.log", _journal())
        for path in logs:
            with self.part(f"logs {path}"):
                self._add_logs(path)
        manifest = {
            "format": FORMAT, "created_at": utc_now().isoformat(), "version": version_text(),
            "live": self._is_live, "missing": self.missing,
        }  # fmt: skip
        self.files = {"manifest.json": json.dumps(manifest, indent=1), **self.files}

    def _add_logs(self, path: Path) -> None:
        files = sorted(path.rglob("*.log*")) if path.is_dir() else [path]
        for file in files:
            name = file.relative_to(path.parent if path.is_dir() else file.parent)
            with file.open("rb") as stream:
                stream.seek(max(0, file.stat().st_size - LOG_MAX_BYTES))
                self.add(f"logs/{name}", stream.read().decode(errors="replace"))

    # Coordinator ------------------------------------------------------------------------------

    async def _add_store(self, session: Session) -> None:
        if session.api is None:
            session = replace(session, api=_installed_api())
        if session.api is None and not _has_store():
            raise _NotHere("no store and no --api")
        self._is_live = session.api is not None
        async with session.connect() as client:
            steps: Mapping[str, Callable[[], Awaitable[None]]] = {
                "agents": lambda: self._add_agents(client),
                "runs": lambda: self._add_runs(client),
                "deadletters": lambda: self._add_letters(client),
            }
            for name, step in steps.items():
                with self.part(name):
                    await step()

    async def _add_agents(self, client: "Operations") -> None:
        agents = await client.presences()
        self.add("agents.json", [agent.model_dump(mode="json") for agent in agents])

    async def _add_runs(self, client: "Operations") -> None:
        for header in await client.runs(RUNS_COUNT):
            run_id = header.run_id
            status = await client.status(run_id)
            summary = await client.summary(run_id)
            last = next((burst.index for burst in reversed(status.bursts) if burst.reported_count),
                        0)  # fmt: skip
            pairs = await client.pairs(run_id, last + 1, PAIRS_MAX)
            content = {
                "header": header.model_dump(mode="json"), "status": status.model_dump(mode="json"),
                "summary": None if summary is None else summary.model_dump(mode="json"),
                "pairs": [pair.model_dump(mode="json") for pair in pairs],
            }  # fmt: skip
            self.add(f"runs/{run_id}.json", content)

    async def _add_letters(self, client: "Operations") -> None:
        letters = await client.dead_letters(100)
        # The body is a job, which the run shows too.
        shown = [one.model_dump(mode="json", exclude={"body"}) for one in letters]
        self.add("deadletters.json", shown)

    # Range ------------------------------------------------------------------------------------

    def _add_range(self, directory: Path) -> None:
        from broadside.coordinator.cli import terraform as tf

        errors = directory / tf.ERRORS
        if errors.is_file():
            self.add("range/terraform-errors.txt", errors.read_text(errors="replace"))
        if not any(directory.glob("*.tfstate")) and not (directory / "backend.tf").is_file():
            raise _NotHere(f"no Terraform state in {directory}")
        self._add_state(directory)
        with self.part("range/boot"):
            self._add_boot(directory)

    def _add_state(self, directory: Path) -> None:
        from broadside.coordinator.azure_range.terraform_state import read_state
        from broadside.coordinator.azure_range.trace import table
        from broadside.coordinator.azure_range.walk import walk

        command = ["terraform", f"-chdir={directory}", "show", "-json"]
        resources = read_state(json.loads(_output(command)))
        self.add("range/explain.txt", "\n".join(table(walk(resources))))
        self.add("range/resources.json", [_shown(item) for item in resources.by_id.values()])

    def _add_boot(self, directory: Path) -> None:
        from broadside.coordinator.cli.range_checks import boot_report

        shown = json.loads(_output(["terraform", f"-chdir={directory}", "output", "-json"]))
        outputs = {name: item["value"] for name, item in shown.items() if not item["sensitive"]}
        if not outputs.get("boot"):
            raise _NotHere("no VMs")
        az_options = ["--resource-group", outputs["resource_group"],
                      "--subscription", outputs["subscription_id"]]  # fmt: skip
        self.add("range/boot.json", boot_report(az_options, outputs["scale_sets"], outputs["boot"]))


class _NotHere(Exception):
    """This host does not have a part."""


def _installed_api() -> str | None:
    """Return the address of the coordinator that systemd runs on this host, or None."""
    from broadside.coordinator.cli.installed_services import installed_services, read_unit

    if "coordinator" not in installed_services():
        return None
    return f"http://127.0.0.1:{read_unit('coordinator').environment.get('BROADSIDE_PORT', '8080')}"


def _has_store() -> bool:
    from broadside.exchange.fabric_settings import FabricSettings

    settings = FabricSettings()
    return settings.fabric == "azure" or (
        settings.fabric == "embedded" and any(settings.data_dir.glob("*.sqlite3"))
    )


def _checks() -> list[Mapping[str, Any]]:
    from broadside.coordinator.cli.doctor import all_checks

    checks = asyncio.run(asyncio.wait_for(all_checks(), PART_TIMEOUT_S))
    return [check.model_dump(mode="json") for check in checks]


def _settings() -> dict[str, str]:
    """Return the settings of this process and of the services. Secrets are only marked as set."""
    return {
        name: MASK if is_secret_name(name) and value else value
        for name, value in sorted(_service_environment().items())
        if name.startswith(("BROADSIDE_", "AZURE_", "ARM_", "TF_"))
    }


def _versions() -> dict[str, Any]:
    packages = {item.name: item.version for item in distributions()}
    return {
        "broadside": version_text(), "python": platform.python_version(),
        "kernel": platform.release(), "system": _system(), "processors": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
        "programs": {name: _version(name, arguments) for name, arguments in PROGRAMS.items()},
    }  # fmt: skip


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def _version(program: str, arguments: tuple[str, ...]) -> str | None:
    if shutil.which(program) is None:
        return None
    try:
        return _output([program, *arguments]).strip().splitlines()[0][:200]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return f"unknown: {type(error).__name__}"


def _journal() -> str:
    if shutil.which("journalctl") is None:
        raise _NotHere("no systemd")
    units = ["--unit=broadside-*"]
    argv = ["journalctl", *units, "--no-pager", "--output=short-iso-precise",
            f"--lines={JOURNAL_LINES}"]  # fmt: skip
    # Without such units, journalctl fails.
    if not (text := _output(argv, check=False).strip()):
        raise _NotHere("no lines of our units")
    return text[-LOG_MAX_BYTES:]


def _output(argv: list[str], *, check: bool = True) -> str:
    done = subprocess.run(
        argv,
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=check,
    )
    return done.stdout


def _shown(resource: Mapping[str, Any]) -> Any:
    """Return a resource without the custom data of VMs, which has large files."""
    return {name: _without_data(value) for name, value in resource.items()}


def _without_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_data(item) for name, item in value.items() if name != "customData"}
    return [_without_data(item) for item in value] if isinstance(value, list) else value
