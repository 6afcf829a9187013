"""Prints what a command costs before it has done anything: CPU-seconds, beside a bare import.

Run: ``python -m tests.bench.bench_commands``. Each figure is the least of a few runs of a process
of its own. The commands read one stored run of 30 pairs and four bursts on the embedded fabric.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from exchange.fabric import FabricSettings, open_fabric
from tests.bench.rows import Row, show
from tests.unit.coordinator.stored_run import store_run

RUNS_COUNT: Final = 3
LIMIT_CPU_S: Final = {"--help": 0.35, "runs": 0.9, "show last": 0.9}
AGENT_CPU_S: Final = {"embedded": 0.4, "azure": 0.9}
PEER: Final = "import fastapi"


def cpu_s(argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    """The least CPU time, user and system, of a few runs."""
    taken = []
    for _ in range(RUNS_COUNT):
        before = os.times()
        subprocess.run(argv, env={**os.environ, **(env or {})}, capture_output=True, check=False)
        after = os.times()
        taken.append(
            after.children_user
            - before.children_user
            + after.children_system
            - before.children_system
        )
    return min(taken)


def rows() -> Iterator[Row]:
    """Each command, and an agent's start, beside importing the web framework alone."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_stored(Path(folder)))
        peer_s = cpu_s([sys.executable, "-c", PEER])

        def row(name: str, value: float, limit: float) -> Row:
            return Row(
                name=name, value=value, unit="CPU-s", limit=limit, peer=PEER, peer_value=peer_s
            )

        for command, limit_s in LIMIT_CPU_S.items():
            argv = [sys.executable, "-m", "coordinator", *command.split()]
            took_s = cpu_s(argv, {"BROADSIDE_DATA_DIR": folder})
            yield row(f"broadside {command}", took_s, limit_s)
        for fabric, limit_s in AGENT_CPU_S.items():
            code = "import agent.run"
            if fabric == "azure":
                code += ", exchange.azure.azure_fabric"
            took_s = cpu_s([sys.executable, "-c", code])
            yield row(f"an agent's imports, {fabric} fabric", took_s, limit_s)


async def _stored(folder: Path) -> None:
    fabric = open_fabric(FabricSettings(data_dir=folder))
    await store_run(fabric)
    await fabric.close()


if __name__ == "__main__":
    sys.exit(show(rows()))
