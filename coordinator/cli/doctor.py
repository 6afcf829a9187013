"""The ``broadside doctor`` command, which checks this host and prints fixes."""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final
from uuid import uuid4

import typer
from pydantic import TypeAdapter, ValidationError

from broadside.coordinator.auth.audit import AuditRow
from broadside.coordinator.auth.static_tokens import Token
from broadside.coordinator.backups import BackupKind, BackupRecord, read_backup_records
from broadside.coordinator.cli.command_group import Output
from broadside.coordinator.cli.exit_codes import ExitCode
from broadside.coordinator.cli.installed_services import (
    ServiceName,
    check_service,
    installed_services,
    read_unit,
    run_as_service,
    unit_checks,
)
from broadside.coordinator.cli.lab_commands import lab_checks
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.cli.telemetry_checks import check_telemetry_sources, failed
from broadside.coordinator.cli.terminal_text import printable
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core import formatting
from broadside.coordinator.core.plan.reserved import Reservation
from broadside.coordinator.core.plan.schedule import Schedule
from broadside.coordinator.notices.announcer import ReceiverStart
from broadside.coordinator.runs.launch import LaunchRecord
from broadside.coordinator.studies.study import Study
from broadside.coordinator.studies.switch_lock import SwitchLock
from broadside.exchange.checks import HostCheck
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.fabric.identity_rights import (
    Identity,
    rights_checks,
    try_listen,
    try_send,
    try_table,
)
from broadside.exchange.messages import HostInfo, Message, Presence, Role, plain_text
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeError, ExchangeUnavailable, RawName, RawStore
from broadside.exchange.programs import module_command
from broadside.exchange.records import RunHeader, keys
from broadside.exchange.records.collection import Collection

ROWS_SHOWN_COUNT: Final = 10
# Maximum age of the last restore drill. It should run weekly, so this is two intervals.
DRILL_AGE_MAX: Final = timedelta(days=14)
AGENT_CHECK_TIMEOUT_S: Final = 30.0
# Telemetry sources are queried at the same time, each for up to a minute.
SERVICE_CHECK_TIMEOUT_S: Final = 150.0


def doctor(
    session: Output,
    identity: Annotated[Identity | None, typer.Option("--as")] = None,
) -> None:
    """Check this host, and print how to fix each problem.

    Args:
        identity: Only check the permissions of this host on queue and tables for this role.
    """
    with show_progress("checking this host", limit_s=SERVICE_CHECK_TIMEOUT_S):
        checks = asyncio.run(all_checks() if identity is None else _permissions(identity))
    session.show(TypeAdapter(list[HostCheck]).dump_python(checks, mode="json"), _print_checks)
    if any(check.required and not check.ok for check in checks):
        raise typer.Exit(ExitCode.CANNOT_RUN)


def _print_checks(checks: list[Mapping[str, Any]]) -> None:
    for check in checks:
        mark = "ok  " if check["ok"] else "FAIL" if check["required"] else "note"
        typer.echo(printable(f"{mark} {check['name']}: {check['detail']}"))
        if check["fix"]:
            typer.echo(printable(f"     fix: {check['fix']}"))


async def _permissions(identity: Identity) -> list[HostCheck]:
    try:
        return await rights_checks(identity, FabricSettings())
    except (ValidationError, ExchangeError) as error:
        return [failed("fabric", error)]


async def all_checks() -> list[HostCheck]:
    """Check the installed services if there are any, otherwise everything."""
    if services := installed_services():
        return [check for name in services for check in service_checks(name)]
    (on_fabric, servers), on_telemetry = await asyncio.gather(fabric_checks(), telemetry_checks())
    return [*require_clock(agent_checks(servers)), *lab_checks(), *on_fabric, *on_telemetry]


def service_checks(name: ServiceName) -> list[HostCheck]:
    """Check an installed service, in a process that runs as the service.

    Args:
        name: The service.
    """
    state, unit = check_service(name), read_unit(name)
    checks = [state, *unit_checks(name, unit)]
    if len(checks) > 1:
        return checks
    argv = module_command("broadside.coordinator.cli.service_doctor", name)
    try:
        done = run_as_service(
            name, [*argv, "--running"] if state.ok else argv, SERVICE_CHECK_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [*checks, HostCheck(name=f"checks of {name}", ok=False, detail=str(error))]
    if done is None:
        user = unit.user or "root"
        return [
            *checks,
            HostCheck(
                name=f"checks of {name}",
                ok=False,
                detail=f"not checked, because the service runs as {user}: its settings, its access "
                "to files, folders, queue and tables, and its telemetry sources",
                fix="run `sudo broadside doctor`",
                required=False,
            ),
        ]
    return [*checks, *_parse_checks(f"checks of {name}", done)]


def _parse_checks(name: str, done: "subprocess.CompletedProcess[str]") -> list[HostCheck]:
    """Return the checks that a process has printed, or one failed check with its error."""
    try:
        if not done.returncode:
            return TypeAdapter(list[HostCheck]).validate_json(done.stdout)
    except ValidationError:
        pass
    errors = done.stderr.strip().splitlines() or [f"the check exited with {done.returncode}"]
    return [HostCheck(name=name, ok=False, detail=errors[-1])]


def agent_checks(servers: Sequence[str]) -> list[HostCheck]:
    """Check if this host can run an agent, and if it can reach the servers.

    The check runs in a separate process, with the user and the environment of this one.

    Args:
        servers: Addresses to which the agent will send traffic.
    """
    argv = module_command("broadside.agent.check", *servers)
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=AGENT_CHECK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [HostCheck(name="agent", ok=False, detail=str(error))]
    return _parse_checks("agent", done)


def require_clock(checks: Sequence[HostCheck]) -> list[HostCheck]:
    """Return the checks, in which a bad clock is an error if agents of other hosts join a run.

    Such an agent refuses its jobs. On an embedded fabric, all agents use the clock of one kernel.

    Args:
        checks: Checks of an agent.
    """
    try:
        is_required = FabricSettings().fabric != "embedded"
    except ValidationError:
        # Another check reports this.
        return list(checks)
    return [
        check.model_copy(update={"required": is_required}) if check.name == "clock" else check
        for check in checks
    ]


async def agent_fabric_checks() -> list[HostCheck]:
    """Check if the agent of this host can use its fabric with its own permissions."""
    try:
        settings = FabricSettings()
        match settings.fabric:
            case "http":
                return [await link_check(settings)]
            case "azure":
                return await _permissions(
                    Identity(os.environ.get("BROADSIDE_AGENT_ROLE", "client"))
                )
            case "embedded":
                return (await fabric_checks())[0]
    except ValidationError as error:
        return [failed("fabric", error)]


async def link_check(settings: FabricSettings) -> HostCheck:
    """Check if the coordinator responds, and if it knows the agent on this host."""
    from broadside.exchange.http.coordinator_client import CoordinatorClient
    from broadside.exchange.http.credential import coordinator_addresses, load_credential

    name, path = "coordinator", settings.credential_file
    try:
        credential = None if path is None else load_credential(path)
        if credential is None:
            return HostCheck(
                name=name,
                ok=False,
                detail=f"this host is not enrolled: there is no credential in {path}",
                fix="run the installer with a join code from `broadside enroll new`",
            )
        # We do not use the path, because only the agent should be allowed to store a changed
        # secret, using its own user.
        credential = replace(credential, path=None)
        if settings.coordinator is not None:
            addresses = coordinator_addresses(settings.coordinator)
            credential = replace(credential, coordinators=addresses)
        link = CoordinatorClient(credential)
        try:
            await link.call("ping")
        finally:
            await link.close()
    except ExchangeError as error:
        return failed(name, error, "check the name, DNS and firewalls on the path: 8443/tcp")
    detail = f"{', '.join(credential.coordinators)} knows {credential.agent_id}"
    return HostCheck(name=name, ok=True, detail=detail)


# Queue and table -----------------------------------------------------------------------------


async def fabric_checks() -> tuple[list[HostCheck], list[str]]:
    """Check if queue and tables respond.

    Working agents are not affected, because no message is received or becomes visible.

    Returns:
        The checks, and the addresses to use for the known servers.
    """
    try:
        settings = FabricSettings()
        fabric = open_fabric(settings)
    except (ValidationError, ExchangeError) as error:
        return [failed("fabric", error)], []
    reach = (
        "check the name, DNS and firewalls: 5671/tcp to Service Bus, 443/tcp to storage"
        if settings.fabric == "azure"
        else "check the disk and the permissions of BROADSIDE_DATA_DIR"
    )
    try:
        send, receive, table, raw = await asyncio.gather(
            _run_check("queue send", lambda: try_send(fabric.queue), reach),
            _run_check("queue receive", lambda: try_listen(fabric.queue), reach),
            _run_check("table", lambda: try_tables(fabric), reach),
            _run_check("raw output", lambda: try_raw(fabric.raw), reach),
        )
        checks = [send, receive, table, raw]
        if not table.ok:
            return checks, []
        checks.append(await rows_check(fabric))
        if fabric.in_files:
            checks += await backup_checks(fabric)
        return checks, await _servers(fabric)
    finally:
        await fabric.close()


async def try_tables(fabric: Fabric) -> str:
    """Check the permission to write each table."""
    for table in (fabric.control, fabric.results, fabric.private):
        await try_table(table)
    return "a row was written, read and deleted in each of the three tables"


async def rows_check(fabric: Fabric) -> HostCheck:
    """Check that all maintained rows can be read, and name those that cannot."""
    month = f"{utc_now():%Y-%m}"
    private: dict[str, type[Message]] = {
        keys.TOKENS: Token,
        keys.SCHEDULES: Schedule,
        keys.STUDIES: Study,
        keys.SWITCHES: SwitchLock,
        keys.PLACES: ReceiverStart,
        keys.LAUNCHES: LaunchRecord,
        keys.RESERVATIONS: Reservation,
        keys.BACKUPS: BackupRecord,
        keys.audit_shelf(month): AuditRow,
    }
    shelves = [Collection(fabric.private, name, model) for name, model in private.items()]
    try:
        unreadable = [name for shelf in shelves for name in await shelf.unreadable()]
        unreadable += await Collection(fabric.private, keys.RUNS, RunHeader).unreadable(
            key_before=keys.OPEN
        )
        unreadable += await Collection(fabric.results, keys.PRESENCE, Presence).unreadable()
        unreadable += await Collection(fabric.results, keys.PASSPORT, HostInfo).unreadable()
    except ExchangeError as error:
        return failed("rows", error)
    if not unreadable:
        return HostCheck(name="rows", ok=True, detail="all maintained rows can be read")
    names = ", ".join(unreadable[:ROWS_SHOWN_COUNT])
    more = ", ..." * (len(unreadable) > ROWS_SHOWN_COUNT)
    return HostCheck(
        name="rows",
        ok=False,
        detail=plain_text(f"{len(unreadable)} rows cannot be read and are ignored: {names}{more}"),
        fix="install the version that has written them, or delete them; if another program has "
        "written them, restrict the permissions on the table",
        required=False,
    )


async def backup_checks(fabric: Fabric) -> list[HostCheck]:
    """Check age and result of the last backup and the last restore drill."""
    now, settings = utc_now(), CoordinatorSettings()
    every = None if settings.backup_dir is None else timedelta(hours=settings.backup_every_h)
    limits = {BackupKind.BACKUP: every and 2 * every, BackupKind.DRILL: every and DRILL_AGE_MAX}
    fixes = {
        BackupKind.BACKUP: "set BROADSIDE_BACKUP_DIR, or run `broadside backup FILE`",
        BackupKind.DRILL: "run `broadside restore --drill`",
    }
    try:
        records = await read_backup_records(fabric.private)
    except ExchangeError as error:
        return [failed("backup", error)]
    return [
        _backup_check(name, records.get(kind), now, limits[kind], fixes[kind])
        for kind, name in ((BackupKind.BACKUP, "backup"), (BackupKind.DRILL, "restore drill"))
    ]


def _backup_check(
    name: str, record: BackupRecord | None, now: datetime, age_max: timedelta | None, fix: str
) -> HostCheck:
    """Return a check of one record.

    A problem is a failure only if backups are scheduled (``age_max`` is not None), otherwise a
    note.
    """
    required = name == "backup" and age_max is not None
    if record is None:
        return HostCheck(name=name, ok=False, detail="none yet", fix=fix, required=False)
    age = None if record.succeeded_at is None else now - record.succeeded_at
    last = "none has succeeded" if age is None else f"{record.file}, {_age_text(age)} old"
    if record.error is not None:
        detail = f"the last attempt failed: {record.error}; before: {last}"
        return HostCheck(name=name, ok=False, detail=detail, fix=fix, required=required)
    is_old = age is None or (age_max is not None and age > age_max)
    size = "" if record.size_bytes is None else f", {formatting.size(record.size_bytes)}"
    return HostCheck(
        name=name,
        ok=not is_old,
        detail=last + size,
        fix=fix if is_old else None,
        required=required,
    )


def _age_text(age: timedelta) -> str:
    hours = max(0.0, age.total_seconds() / 3600)
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


async def try_raw(raw: RawStore | None) -> str:
    """Check the permission to store raw engine output.

    Args:
        raw: Blob store, or None if raw output is stored in the table.

    Returns:
        Result as shown in the check.

    Raises:
        ExchangeUnavailable: The blob that was read differs from the one that was written.
    """
    if raw is None:
        return "stored in the table, because no blob account is set"
    probe, text = RawName(folder="doctor", file=uuid4().hex), b"doctor"
    await raw.save(probe, text)
    stored = await raw.read(probe)
    await raw.delete_folder(probe.folder)
    if stored != text:
        raise ExchangeUnavailable("a blob that was just written cannot be read back")
    return "a blob was written, read and deleted"


async def _run_check(name: str, work: Callable[[], Awaitable[str]], reach: str) -> HostCheck:
    try:
        return HostCheck(name=name, ok=True, detail=await work())
    except ExchangeError as error:
        return failed(name, error, reach)


async def _servers(fabric: Fabric) -> list[str]:
    try:
        presences = await fabric.records.fleet.read_presences()
    except ExchangeError:
        # The coordinator should report rows that another system has written.
        return []
    return sorted({p.address for p in presences if p.role is Role.SERVER})


# Device telemetry ----------------------------------------------------------------------------


async def telemetry_checks() -> list[HostCheck]:
    """Check that each telemetry source responds, and report its clock and units."""
    try:
        return await check_telemetry_sources(CoordinatorSettings().telemetry_file)
    except ValidationError as error:
        return [failed("telemetry", error)]
