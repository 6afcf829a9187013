"""Measure the CPU seconds to start a command, and compare them with a bare import.

To run it, use ``python -m tests.bench.bench_commands``. The values are the minimum over a few runs
in separate processes. The commands read one stored run of 30 pairs and four bursts on the embedded
fabric.
"""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.bench.limit_rows import Row, show
from tests.unit.coordinator.stored_run import store_run

RUNS_COUNT: Final = 3
LIMIT_CPU_S: Final = {"--help": 0.35, "runs": 0.9, "show last": 0.9}
AGENT_CPU_S: Final = {"embedded": 0.4, "azure": 0.9}
PEER: Final = "import fastapi"


def cpu_s(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the user and system CPU time of one run of a command."""
    before_s = _children_s()
    subprocess.run(argv, env={**os.environ, **env}, capture_output=True, check=False)
    return _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def argvs() -> dict[str, list[str]]:
    """Return the command lines by name, with :data:`PEER` first."""
    python = [sys.executable]
    by_name = {PEER: [*python, "-c", PEER]}
    for command in LIMIT_CPU_S:
        by_name[f"broadside {command}"] = [*python, "-m", "broadside.coordinator", *command.split()]
    by_name["an agent's imports, embedded fabric"] = [*python, "-c", "import broadside.agent.run"]
    azure = "import broadside.agent.run, broadside.exchange.azure.azure_fabric"
    by_name["an agent's imports, azure fabric"] = [*python, "-c", azure]
    return by_name


def rows() -> Iterator[Row]:
    """Yield each command and an agent's start, compared with importing the web framework."""
    started = argvs()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(stored(Path(folder)))
        env = {"BROADSIDE_DATA_DIR": folder}
        # The commands alternate, so that a short load by another process affects all of them.
        turns = [
            {name: cpu_s(argv, env) for name, argv in started.items()} for _ in range(RUNS_COUNT)
        ]
    peer_s, *took_s = (min(turn[name] for turn in turns) for name in started)
    limits_s = (*LIMIT_CPU_S.values(), *AGENT_CPU_S.values())
    for name, value, limit_s in zip([*started][1:], took_s, limits_s, strict=True):
        yield Row(name=name, value=value, unit="CPU-s", limit=limit_s, peer=PEER, peer_value=peer_s)


async def stored(folder: Path) -> None:
    fabric = open_fabric(FabricSettings(data_dir=folder))
    await store_run(fabric)
    await fabric.close()


if __name__ == "__main__":
    sys.exit(show(rows()))
