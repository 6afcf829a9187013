"""The ``broadside backup`` and ``broadside restore`` commands for an embedded store."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from broadside.coordinator.backups import (
    BackupKind,
    new_backup_file,
    remove_old_files,
    save_failure,
    save_success,
    scheduled_files,
)
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core import formatting
from broadside.exchange.embedded.backup import BackupUnusable, back_up, unpacked_backup
from broadside.exchange.embedded.backup import restore as lay_out
from broadside.exchange.fabric import Fabric, open_fabric
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.ports import ExchangeError, Table

# Niceness to use, so that a backup does not take a core from the fleet.
NICENESS: Final = 10
# How many of the newest runs a drill uses to compute verdicts again.
DRILL_RUNS_COUNT: Final = 20


def backup(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="a new file; it will hold keys. Default: a dated one in BROADSIDE_BACKUP_DIR, "
            "where old ones are removed",
        ),
    ] = None,
) -> None:
    """Copy all that the coordinator stores into one file, also while it is at work."""
    _end_in_order()
    settings, began_at = CoordinatorSettings(), datetime.now(UTC)
    folder = settings.backup_dir if file is None else None
    if file is None:
        if folder is None:
            stop("FILE: name one, or set BROADSIDE_BACKUP_DIR", Exit.USAGE)
        file = new_backup_file(folder, began_at)
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = back_up(FabricSettings().data_dir, file)
        if folder is not None:
            remove_old_files(folder, settings.backup_keep_count)
    except (BackupUnusable, OSError) as error:
        _fail(BackupKind.BACKUP, str(error))
    _note(
        lambda table: save_success(
            table, BackupKind.BACKUP, file, began_at=began_at, now=datetime.now(UTC)
        )
    )
    typer.echo(f"{file}: {formatting.size(file.stat().st_size)}, {', '.join(names)}", err=True)


def restore(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="what `backup` wrote; with --drill by default the newest in BROADSIDE_BACKUP_DIR",
        ),
    ] = None,
    drill: Annotated[
        bool,
        typer.Option(
            "--drill",
            help="prove that FILE can be restored: unpack it beside itself, verify it, compute its "
            "newest verdicts again, and remove the copy; the store is not touched",
        ),
    ] = False,
) -> None:
    """Lay a backup out as BROADSIDE_DATA_DIR, which must be new or empty."""
    data_dir = FabricSettings().data_dir
    _end_in_order()
    if drill:
        _drill(file)
        return
    if file is None:
        stop("FILE: name the backup to restore", Exit.USAGE)
    try:
        names = lay_out(file, data_dir)
    except (BackupUnusable, OSError) as error:
        stop(str(error), Exit.CANNOT_RUN)
    typer.echo(f"{data_dir}: {', '.join(names)}", err=True)


def _drill(file: Path | None) -> None:
    """Restore a backup into a temporary folder and read it as a coordinator does."""
    began_at = datetime.now(UTC)
    if file is None:
        folder = CoordinatorSettings().backup_dir
        newest = [] if folder is None else scheduled_files(folder)
        if not newest:
            _fail(BackupKind.DRILL, "there is no backup in BROADSIDE_BACKUP_DIR; name a FILE")
        file = newest[0]
    try:
        with unpacked_backup(file) as data_dir:
            told = asyncio.run(_read_as_a_coordinator(data_dir))
    except (BackupUnusable, OSError, ExchangeError) as error:
        _fail(BackupKind.DRILL, f"drill of {file}: {error}")
    _note(
        lambda table: save_success(
            table, BackupKind.DRILL, file, began_at=began_at, now=datetime.now(UTC)
        )
    )
    typer.echo(f"{file}: can be restored; {told}", err=True)


async def _read_as_a_coordinator(data_dir: Path) -> str:
    """Read all maintained rows, and compute the newest verdicts again.

    Raises:
        BackupUnusable: A row cannot be read, or a verdict differs.
        ExchangeError: The copy cannot be opened.
    """
    from broadside.coordinator.cli.doctor import rows_check

    fabric = open_fabric(FabricSettings(fabric="embedded", data_dir=data_dir))
    try:
        rows = await rows_check(fabric)
        if not rows.ok:
            raise BackupUnusable(f"rows: {rows.detail}")
        verdicts = await _recompute_verdicts(fabric)
    finally:
        await fabric.close()
    changed = {run_id: again for run_id, (stored, again) in verdicts.items() if stored != again}
    if changed and changed != await _verdicts_in_the_store(changed):
        raise BackupUnusable(f"verdicts computed again differ from the stored ones: {changed}")
    told = f"{len(verdicts)} verdicts were computed again"
    return told + f", {len(changed)} differ by this version's rules" * bool(changed)


async def _verdicts_in_the_store(run_ids: Collection[str]) -> Mapping[str, str]:
    """Return the verdicts that this version computes from the live store.

    The rules can change between versions, so a difference from the stored verdict can have this
    cause.
    """
    settings = FabricSettings()
    if not (settings.data_dir / "private.sqlite3").exists():
        return {}
    fabric = open_fabric(settings.model_copy(update={"fabric": "embedded"}))
    try:
        verdicts = await _recompute_verdicts(fabric)
    finally:
        await fabric.close()
    return {run_id: again for run_id, (_, again) in verdicts.items() if run_id in run_ids}


async def _recompute_verdicts(fabric: Fabric) -> Mapping[str, tuple[str, str]]:
    """Return stored and recomputed verdict by run id, for the newest finished runs."""
    from broadside.coordinator.runs.coordinator import Coordinator

    coordinator = Coordinator(fabric)
    verdicts: dict[str, tuple[str, str]] = {}
    async for header in fabric.records.private.list_runs(limit=DRILL_RUNS_COUNT):
        stored = await coordinator.stored.summary(header.run_id)
        again = None if stored is None else await coordinator.recompute(header.run_id)
        if stored is not None and again is not None:
            verdicts[header.run_id] = (stored.verdict.value, again.verdict.value)
    return verdicts


def _fail(kind: BackupKind, error: str) -> NoReturn:
    """Record a failed attempt and exit."""
    _note(lambda table: save_failure(table, kind, error, datetime.now(UTC)))
    stop(error, Exit.CANNOT_RUN)


def _note(save: Callable[[Table], Awaitable[None]]) -> None:
    """Store a record if there is a store. A failure to write it is only a warning."""
    settings = FabricSettings()
    if not (settings.data_dir / "private.sqlite3").exists():
        return

    async def noted() -> None:
        fabric = open_fabric(settings.model_copy(update={"fabric": "embedded"}))
        try:
            await save(fabric.private)
        finally:
            await fabric.close()

    try:
        asyncio.run(noted())
    except ExchangeError as error:
        typer.echo(f"warning: not recorded: {error}", err=True)


def _end_in_order() -> None:
    """Remove the temporary copies, which hold keys, on SIGTERM and SIGHUP. Lower the priority."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda ended_by, _: sys.exit(128 + ended_by))
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
