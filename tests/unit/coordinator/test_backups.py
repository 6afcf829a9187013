"""Scheduled backups: when one is due, what is on record of it, and what a restore drill proves."""

import asyncio
import re
import sqlite3
import stat
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
    new_backup_file,
    read_backup_records,
    save_failure,
    save_success,
    scheduled_files,
)
from broadside.coordinator.cli import app, doctor
from broadside.coordinator.cli.doctor import backup_checks
from broadside.coordinator.cli.service_commands import _remove_leftovers
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.views.prometheus_metrics import Snapshot, _backups
from broadside.exchange.checks import Check
from broadside.exchange.embedded.backup import back_up, restore
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.ports import Table
from tests.compat.read import FIXTURES

NOW = datetime(2026, 11, 26, 21, tzinfo=UTC)
DAY = timedelta(days=1)
WRITTEN = FIXTURES / "0.9.0" / "backup.tar.gz"  # real runs of every kind

T = TypeVar("T")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a coordinator with a store and a folder for backups."""
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


def broadside(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("record", "is_due"),
    [
        (None, True),
        (BackupRecord(ended_at=NOW - DAY / 2, succeeded_at=NOW - DAY / 2), False),
        (BackupRecord(ended_at=NOW - DAY, succeeded_at=NOW - DAY), True),
        (BackupRecord(ended_at=NOW - timedelta(minutes=59), error="disk full"), False),
        (BackupRecord(ended_at=NOW - timedelta(minutes=61), error="disk full"), True),
        (BackupRecord(ended_at=NOW + DAY, succeeded_at=NOW + DAY), True),  # a clock went back
    ],
)
def test_a_backup_is_due_after_its_interval_or_soon_after_a_failure(
    record: BackupRecord | None, is_due: bool, data: Path
) -> None:
    async def asked(fabric: Fabric) -> bool:
        return ScheduledBackups(fabric.private, CoordinatorSettings(), lambda: NOW)._is_due(record)

    assert on_fabric(data, asked) is is_due


def test_a_scheduled_backup_is_taken_recorded_and_old_ones_go(data: Path) -> None:
    folder = data.parent / "backups"

    async def scheduled(fabric: Fabric) -> None:
        await save_failure(fabric.private, BackupKind.BACKUP, "earlier", NOW)
        folder.mkdir(0o700)
        for age_days in (1, 2, 3):
            new_backup_file(folder, NOW - age_days * DAY).touch()
        (folder / "of-mine.tar.gz").touch()
        await ScheduledBackups(fabric.private, CoordinatorSettings(), backups_now)._back_up()

    def backups_now() -> datetime:
        return datetime.now(UTC)

    on_fabric(data, scheduled)
    files = scheduled_files(folder)
    assert len(files) == 2
    assert (folder / "of-mine.tar.gz").exists(), "only scheduled ones are removed"
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    record = record_of(data, BackupKind.BACKUP)
    assert record is not None
    assert (record.error, record.file) == (None, str(files[0]))
    assert record.size_bytes == files[0].stat().st_size


def test_a_backup_that_fails_is_on_record_and_keeps_the_last_success(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(fabric: Fabric) -> None:
        await save_success(
            fabric.private, BackupKind.BACKUP, Path(__file__), began_at=NOW - DAY, now=NOW - DAY
        )

    on_fabric(data, first)
    (data.parent / "file").write_text("in the way")
    monkeypatch.setenv("BROADSIDE_BACKUP_DIR", str(data.parent / "file"))

    async def scheduled(fabric: Fabric) -> None:
        await ScheduledBackups(fabric.private, CoordinatorSettings(), lambda: NOW)._back_up()

    on_fabric(data, scheduled)
    record = record_of(data, BackupKind.BACKUP)
    assert record is not None
    assert "exists" in (record.error or "")
    assert record.succeeded_at == NOW - DAY


def test_a_drill_computes_the_verdicts_of_the_newest_runs_again(data: Path) -> None:
    restore(WRITTEN, data)
    assert broadside("backup")[0] == 0
    code, reported = broadside("restore", "--drill")
    assert code == 0, reported
    assert re.search(r"can be restored; \d\d verdicts were recomputed", reported), reported
    assert len(list((data.parent / "backups").iterdir())) == 1, "nothing is left of it"
    record = record_of(data, BackupKind.DRILL)
    assert record is not None
    assert record.error is None


def test_a_drill_fails_where_a_verdict_cannot_be_computed_again(data: Path) -> None:
    """The evidence is not in the backup: its checksums are right all the same."""
    restore(WRITTEN, data)
    restore(WRITTEN, spoiled := data.parent / "spoiled")
    with closing(sqlite3.connect(spoiled / "results.sqlite3")) as database:
        database.execute("DELETE FROM entity WHERE partition_key LIKE 'burst.%'")
        database.commit()
    back_up(spoiled, data.parent / "file")
    code, reported = broadside("restore", str(data.parent / "file"), "--drill")
    assert code == 4, reported
    record = record_of(data, BackupKind.DRILL)
    assert record is not None
    assert "recomputed verdicts differ" in (record.error or "")


def test_a_drill_of_what_is_no_backup_fails_on_record(data: Path) -> None:
    on_fabric(data, lambda fabric: save_failure(fabric.private, BackupKind.BACKUP, "x", NOW))
    code, reported = broadside("restore", "--drill")
    assert code == 4
    assert "no backup" in reported
    code, reported = broadside("restore", str(data / "private.sqlite3"), "--drill")
    assert code == 4
    record = record_of(data, BackupKind.DRILL)
    assert record is not None
    assert "a SQLite database" in (record.error or "")


def test_metrics_have_age_and_result() -> None:
    failed = BackupRecord(ended_at=NOW, error="disk full", succeeded_at=NOW - DAY)
    never = BackupRecord(ended_at=NOW, error="disk full")
    shown = Snapshot(
        now=NOW, ticked_at=NOW, backups={BackupKind.BACKUP: failed, BackupKind.DRILL: never}
    )
    assert list(_backups(shown, DAY / 2)) == [
        ("broadside_backup_interval_seconds", (), 43_200.0),
        ("broadside_backup_age_seconds", (), 86_400.0),
        ("broadside_backup_failed", (), 1.0),
        ("broadside_restore_drill_failed", (), 1.0),
    ]
    assert list(_backups(Snapshot(now=NOW, ticked_at=NOW), None)) == []


@pytest.mark.parametrize(
    ("age", "error", "ok", "said"),
    [
        (timedelta(hours=30), None, True, "30.0 h old"),
        (3 * DAY, None, False, "3.0 days old"),
        (timedelta(hours=1), "disk full", False, "the last attempt failed: disk full"),
    ],
)
def test_doctor_says_how_old_the_last_backup_is_and_how_it_ended(
    data: Path, age: timedelta, error: str | None, ok: bool, said: str
) -> None:
    at = datetime.now(UTC) - age

    async def looked(fabric: Fabric) -> list[Check]:
        table: Table = fabric.private
        await save_success(table, BackupKind.BACKUP, Path(__file__), began_at=at, now=at)
        if error is not None:
            await save_failure(table, BackupKind.BACKUP, error, datetime.now(UTC))
        return await backup_checks(fabric)

    backup, drill = on_fabric(data, looked)
    assert (backup.ok, backup.required) == (ok, True)
    assert said in backup.detail
    assert (drill.ok, drill.required, drill.detail) == (False, False, "none yet")


def test_a_start_removes_what_killed_backups_and_restores_left(data: Path) -> None:
    folder = data.parent / "backups"
    for left in (folder / ".backup-a", folder / ".drill-b", data.parent / ".restore-c"):
        left.mkdir(parents=True)
        (left / "private.sqlite3").touch()
    _remove_leftovers(data, folder)
    assert [path for path in data.parent.rglob("*") if path.name.startswith(".")] == []


def test_doctor_looks_at_backups() -> None:
    """Among the checks of an embedded store, and not only by itself."""
    assert "backup_checks(fabric)" in Path(doctor.__file__).read_text("utf-8")
    assert backups.RETRY < DAY
