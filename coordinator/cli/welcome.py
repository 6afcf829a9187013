"""Output for ``broadside`` without a command, which shows the current state and what to do next."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broadside.exchange.fabric import Fabric, open_fabric
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.records import RunHeader
from broadside.exchange.version import version_text

# Maximum number of runs to count.
_COUNTED_MAX: Final = 1000


def welcome() -> Sequence[str]:
    """Return three lines. No network is used and nothing is created.

    Raises:
        ExchangeError: The local store cannot be read.
    """
    here, then = _standing()
    return (
        f"Broadside {version_text()}, {here}",
        f"next: {then}",
        "all commands: `broadside --help`; one of them: `broadside COMMAND --help`",
    )


def _standing() -> tuple[str, str]:
    """Return where the data is and which commands to run next."""
    if api := os.environ.get("BROADSIDE_API"):
        return f"at the coordinator {api}", "`broadside runs`, or open that address in a browser"
    settings = FabricSettings()
    if settings.fabric == "azure":
        queue = settings.servicebus_namespace or settings.servicebus_endpoint or "Service Bus"
        return f"on Azure: {queue}", "`broadside doctor`, then `broadside runs`"
    place = f"in {settings.data_dir}"
    runs = _runs(settings.data_dir)
    if not runs:
        return (
            f"{place}: no run yet",
            "`broadside demo`: a firewall, 60 agents and a verdict in about a minute",
        )
    newest = runs[0]
    told = newest.outcome.verdict if newest.outcome else None
    count = f"{len(runs)}{' or more' if len(runs) == _COUNTED_MAX else ''}"
    then = "`broadside serve` (the page), `broadside show last`, `broadside report last`"
    if told is None:
        then = "`broadside serve` (the page), `broadside watch last`"
    newest_of = f"{count} run{'s' if len(runs) > 1 else ''}, the newest {newest.run_id}"
    return f"{place}: {newest_of} ({told or 'no verdict yet'})", then


def _runs(data_dir: Path) -> Sequence[RunHeader]:
    """Return at most ``_COUNTED_MAX`` runs, newest first."""
    if not (data_dir / "private.sqlite3").exists():
        return ()

    async def read(fabric: Fabric) -> Sequence[RunHeader]:
        try:
            found: list[RunHeader] = []
            async for _, run in fabric.records.private.scan_runs():
                found.append(run)
                if len(found) == _COUNTED_MAX:
                    break
            return found
        finally:
            await fabric.close()

    return asyncio.run(read(open_fabric()))
