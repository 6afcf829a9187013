"""Tests for metrics in the Prometheus format."""

from broadside.coordinator.backups import (
    BackupKind,
    BackupRecord,
)
from broadside.coordinator.views.prometheus_metrics import Snapshot, _backups
from tests.unit.coordinator.test_backups import DAY, NOW


def test_backup_metrics_have_age_and_result() -> None:
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
