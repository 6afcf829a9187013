"""Nothing that arrives blocks the event loop: its lag, measured while it arrives."""

import asyncio
import base64
import gc
import json
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from broadside.coordinator.api.app import create_app
from broadside.coordinator.imports.import_requests import INTERVALS_MAX_COUNT
from broadside.coordinator.loop_lag import KEPT_S, LoopLag
from broadside.coordinator.process_memory import collect_rarely
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.exchange.chunks import count_rows, pack_intervals
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Interval

LAG_MAX_S = 0.2  # the issue's; an idle loop here has under 0.02
TRIES_COUNT = 3  # what blocks does so each time; a busy machine does not
COLUMNS = ("gap_us", "span_us", "bytes", "omitted")
UNKNOWN = ("retransmits", "rtt_us", "cwnd", "packets", "lost", "jitter_ns")


def claiming(rows_count: int, header: bytes | None = None) -> str:
    """A chunk of columns of one value, which takes no byte a row."""
    described: list[list[Any]] = [[name, 0, 0, 0, 1, 1, []] for name in COLUMNS]
    described += [[name] for name in UNKNOWN]
    packed = zlib.compress(header or json.dumps([rows_count, described]).encode())
    body = struct.pack("<H", len(packed)) + packed
    return base64.b64encode(b"BSC" + struct.pack("<BI", 1, zlib.crc32(body)) + body).decode()


def recordings(*chunks: str) -> dict[str, Any]:
    return {
        "recordings": [
            {
                "file": f"{number}.json",
                "state": "measured",
                "started_at": "2026-11-26T00:00:00Z",
                "packed": {"forward": chunk},
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
    "one claim": ("/v1/imports/iperf3", lambda: recordings(claiming(1_000_000))),
    "a claim just over": (
        "/v1/imports/iperf3",
        lambda: recordings(claiming(INTERVALS_MAX_COUNT + 1)),
    ),
    "many claims": (
        "/v1/imports/iperf3",
        lambda: recordings(*[claiming(INTERVALS_MAX_COUNT // 100)] * 101),
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


@pytest.fixture(autouse=True)
def _collected_as_in_a_coordinator() -> Iterator[None]:
    """A whole collection of a test process's garbage takes longer than what is measured here."""
    before = gc.get_threshold()
    collect_rarely()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


async def lag_during(
    work: Callable[[bytes], Awaitable[httpx.Response]], content: bytes
) -> tuple[httpx.Response, float]:
    await work(b"{}")  # what the first request of all costs
    lags_s: list[float] = []
    while len(lags_s) < TRIES_COUNT and min(lags_s, default=1.0) >= LAG_MAX_S:
        lag = LoopLag()
        watching = asyncio.create_task(lag.watch())
        try:
            answer = await work(content)
            await asyncio.sleep(0.2)
        finally:
            watching.cancel()
        assert lag.longest_s is not None
        lags_s.append(lag.longest_s)
    return answer, min(lags_s)


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_is_refused_blocks_nobody(fabric: Fabric, name: str) -> None:
    path, body = BODIES[name]
    content = json.dumps(body()).encode()
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer, lag_s = await lag_during(
            lambda sent: client.post(
                path, content=sent, headers={"Content-Type": "application/json"}
            ),
            content,
        )
    assert answer.status_code in (413, 422), answer.text[:300]
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert len(answer.content) < 200_000
    assert lag_s < LAG_MAX_S


async def test_a_whole_import_blocks_nobody(fabric: Fabric) -> None:
    """As many intervals as may be, in 20 files, become a run, and others are answered meanwhile."""
    seconds = [
        Interval(start_s=n, end_s=n + 1, transferred_bytes=1_000_000 + n % 7, omitted=False)
        for n in range(2_000)
    ]
    chunk = base64.b64encode(pack_intervals(seconds)).decode()
    content = json.dumps(recordings(*[chunk] * 20)).encode()
    transport = httpx.ASGITransport(create_app(Coordinator(fabric), tick_s=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer, lag_s = await lag_during(
            lambda sent: client.post(
                "/v1/imports/iperf3", content=sent, headers={"Content-Type": "application/json"}
            ),
            content,
        )
    assert answer.status_code in (201, 422), answer.text[:300]
    assert lag_s < LAG_MAX_S


def test_a_chunks_rows_are_counted_without_building_one() -> None:
    chunk = base64.b64decode(claiming(1_000_000))
    began_s = time.thread_time()
    assert count_rows(chunk) == 1_000_000
    assert time.thread_time() - began_s < 0.05


def test_the_longest_lag_of_a_minute_is_shown_and_then_forgotten() -> None:
    clock = [100.0]
    lag = LoopLag(lambda: clock[0])
    shown = [lag.longest_s]
    for lag_s in (0.01, 3.0, -0.1, 0.02):
        lag.note(lag_s)
        clock[0] += 1
    shown.append(lag.longest_s)
    clock[0] += KEPT_S - 2
    shown.append(lag.longest_s)
    clock[0] += KEPT_S
    assert [*shown, lag.longest_s] == [None, 3.0, 0.02, None]
