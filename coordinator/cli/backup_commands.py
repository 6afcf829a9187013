"""The ``broadside backup`` and ``broadside restore`` commands for a local store."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from datetime import datetime
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
from broadside.coordinator.cli.exit_codes import exit_usage, exit_with_error
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core import formatting
from broadside.exchange.embedded.backup import (
    BackupUnusable,
    back_up,
    backup_bytes,
    unpacked_backup,
)
from broadside.exchange.embedded.backup import restore as unpack_backup
from broadside.exchange.fabric import Fabric, open_fabric
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeError, Table

# A backup should not take a core from the fleet.
_NICENESS: Final = 10
# Number of the newest runs whose verdicts a drill computes again.
_DRILL_RUNS_COUNT: Final = 20


def backup(
    file: Annotated[Path | None, typer.Argument(metavar="FILE")] = None,
) -> None:
    """Copy the local store into one file.

    A running coordinator is not interrupted.

    Args:
        file: New file, which will contain keys; default: a new file in BROADSIDE_BACKUP_DIR, where
            old files are removed.
    """
    _prepare_process()
    settings, started_at = CoordinatorSettings(), utc_now()
    folder = settings.backup_dir if file is None else None
    if file is None:
        if folder is None:
            exit_usage("FILE: missing; give a file, or set BROADSIDE_BACKUP_DIR")
        file = new_backup_file(folder, started_at)
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data_dir = FabricSettings().data_dir
        with show_progress("copying and packing", backup_bytes(data_dir)) as advance:
            names = back_up(data_dir, file, advance)
        if folder is not None:
            remove_old_files(folder, settings.backup_keep_count)
    except (BackupUnusable, OSError) as error:
        _fail(BackupKind.BACKUP, str(error))
    _record_success(BackupKind.BACKUP, file, started_at)
    typer.echo(f"{file}: {formatting.size(file.stat().st_size)}, {', '.join(names)}", err=True)


def restore(
    file: Annotated[Path | None, typer.Argument(metavar="FILE")] = None,
    drill: Annotated[bool, typer.Option("--drill")] = False,
) -> None:
    """Restore a backup, or test it.

    BROADSIDE_DATA_DIR needs to be empty or must not exist.

    Args:
        file: File of `backup`; default with --drill: the newest in BROADSIDE_BACKUP_DIR.
        drill: Only test the backup: restore a copy, check it, compute its newest verdicts again,
            and remove the copy.
    """
    data_dir = FabricSettings().data_dir
    _prepare_process()
    if drill:
        _drill(file)
        return
    if file is None:
        exit_usage("FILE: missing; give the backup to restore")
    try:
        with show_progress("unpacking and checking", _size(file)) as advance:
            names = unpack_backup(file, data_dir, advance)
    except (BackupUnusable, OSError) as error:
        exit_with_error(str(error))
    typer.echo(f"{data_dir}: {', '.join(names)}", err=True)


def _drill(file: Path | None) -> None:
    """Restore a backup into a temporary folder, and read it as a coordinator does."""
    started_at = utc_now()
    if file is None:
        folder = CoordinatorSettings().backup_dir
        newest = [] if folder is None else scheduled_files(folder)
        if not newest:
            _fail(BackupKind.DRILL, "no backup in BROADSIDE_BACKUP_DIR; give a FILE")
        file = newest[0]
    try:
        with (
            show_progress("unpacking and checking", _size(file)) as advance,
            unpacked_backup(file, advance) as data_dir,
        ):
            result = asyncio.run(_check_copy(data_dir))
    except (BackupUnusable, OSError, ExchangeError) as error:
        _fail(BackupKind.DRILL, f"drill of {file}: {error}")
    _record_success(BackupKind.DRILL, file, started_at)
    typer.echo(f"{file}: can be restored; {result}", err=True)


def _size(file: Path) -> int | None:
    """Return the size of a file in bytes, or None if it cannot be read."""
    return file.stat().st_size if file.is_file() else None


async def _check_copy(data_dir: Path) -> str:
    """Read all maintained rows, and compute the newest verdicts again.

    Raises:
        BackupUnusable: A row cannot be read, or a verdict differs.
        ExchangeError: The copy cannot be opened.
    """
    from broadside.coordinator.cli.doctor import rows_check

    async with _embedded_fabric(data_dir) as fabric:
        rows = await rows_check(fabric)
        if not rows.ok:
            raise BackupUnusable(f"rows: {rows.detail}")
        verdicts = await _recompute_verdicts(fabric)
    changed = {run_id: again for run_id, (stored, again) in verdicts.items() if stored != again}
    if changed and changed != await _live_verdicts(changed):
        raise BackupUnusable(f"recomputed verdicts differ from the stored ones: {changed}")
    result = f"{len(verdicts)} verdicts were recomputed"
    return result + f", {len(changed)} differ because this version has other rules" * bool(changed)


@contextlib.asynccontextmanager
async def _embedded_fabric(data_dir: Path) -> AsyncIterator[Fabric]:
    fabric = open_fabric(
        FabricSettings().model_copy(update={"fabric": "embedded", "data_dir": data_dir})
    )
    try:
        yield fabric
    finally:
        await fabric.close()


def _has_store() -> bool:
    return (FabricSettings().data_dir / "private.sqlite3").exists()


async def _live_verdicts(run_ids: Collection[str]) -> Mapping[str, str]:
    """Return the verdicts that this version computes from the live store.

    The rules can change between versions, so a difference from the stored verdict can have this
    cause.
    """
    if not _has_store():
        return {}
    async with _embedded_fabric(FabricSettings().data_dir) as fabric:
        verdicts = await _recompute_verdicts(fabric)
    return {run_id: again for run_id, (_, again) in verdicts.items() if run_id in run_ids}


async def _recompute_verdicts(fabric: Fabric) -> Mapping[str, tuple[str, str]]:
    """Return stored and recomputed verdict by run id, for the newest finished runs."""
    from broadside.coordinator.runs.coordinator import Coordinator

    coordinator = Coordinator(fabric)
    verdicts: dict[str, tuple[str, str]] = {}
    async for header in fabric.records.private.list_runs(limit=_DRILL_RUNS_COUNT):
        stored = await coordinator.stored.summary(header.run_id)
        again = None if stored is None else await coordinator.recompute(header.run_id)
        if stored is not None and again is not None:
            verdicts[header.run_id] = (stored.verdict.value, again.verdict.value)
    return verdicts


def _fail(kind: BackupKind, error: str) -> NoReturn:
    """Record a failed attempt and exit."""
    _record(lambda table: save_failure(table, kind, error, utc_now()))
    exit_with_error(error)


def _record_success(kind: BackupKind, file: Path, started_at: datetime) -> None:
    _record(lambda table: save_success(table, kind, file, began_at=started_at, now=utc_now()))


def _record(save: Callable[[Table], Awaitable[None]]) -> None:
    """Store a record if there is a store. A failure to write it is only a warning."""
    if not _has_store():
        return

    async def saved() -> None:
        async with _embedded_fabric(FabricSettings().data_dir) as fabric:
            await save(fabric.private)

    try:
        asyncio.run(saved())
    except ExchangeError as error:
        typer.echo(f"warning: the result is not recorded: {error}", err=True)


def _prepare_process() -> None:
    """Remove the temporary copies, which hold keys, on SIGTERM and SIGHUP. Lower the priority."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
