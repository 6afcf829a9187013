"""Report the files that are used to launch a run, to deliver a job and to close a run.

To run it, use ``python -m tests.bench.bench_ways``. The paths run once under Python's profiler on
the embedded fabric. The agent's path uses tables in memory. *Files* are our files with a function
that was called between the two ends. *Stays* is the number of transitions from one file to another.
*Climbs* are the pairs of files in which a lower layer called a higher one: exchange, core, device,
runs, API and CLI. The *path* is the list of files on the stack when the last function is reached.
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from broadside.coordinator.core.run_spec import RunSpec, due_at
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.synthetic import Plant
from tests.synthetic import fleet as planted
from tests.synthetic_runs import create_run
from tests.unit.agent.test_worker import Bench, due_in
from tests.unit.coordinator.presences import NOW, fleet
from tests.unit.coordinator.runs.test_closing import store_client, store_server

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("exchange", "agent", "coordinator/core", "coordinator/device", "coordinator/runs")


class PingMethod:
    """Record of the files entered during one path."""

    def __init__(self, title: str, far_end: str) -> None:
        self.title = title
        # Name of the last function of the path.
        self.far_end = far_end
        self.path: list[str] = []
        # Files in the order of first entry.
        self.files: dict[str, None] = {}
        self.climbs: set[tuple[str, str]] = set()
        self.stays_count = 0
        self._last = ""
        self._of: dict[CodeType, str | None] = {}

    def _file(self, code: CodeType) -> str | None:
        if code not in self._of:
            path = Path(code.co_filename).resolve()
            inside = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
            ours = inside.startswith(("agent/", "coordinator/", "exchange/"))
            self._of[code] = inside if ours and code.co_name != "<module>" else None
        return self._of[code]

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (file := self._file(frame.f_code)) is None:
            return
        self.files[file] = None
        self.stays_count += file != self._last
        self._last = file
        if frame.f_code.co_name == self.far_end:
            self.path = self._stack(frame)
        above = frame.f_back
        while above is not None and self._file(above.f_code) is None:
            above = above.f_back
        if above is not None:
            caller = self._file(above.f_code) or ""
            if rank(file) > rank(caller):
                self.climbs.add((caller, file))

    def _stack(self, frame: FrameType | None) -> list[str]:
        by_name: dict[str, None] = {}
        while frame is not None:
            if file := self._file(frame.f_code):
                by_name[file] = None
            frame = frame.f_back
        return [*reversed(by_name)]

    async def trace(self, work: Callable[[], Awaitable[object]]) -> None:
        # The profiler applies to threads that start later.
        threading.setprofile(self.see)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        sys.setprofile(self.see)
        try:
            await work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        print(
            f"{self.title}: {len(self.files)} files, {self.stays_count} stays, "
            f"{len(self.climbs)} climbs; path of {len(self.path)}: {' > '.join(self.path)}"
        )
        for file in self.files:
            print(f"  {file}")
        for caller, file in sorted(self.climbs):
            print(f"  climb: {caller} -> {file}")


def rank(file: str) -> int:
    return next((i for i, space in enumerate(ROOMS) if file.startswith(f"{space}/")), len(ROOMS))


async def main() -> None:
    """Run and print all three paths."""
    with tempfile.TemporaryDirectory() as place:
        fabric = open_fabric(FabricSettings(data_dir=Path(place)))
        for agent in fleet(2):
            await fabric.records.fleet.beat(agent)
        spec = RunSpec(scenario="smoke", pairs_count=2, burst_s=10, lead_s=30)
        coordinator = Coordinator(fabric, now=lambda: NOW)
        await PingMethod("launch to the queue", "send").trace(
            lambda: coordinator.launch(spec, by="bench")
        )

        made = planted(Plant(pairs=2, bursts=1, burst_s=10, device_counter=False))
        plan, (evidence,) = made.plan, made.evidence
        await create_run(fabric.records, plan)
        for pair in evidence.pairs:
            await store_client(fabric, plan, evidence.burst, pair)
            await store_server(fabric, pair)
        over_at = due_at(plan.bursts[0]) + timedelta(seconds=1)
        coordinator = Coordinator(fabric, now=lambda: over_at)
        await PingMethod("a burst's end to its verdict", "save_outcome").trace(
            lambda: coordinator.advance(plan.run_id)
        )
        await fabric.close()
    bench = Bench()
    body = due_in(-2).model_dump_json().encode()
    await PingMethod("a delivery to the table (of a job that came late)", "save_report").trace(
        lambda: bench.take(body)
    )


if __name__ == "__main__":
    asyncio.run(main())
