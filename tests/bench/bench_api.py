"""Measure reads of the API with 10,000 runs, and with a burst of 30 pairs x 1740 s.

To run it, use ``python -m tests.bench.bench_api``. The runs are listed by cursor. The application
runs in this process on an embedded fabric, without a network and with sign-in off.
"""

import argparse
import asyncio
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import httpx
import numpy as np

from broadside.coordinator.api.app import create_app
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Control
from tests.bench.stored_fleet import header_of
from tests.synthetic import START, Plant
from tests.synthetic_runs import store_run

LONG = Plant(pairs=30, bursts=1, burst_s=1740, period_s=1800)
PAGE = 500


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--reads", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(bench(Path(folder), arguments.runs, arguments.reads))


async def bench(folder: Path, runs_count: int, reads_count: int) -> None:
    fabric = open_fabric(FabricSettings(data_dir=folder / "data"))
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://bench") as http:
        await fill(fabric, runs_count)
        await list_all(http, runs_count)
        await read(http, f"/v1/aggregate over {runs_count} runs", "/v1/aggregate", 5)
        run_id = await store_run(fabric, "long", plant=LONG, created_at=START)
        series = f"/v1/runs/{run_id}/series"
        await read(http, "1 s series, 30 pairs x 1740 s, fleet, JSON", series, reads_count)
        csv = {"Accept": "text/csv"}
        await read(http, "the same as CSV", series, reads_count, csv)
        arrow = {"Accept": "application/vnd.apache.arrow.stream"}
        await read(http, "the same as Arrow", series, reads_count, arrow)
        pairs = f"{series}?of=pair"
        await read(http, "every pair's, 52,200 figures, JSON", pairs, max(5, reads_count // 10))
    await fabric.close()


async def fill(fabric: Fabric, count: int) -> None:
    """Store rows as ended runs leave them in the list."""
    for number in range(count):
        header = header_of(number, START - timedelta(minutes=number))
        control = Control(run_id=header.run_id, lease_until_at=header.created_at)
        await fabric.records.create_run(header, b"{}", control)


async def list_all(http: httpx.AsyncClient, count: int) -> None:
    """Read all runs page by page."""
    took_s: list[float] = []
    seen = 0
    path: str | None = f"/v1/runs?limit={PAGE}"
    while path is not None:
        began_s = time.perf_counter()
        answer = await http.get(path)
        took_s.append(time.perf_counter() - began_s)
        seen += len(answer.json())
        path = answer.links["next"]["url"] if "next" in answer.links else None
    assert seen == count, seen
    print_times(f"list {count} runs, a page of {PAGE}", took_s)
    print(f"{'all pages':<44} {sum(took_s):8.2f} s")


async def read(
    http: httpx.AsyncClient,
    what: str,
    path: str,
    count: int,
    headers: dict[str, str] | None = None,
) -> None:
    took_s: list[float] = []
    size = 0
    for _ in range(count):
        began_s = time.perf_counter()
        answer = await http.get(path, headers=headers)
        took_s.append(time.perf_counter() - began_s)
        assert answer.status_code == 200, answer.text
        size = len(answer.content)
    print_times(f"{what} ({size / 1000:.0f} kB)", took_s)


def print_times(what: str, took_s: list[float]) -> None:
    p50, p99 = np.percentile(took_s, [50, 99]) * 1e3
    print(f"{what:<60} p50 {p50:7.1f} ms  p99 {p99:7.1f} ms  ({len(took_s)} times)")


if __name__ == "__main__":
    main()
