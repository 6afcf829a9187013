"""Tests for scheduled backups, backup records and restore drills."""

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from typer.testing import CliRunner

from broadside.coordinator import backups
from broadside.coordinator.backups import (
    BackupKind,
    BackupRecord,
    ScheduledBackups,
    read_backup_records,
    save_failure,
    save_success,
)
from broadside.coordinator.cli import app, doctor
from broadside.coordinator.cli.doctor import backup_checks
from broadside.coordinator.cli.service_commands import _remove_leftovers
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.exchange.checks import HostCheck
from broadside.exchange.embedded.backup import back_up, restore
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Table
from tests.compat.read import FIXTURES

NOW = datetime(2026, 11, 26, 21, tzinfo=UTC)
DAY = timedelta(days=1)
# This backup has many different runs.
WRITTEN = FIXTURES / "0.9.0" / "backup.tar.gz"

T = TypeVar("T")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the environment for a coordinator with a store and a backup folder."""
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("BROADSIDE_BACKUP_DIR", str(tmp_path / "backups"))
    monkeypatch.setenv("BROADSIDE_BACKUP_KEEP_COUNT", "2")
    return tmp_path / "data"


def on_fabric(data: Path, work: Callable[[Fabric], Awaitable[T]]) -> T:
    async def done() -> T:
        fabric = open_fabric(FabricSettings(data_dir=data))
        try:
            return await work(fabric)
        finally:
            await fabric.close()

    return asyncio.run(done())


def record_of(data: Path, kind: BackupKind) -> BackupRecord | None:
    return on_fabric(data, lambda fabric: read_backup_records(fabric.private)).get(kind)


def broadside(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("record", "is_due"),
    [
        (None, True),
        (BackupRecord(ended_at=NOW - DAY / 2, succeeded_at=NOW - DAY / 2), False),
        (BackupRecord(ended_at=NOW - DAY, succeeded_at=NOW - DAY), True),
        (BackupRecord(ended_at=NOW - timedelta(minutes=59), error="disk full"), False),
        (BackupRecord(ended_at=NOW - timedelta(minutes=61), error="disk full"), True),
        # This can happen if the clock was set back.
        (BackupRecord(ended_at=NOW + DAY, succeeded_at=NOW + DAY), True),
    ],
)
def test_backup_is_due_after_interval_or_failure(
    record: BackupRecord | None, is_due: bool, data: Path
) -> None:
    async def check_due(fabric: Fabric) -> bool:
        return ScheduledBackups(fabric.private, CoordinatorSettings(), lambda: NOW)._is_due(record)

    assert on_fabric(data, check_due) is is_due


def test_drill_recomputes_verdicts_of_newest_runs(data: Path) -> None:
    restore(WRITTEN, data)
    assert broadside("backup")[0] == 0
    code, output = broadside("restore", "--drill")
    assert code == 0, output
    assert re.search(r"can be restored; \d\d verdicts were recomputed", output), output
    assert len(list((data.parent / "backups").iterdir())) == 1, "drill left files"
    record = record_of(data, BackupKind.DRILL)
    assert record is not None
    assert record.error is None


def test_drill_fails_without_the_evidence_of_a_verdict(data: Path) -> None:
    """The checksums in the backup are correct, but there is no evidence."""
    restore(WRITTEN, data)
    restore(WRITTEN, damaged := data.parent / "damaged")
    with closing(sqlite3.connect(damaged / "results.sqlite3")) as database:
        database.execute("DELETE FROM entity WHERE partition_key LIKE 'burst.%'")
        database.commit()
    back_up(damaged, data.parent / "file")
    code, output = broadside("restore", str(data.parent / "file"), "--drill")
    assert code == 4, output
    record = record_of(data, BackupKind.DRILL)
    assert record is not None
    assert "recomputed verdicts differ" in (record.error or "")


def test_failed_drill_without_a_backup_is_recorded(data: Path) -> None:
    on_fabric(data, lambda fabric: save_failure(fabric.private, BackupKind.BACKUP, "x", NOW))
    code, output = broadside("restore", "--drill")
    assert code == 4
    assert "no backup" in output
    code, output = broadside("restore", str(data / "private.sqlite3"), "--drill")
    assert code == 4
    record = record_of(data, BackupKind.DRILL)
    assert record is not None
    assert "a SQLite database" in (record.error or "")


@pytest.mark.parametrize(
    ("age", "error", "ok", "message"),
    [
        (timedelta(hours=30), None, True, "30.0 h old"),
        (3 * DAY, None, False, "3.0 days old"),
        (timedelta(hours=1), "disk full", False, "the last attempt failed: disk full"),
    ],
)
def test_doctor_reports_age_and_result_of_last_backup(
    data: Path, age: timedelta, error: str | None, ok: bool, message: str
) -> None:
    at = utc_now() - age

    async def run_checks(fabric: Fabric) -> list[HostCheck]:
        table: Table = fabric.private
        await save_success(table, BackupKind.BACKUP, Path(__file__), began_at=at, now=at)
        if error is not None:
            await save_failure(table, BackupKind.BACKUP, error, utc_now())
        return await backup_checks(fabric)

    backup, drill = on_fabric(data, run_checks)
    assert (backup.ok, backup.required) == (ok, True)
    assert message in backup.detail
    assert (drill.ok, drill.required, drill.detail) == (False, False, "none yet")


def test_start_removes_leftovers_of_killed_backups(data: Path) -> None:
    folder = data.parent / "backups"
    for leftover in (folder / ".backup-a", folder / ".drill-b", data.parent / ".restore-c"):
        leftover.mkdir(parents=True)
        (leftover / "private.sqlite3").touch()
    _remove_leftovers(data, folder)
    assert [path for path in data.parent.rglob("*") if path.name.startswith(".")] == []


def test_doctor_runs_backup_checks() -> None:
    """Backups are checked when using an embedded store."""
    assert "backup_checks(fabric)" in Path(doctor.__file__).read_text("utf-8")
    assert backups.RETRY < DAY
