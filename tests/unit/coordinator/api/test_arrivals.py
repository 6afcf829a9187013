"""Tests for the event loop lag when large or invalid bodies arrive."""

import asyncio
import base64
import contextlib
import gc
import json
import struct
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.api.app import create_app
from broadside.coordinator.api.import_routes import INTERVALS_MAX_COUNT, ImportLimiter
from broadside.coordinator.auth.principal import ANYBODY, Principal
from broadside.coordinator.loop_lag import LoopLag
from broadside.coordinator.process_memory import collect_rarely
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.chunks import (
    check_intervals,
    count_rows,
    last_end_s,
    pack,
    pack_intervals,
    sum_intervals,
    unpack_intervals,
)
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Interval
from broadside.exchange.ports import RecordUnreadable
from tests.unit.exchange.test_chunks import intervals

# A unit is about 10 ms of CPU time.
LAG_MAX_UNITS = 40.0
# This is the number of rows in the largest chunk.
CLAIMED_COUNT = 1_000_000
COLUMNS = {"gap_us": 0, "span_us": 1_000_000, "bytes": 1_000, "omitted": 0}
UNKNOWN = ("retransmits", "rtt_us", "cwnd", "packets", "lost", "jitter_ns")


def claiming(rows_count: int, header: bytes | None = None) -> str:
    """Return a chunk of constant columns, which is compressed to a few bytes."""
    described: list[list[Any]] = [[name, 0, 0, 0, low, 1, []] for name, low in COLUMNS.items()]
    described += [[name] for name in UNKNOWN]
    packed = zlib.compress(header or json.dumps([rows_count, described]).encode())
    body = struct.pack("<H", len(packed)) + packed
    return base64.b64encode(b"BSC" + struct.pack("<BI", 1, zlib.crc32(body)) + body).decode()


def claims(rows_count: int) -> list[str]:
    """Return chunks which claim to have this number of rows in total."""
    complete, rest = divmod(rows_count, CLAIMED_COUNT)
    return [claiming(CLAIMED_COUNT)] * complete + [claiming(rest)]


def recordings(*chunks: str, **more: Any) -> dict[str, Any]:
    return {
        "recordings": [
            {
                "file": f"{number}.json",
                "state": "measured",
                "started_at": "2026-11-26T00:00:00Z",
                "packed": {"up": chunk},
                **more,
            }
            for number, chunk in enumerate(chunks)
        ]
    }


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "row_number": number,
        "client": f"c{number % 100}",
        "started_at": "2026-11-26T00:00:00Z",
        "duration_s": 10,
        "sent_bits_per_second": 1e9,
        "received_bits_per_second": 1e9,
        **more,
    }


def table(rows: list[Any], **more: Any) -> dict[str, Any]:
    return {"source": "a.csv", "rows": rows, **more}


EMPTY: dict[str, Any] = {}
BODIES: dict[str, tuple[str, Callable[[], Any]]] = {
    "a claim of twelve days": ("/v1/imports/iperf3", lambda: recordings(claiming(CLAIMED_COUNT))),
    "claims just over": (
        "/v1/imports/iperf3",
        lambda: recordings(*claims(INTERVALS_MAX_COUNT + 1)),
    ),
    "many claims": (
        "/v1/imports/iperf3",
        lambda: recordings(*[claiming(INTERVALS_MAX_COUNT // 1000)] * 1001),
    ),
    "a header that unfolds": (
        "/v1/imports/iperf3",
        lambda: recordings(*[claiming(0, b"[0," + b"[]," * 300_000 + b"[]]")] * 100),
    ),
    "wrong rows": ("/v1/imports/original", lambda: table([EMPTY] * 100_000)),
    "rows of a wrong type": ("/v1/imports/original", lambda: table([[]] * 1_000_000)),
    "rows of unknown fields": (
        "/v1/imports/original",
        lambda: table([row(1, **{f"x{n}": 1 for n in range(200)})] * 10_000),
    ),
    "rows that cannot be": (
        "/v1/imports/original",
        lambda: table([row(n + 2, sent_bits_per_second=-1.0) for n in range(100_000)]),
    ),
    "wrong points": (
        "/v1/imports/original",
        lambda: table([row(2)], metric=[EMPTY] * 100_000),
    ),
    "labels": (
        "/v1/imports/original",
        lambda: table([row(2)], labels={f"a{n}": "b" for n in range(300_000)}),
    ),
    "notes": ("/v1/imports/original", lambda: table([row(2)], notes=[EMPTY] * 300_000)),
    "names of an import": (
        "/v1/imports/iperf3",
        lambda: recordings(claiming(1)) | {f"a{n}": 1 for n in range(300_000)},
    ),
    "a report's flows": (
        "/v1/imports/iperf3",
        lambda: {"recordings": [{"file": "a", "report": {"flows": [EMPTY] * 300_000}}]},
    ),
    "objects": ("/v1/runs", lambda: {f"a{n}": EMPTY for n in range(60_000)}),
    "names": ("/v1/runs", lambda: {f"a{n}": 1 for n in range(19_000)}),
    "list": ("/v1/runs", lambda: {"scenario": [EMPTY] * 19_000}),
}


@pytest.fixture
def collected_as_in_a_coordinator() -> Iterator[None]:
    """Use the garbage collection of a coordinator because a full collection is slow."""
    before = gc.get_threshold()
    collect_rarely()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


async def lag_of(work: Callable[[], Awaitable[httpx.Response]]) -> tuple[httpx.Response, float]:
    """Return the response and the longest lag, in units of a fixed calculation.

    Both are measured in CPU time, so they do not depend on the load on the machine.
    """
    lag = LoopLag(time.process_time)
    watching = asyncio.create_task(lag.watch())
    try:
        answer = await work()
        await asyncio.sleep(0.2)
    finally:
        watching.cancel()
    assert lag.longest_s is not None
    return answer, lag.longest_s / max(unit_s() for _ in range(5))


def unit_s() -> float:
    """Return the CPU time of a fixed calculation, which other programs on the core prolong."""
    began_s = time.process_time()
    sum(range(1_000_000))
    return time.process_time() - began_s


@contextlib.asynccontextmanager
async def caller(fabric: Fabric) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, timeout=600
    ) as client:
        # Send a first request, as it is slow.
        await client.post("/v1/imports/iperf3", content=b"{}")
        yield client


@pytest.mark.usefixtures("collected_as_in_a_coordinator")
@pytest.mark.parametrize("name", BODIES)
async def test_rejected_body_does_not_block_the_loop(fabric: Fabric, name: str) -> None:
    path, body = BODIES[name]
    content = json.dumps(body()).encode()
    async with caller(fabric) as client:
        answer, lag = await lag_of(lambda: client.post(path, content=content))
    assert answer.status_code in (413, 422), answer.text[:300]
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert len(answer.content) < 200_000
    assert lag < LAG_MAX_UNITS


@pytest.mark.usefixtures("collected_as_in_a_coordinator")
async def test_large_import_does_not_block_the_loop(fabric: Fabric) -> None:
    """The import has 20 files and each file has 2,000 seconds."""
    seconds = [
        Interval(start_s=n, end_s=n + 1, transferred_bytes=1_000_000 + n % 7) for n in range(2_000)
    ]
    chunk = base64.b64encode(pack_intervals(seconds)).decode()
    content = json.dumps(recordings(*[chunk] * 20, side="client", first_data_at_s=1.7e9)).encode()
    async with caller(fabric) as client:
        answer, lag = await lag_of(lambda: client.post("/v1/imports/iperf3", content=content))
    assert answer.status_code == 201, answer.text[:300]
    assert lag < LAG_MAX_UNITS


def test_counting_rows_of_a_chunk_needs_little_memory() -> None:
    chunk = base64.b64decode(claiming(CLAIMED_COUNT))
    tracemalloc.start()
    try:
        assert count_rows(chunk) == CLAIMED_COUNT
        check_intervals(chunk)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < CLAIMED_COUNT / 10


@given(st.lists(intervals(), max_size=10))
def test_chunk_totals_match_its_intervals(given_intervals: list[Interval]) -> None:
    chunk = pack_intervals(given_intervals)
    counted = [interval for interval in given_intervals if not interval.omitted]
    check_intervals(chunk)
    assert count_rows(chunk) == len(given_intervals)
    assert last_end_s(chunk) == max((interval.end_s for interval in given_intervals), default=0.0)
    assert sum_intervals(chunk) == (
        sum(interval.transferred_bytes for interval in counted),
        sum(interval.end_s - interval.start_s for interval in counted),
    )


@pytest.mark.parametrize("name", [*COLUMNS, *UNKNOWN])
@pytest.mark.parametrize("how", ["absent", "unknown", "in part"])
def test_check_rejects_exactly_the_unreadable_chunks(name: str, how: str) -> None:
    columns: dict[str, list[int | None]] = {column: [1, 2, 3] for column in (*COLUMNS, *UNKNOWN)}
    columns[name] = [None, 2, 3] if how == "in part" else [None] * 3
    if how == "absent":
        del columns[name]
    refusals = []
    for read in (check_intervals, unpack_intervals):
        try:
            read(pack(columns))
        except RecordUnreadable as error:
            refusals.append(str(error))
        else:
            refusals.append("")
    assert bool(refusals[0]) == bool(refusals[1])
    assert (name in refusals[0]) == (how == "absent" or name in COLUMNS)


async def test_caller_runs_one_import_at_a_time_without_delay_of_others() -> None:
    turns, order = ImportLimiter(), []
    mine, theirs = (replace(ANYBODY, key=key) for key in ("mine", "theirs"))
    release = asyncio.Event()

    async def import_for(principal: Principal, name: str, *, waits: bool) -> None:
        async with turns.take(principal):
            order.append(name)
            if waits:
                await release.wait()

    first = asyncio.create_task(import_for(mine, "first", waits=True))
    await asyncio.sleep(0)
    second = asyncio.create_task(import_for(mine, "second", waits=False))
    await asyncio.wait_for(import_for(theirs, "theirs", waits=False), 10)
    assert order == ["first", "theirs"]
    release.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    assert order == ["first", "theirs", "second"]


async def test_invalid_row_yields_errors_of_that_row_only(fabric: Fabric) -> None:
    async with caller(fabric) as client:
        body = table([{"row_number": 2}])
        answer = await client.post("/v1/imports/original", json=body)
    assert {error["field"].rpartition(".")[0] for error in answer.json()["errors"]} == {
        "body.rows.0"
    }
