"""Output of ``broadside`` without a command, with the current state and the next commands."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broadside.exchange.fabric import open_fabric
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.records import RunHeader
from broadside.exchange.version import version_text

# Maximum number of runs to count.
_COUNTED_MAX: Final = 1000


def welcome_lines() -> Sequence[str]:
    """Return three lines. No network is used and nothing is created.

    Raises:
        ExchangeError: The local store cannot be read.
    """
    store, commands = _state()
    return (
        f"Broadside {version_text()}, {store}",
        f"next: {commands}",
        "all commands: `broadside --help`; one command: `broadside COMMAND --help`",
    )


def _state() -> tuple[str, str]:
    """Return the store with its newest run, and the next commands."""
    if api := os.environ.get("BROADSIDE_API"):
        return f"coordinator {api}", "`broadside runs`, or open that address in a browser"
    settings = FabricSettings()
    if settings.fabric == "azure":
        queue = settings.servicebus_namespace or settings.servicebus_endpoint or "Service Bus"
        return f"on Azure: {queue}", "`broadside doctor`, then `broadside runs`"
    folder = f"in {settings.data_dir}"
    runs = _read_runs(settings.data_dir)
    if not runs:
        return (
            f"{folder}: no run yet",
            "`broadside demo`, a test with 60 agents and a firewall, in about a minute",
        )
    newest = runs[0]
    verdict = newest.outcome.verdict if newest.outcome else None
    commands = (
        "`broadside show last`, `broadside report last`" if verdict else "`broadside watch last`"
    )
    count = f"{len(runs)}{' or more' if len(runs) == _COUNTED_MAX else ''}"
    text = f"{count} run{'s' if len(runs) > 1 else ''}, the newest {newest.run_id}"
    return (
        f"{folder}: {text} ({verdict or 'no verdict yet'})",
        f"`broadside serve` (web page), {commands}",
    )


def _read_runs(data_dir: Path) -> Sequence[RunHeader]:
    """Return at most ``_COUNTED_MAX`` runs, newest first."""
    if not (data_dir / "private.sqlite3").exists():
        return ()

    async def read() -> Sequence[RunHeader]:
        fabric = open_fabric()
        try:
            runs: list[RunHeader] = []
            async for _, run in fabric.records.private.scan_runs():
                runs.append(run)
                if len(runs) == _COUNTED_MAX:
                    break
            return runs
        finally:
            await fabric.close()

    return asyncio.run(read())
