"""Backup made during a fault, with a check of the earlier runs in it."""

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from broadside.exchange.programs import module_command
from broadside.lab.serving import ServeProcess
from broadside.lab.site import sqlite_fabric

TAKES_S: Final = 60.0
# The maximum number of the newest runs that are recomputed.
RUNS_MAX: Final = 5


class BackupBeside:
    """Process of ``broadside backup`` beside the fleet, with a folder of the caller.

    The argument ``verdicts`` contains the summaries of the earlier runs by id.
    """

    def __init__(self, data_dir: Path, folder: Path, verdicts: dict[str, Any]) -> None:
        self._folder = folder
        self._file = folder / "backup.tar.gz"
        self._verdicts = verdicts
        self._said: str | None = None
        self._thread = threading.Thread(target=self._take, args=(data_dir,), daemon=True)

    def start(self) -> None:
        """Start the backup without waiting for its end."""
        self._thread.start()

    def _take(self, data_dir: Path) -> None:
        self._said = _broadside(data_dir, "backup", str(self._file))

    def broken(self) -> Iterator[str]:
        """Restore the backup and yield one line for each difference."""
        self._thread.join(TAKES_S)
        if self._said is not None:
            yield f"a backup beside the round was not taken: {self._said}"
            return
        data_dir = self._folder / "restored"
        if (text := _broadside(data_dir, "restore", str(self._file))) is not None:
            yield f"a backup that was taken in mid-round is not laid out: {text}"
            return
        with ServeProcess(sqlite_fabric(data_dir), self._folder) as restored:
            for run_id, summary in self._verdicts.items():
                if restored.get(f"/v1/runs/{run_id}/summary") != summary:
                    yield f"run {run_id} has another summary in the backup"
                elif not (restored.get(f"/v1/runs/{run_id}/recomputed") or {}).get("equal"):
                    yield f"run {run_id} does not recompute from the backup"


def verdicts_of(coordinator: ServeProcess) -> dict[str, Any]:
    """Return the summaries of the newest finished runs by id."""
    runs = [run["run_id"] for run in coordinator.get(f"/v1/runs?limit={RUNS_MAX}") or ()]
    summaries = {run_id: coordinator.get(f"/v1/runs/{run_id}/summary") for run_id in runs}
    return {run_id: summary for run_id, summary in summaries.items() if summary is not None}


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder for a backup and its restored data."""
    return tempfile.TemporaryDirectory(prefix="broadside-backup-")


def _broadside(data_dir: Path, *words: str) -> str | None:
    """Run a command on a store, and return its error text, or None on success."""
    ran = subprocess.run(
        module_command("broadside.coordinator", *words),
        env={**os.environ, **sqlite_fabric(data_dir)},
        capture_output=True,
        text=True,
        timeout=TAKES_S,
        check=False,
    )
    return None if ran.returncode == 0 else f"exit code {ran.returncode}: {ran.stderr[-300:]}"
