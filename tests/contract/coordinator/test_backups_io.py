"""Tests for backups that need processes, sockets or real time."""

import stat
from datetime import datetime
from pathlib import Path

import pytest

from broadside.coordinator.backups import (
    BackupKind,
    ScheduledBackups,
    new_backup_file,
    save_failure,
    save_success,
    scheduled_files,
)
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.fabric import Fabric
from broadside.exchange.outage_log import utc_now
from tests.unit.coordinator import test_backups
from tests.unit.coordinator.test_backups import DAY, NOW, on_fabric, record_of

# Fixtures.
data = test_backups.data


def test_scheduled_backup_is_recorded_and_old_files_are_removed(data: Path) -> None:
    folder = data.parent / "backups"

    async def scheduled(fabric: Fabric) -> None:
        await save_failure(fabric.private, BackupKind.BACKUP, "earlier", NOW)
        folder.mkdir(0o700)
        for age_days in (1, 2, 3):
            new_backup_file(folder, NOW - age_days * DAY).touch()
        (folder / "manual.tar.gz").touch()
        await ScheduledBackups(fabric.private, CoordinatorSettings(), backups_now)._back_up()

    def backups_now() -> datetime:
        return utc_now()

    on_fabric(data, scheduled)
    files = scheduled_files(folder)
    assert len(files) == 2
    assert (folder / "manual.tar.gz").exists(), "only scheduled backups are removed"
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    record = record_of(data, BackupKind.BACKUP)
    assert record is not None
    assert (record.error, record.file) == (None, str(files[0]))
    assert record.size_bytes == files[0].stat().st_size


def test_failed_backup_is_recorded_with_last_success(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(fabric: Fabric) -> None:
        await save_success(
            fabric.private, BackupKind.BACKUP, Path(__file__), began_at=NOW - DAY, now=NOW - DAY
        )

    on_fabric(data, first)
    (data.parent / "file").write_text("not a folder")
    monkeypatch.setenv("BROADSIDE_BACKUP_DIR", str(data.parent / "file"))

    async def scheduled(fabric: Fabric) -> None:
        await ScheduledBackups(fabric.private, CoordinatorSettings(), lambda: NOW)._back_up()

    on_fabric(data, scheduled)
    record = record_of(data, BackupKind.BACKUP)
    assert record is not None
    assert "exists" in (record.error or "")
    assert record.succeeded_at == NOW - DAY
