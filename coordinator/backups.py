"""Scheduled backups for an embedded store, and records about the last backup and restore drill."""

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.messages import Message, UtcDatetime, plain_text
from broadside.exchange.ports import ExchangeError, Table
from broadside.exchange.programs import module_command
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import BACKUPS

# Time to wait after a failed backup.
RETRY: Final = timedelta(hours=1)
# Time to wait between two checks if a backup is due.
LOOK_S: Final = 30.0
_ERROR_MAX_CHARS: Final = 300
_FILE: Final = re.compile(r"broadside-\d{8}T\d{6}Z\.tar\.gz")

log = logging.getLogger(__name__)


class BackupKind(StrEnum):
    """Backup record kind."""

    BACKUP = "backup"
    DRILL = "drill"


class BackupRecord(Message):
    """The last attempt of a kind, and the last one that succeeded."""

    ended_at: UtcDatetime
    # Error of the last attempt. None if it succeeded.
    error: str | None = None
    # None if no attempt has succeeded yet.
    succeeded_at: UtcDatetime | None = None
    # ``file``, ``size_bytes`` and ``duration_s`` describe the last successful attempt.
    file: str | None = None
    size_bytes: Annotated[int, Field(ge=0)] | None = None
    duration_s: Annotated[float, Field(ge=0)] | None = None


async def read_backup_records(table: Table) -> Mapping[BackupKind, BackupRecord]:
    """Read the backup records from the fabric's private table.

    Returns:
        The record of each kind. A kind without any attempt is left out.

    Raises:
        ExchangeError: The table cannot be read.
    """
    shelf = Collection(table, BACKUPS, BackupRecord)
    records = {kind: await shelf.read(kind) for kind in BackupKind}
    return {kind: record for kind, record in records.items() if record is not None}


async def save_success(
    table: Table, kind: BackupKind, file: Path, *, began_at: datetime, now: datetime
) -> None:
    """Record a successful attempt.

    Args:
        table: The fabric's private table, where the record should be stored.
        kind: Backup or restore drill.
        file: The backup file. Its size is recorded.
        began_at: Start time.
        now: End time.

    Raises:
        ExchangeError: The record cannot be stored.
    """
    record = BackupRecord(
        ended_at=now,
        succeeded_at=now,
        file=plain_text(str(file), _ERROR_MAX_CHARS),
        size_bytes=os.stat(file).st_size,  # noqa: PTH116 - once a backup, and no wait
        duration_s=max(0.0, (now - began_at).total_seconds()),
    )
    await Collection(table, BACKUPS, BackupRecord).put(kind, record)


async def save_failure(table: Table, kind: BackupKind, error: str, now: datetime) -> None:
    """Record a failed attempt and preserve the data about the last success.

    Args:
        table: The fabric's private table, where the record should be stored.
        kind: Backup or restore drill.
        error: One line. Longer texts are truncated.
        now: End time.

    Raises:
        ExchangeError: The record cannot be stored.
    """
    shelf = Collection(table, BACKUPS, BackupRecord)
    before = await shelf.read(kind) or BackupRecord(ended_at=now)
    update = {"ended_at": now, "error": plain_text(error, _ERROR_MAX_CHARS)}
    await shelf.put(kind, before.model_copy(update=update))


def new_backup_file(folder: Path, now: datetime) -> Path:
    """Return the path of a new scheduled backup.

    Args:
        folder: Folder of the scheduled backups.
        now: Time of the backup with a time zone. The file name has whole seconds in UTC.
    """
    return folder / f"broadside-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.tar.gz"


def scheduled_files(folder: Path) -> list[Path]:
    """Return the scheduled backups in a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _FILE.fullmatch(path.name)), reverse=True)


def remove_old_files(folder: Path, keep_count: int) -> None:
    """Remove all scheduled backups except the newest ``keep_count``.

    Args:
        folder: Folder of the scheduled backups. Other files in it are not removed.
        keep_count: Number of backups to keep.

    Raises:
        OSError: A file cannot be removed.
    """
    for path in scheduled_files(folder)[keep_count:]:
        path.unlink(missing_ok=True)


class ScheduledBackups:
    """Background service of the coordinator that takes a backup when one is due.

    The backup runs in a separate process with a lower priority. Compression uses one core for the
    whole backup, and the coordinator needs to renew its lease every few seconds.
    """

    def __init__(
        self, table: Table, settings: CoordinatorSettings, now: Callable[[], datetime]
    ) -> None:
        self._table = table
        self.interval = timedelta(hours=settings.backup_every_h)
        self._now = now

    async def run_forever(self, tick_s: float) -> None:
        """Take backups until cancelled."""
        while True:
            try:
                record = (await read_backup_records(self._table)).get(BackupKind.BACKUP)
                if self._is_due(record):
                    await self._back_up()
            except ExchangeError as error:
                log.warning("no backup: %s", error, extra={"action": "backup_failed"})
            await asyncio.sleep(max(LOOK_S, tick_s))

    def _is_due(self, record: BackupRecord | None) -> bool:
        if record is None:
            return True
        wait = self.interval if record.error is None else min(self.interval, RETRY)
        # If the clock was set back, we should not wait longer for the next backup.
        return not timedelta(0) <= self._now() - record.ended_at < wait

    async def _back_up(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *module_command("broadside.coordinator", "backup"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            # On SIGTERM the process removes its temporary copies, which contain keys.
            process.terminate()
            await process.wait()
            raise
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            error = lines[-1] if lines else f"exit code {process.returncode}"
            log.error("backup: %s", error, extra={"action": "backup_failed"})
            # The process records its own failure too, except when it was killed.
            await save_failure(self._table, BackupKind.BACKUP, error, self._now())
