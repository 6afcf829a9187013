"""Test that the backup check of the fault matrix can detect missing runs and changed verdicts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.lab.errors import LabBroken
from broadside.lab.serving import ServeProcess
from broadside.lab.site import sqlite_fabric
from tests.faults.round_backups import BackupBeside, verdicts_of
from tests.unit.coordinator.stored_run import store_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


async def stored(data_dir: Path) -> str:
    fabric = open_fabric(FabricSettings(data_dir=data_dir))
    try:
        return await store_run(fabric)
    finally:
        await fabric.close()


def test_compares_backup_with_earlier_verdicts(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    run_id = asyncio.run(stored(data_dir))
    with ServeProcess(sqlite_fabric(data_dir), tmp_path) as coordinator:
        verdicts = verdicts_of(coordinator)
        assert verdicts.keys() == {run_id}
        assert 10_000_000 < coordinator.peak_bytes < 400_000_000
        with pytest.raises(LabBroken, match="already running"):
            coordinator.start()
        before = coordinator.peak_bytes
        coordinator.kill()
        assert coordinator.peak_bytes >= before, "the peak must include killed processes"

    def problems(name: str, expected: dict[str, Any], data_dir: Path = data_dir) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        backup = BackupBeside(data_dir, folder, expected)
        backup.start()
        return list(backup.broken())

    # The stored summary was made without the rows, so recomputation leads to another one.
    assert problems("right", verdicts) == [f"run {run_id} does not recompute from the backup"]
    assert problems("no run before", {}) == []
    other = {run_id: verdicts[run_id] | {"verdict": "fail"}}
    assert problems("another verdict", other) == [f"run {run_id} has another summary in the backup"]
    [text] = problems("nothing", verdicts, tmp_path / "empty")
    assert text.startswith("a backup beside the round was not taken: exit code 4: ")
