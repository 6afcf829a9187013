"""Attacks by rows that are small in storage and large in memory, and by endless rows."""

import asyncio
import json
import struct
import tempfile
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from broadside.coordinator.chunk_decoder import decode_end
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.runs.evidence_loader import (
    TESTS_MAX_COUNT,
    read_evidence,
    readings_max_count,
)
from broadside.exchange.chunks import pack, unpack_columns
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.messages import EngineReport, Presence, ServerTest
from broadside.exchange.ports import Entity, RecordUnreadable
from broadside.exchange.records import Records
from broadside.exchange.records.keys import burst_partition
from broadside.exchange.rows import make_row, parse_row
from broadside.exchange.second_rows import packed_end
from tests.attack import Attack, attack_variants, refusal
from tests.attack.on_requests import RUN, site

ROW: Final = "table to coordinator"


def forged(header: Any, planes: bytes = b"") -> bytes:
    """Return a chunk with any header and a valid checksum."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    packed = zlib.compress(text, 9)
    body = struct.pack("<H", len(packed)) + packed + planes
    return b"BSC" + struct.pack("<BI", 1, zlib.crc32(body)) + body


def _column(name: str) -> list[Any]:
    # Each row uses eight bytes in memory and none in the chunk.
    return [name, 0, 0, 0, 0, 1, []]


_HEADERS: Final[dict[str, Any]] = {
    "10,000 columns of a million": [10**6, [_column(f"c{n}") for n in range(10_000)]],
    "100,000 brackets": b"[" * 100_000,
    "rows of a fraction": [5.5, [["gap_us"], ["span_us"]]],
    "rows of text": ["9", [["gap_us"]]],
    "not a number of rows": b"[NaN, []]",
    "rows below none": [-1, []],
    "a billion rows": [10**9, [["gap_us"]]],
    "a number of 5,000 digits": b"[" + b"9" * 5_000 + b", []]",
    "columns of a number": [3, 7],
    "an empty column": [3, [[]]],
    "a column named by a list": [3, [[["a"]]]],
    "a plane behind the end": [3, [["gap_us", 0, 0, 0, 0, 1, [10**12]]]],
    "a plane before the start": [3, [["gap_us", -5, 0, 0, 0, 1, [-5]]]],
    "steps beyond 64 bits": [3, [["gap_us", 0, 0, 0, 2**70, 1, []]]],
}


def _header(header: Any) -> str:
    try:
        unpack_columns(forged(header))
    except RecordUnreadable as error:
        return str(error)
    end = packed_end([make_row("p", "k.000", {"host_0": forged(header)})])
    assert decode_end(end, 1_000) is None, "it was read"
    return "left out with its row's name"


def _endless_pair() -> str:
    """Store a thousand rows of a million readings each for one pair: 80 GB as columns."""
    million = pack({name: [1] * 10**6 for name in ("gap_us", "span_us")})
    rows = [
        make_row("burst", f"chunk.client.00000.{n:03d}", {"host_0": million}) for n in range(1_000)
    ]
    burst = _plan().bursts[0]
    most = readings_max_count(burst, 1.0)
    assert decode_end(packed_end(rows), most) is None
    return f"{len(million)} bytes a row; over {most} readings an end is left out"


def _plan() -> Plan:
    row = asyncio.run(site().fabric.records.read_run(RUN))
    assert row is not None
    return Plan.model_validate_json(row[1])


def _with_rows(rows: list[Entity]) -> str:
    """Read a burst with these rows among its own, as the coordinator does."""
    plan = _plan()

    async def read() -> str:
        with tempfile.TemporaryDirectory() as folder:
            table = EmbeddedTable(Path(folder), "results")
            records = Records(control=site().fabric.control, results=table, private=table)
            for row in rows:
                await table.upsert(row)
            evidence = await read_evidence(records, plan, plan.bursts[0])
            await table.close()
            assert len(evidence.pairs) == len(plan.pairs)
            return f"{len(evidence.pairs)} pairs, {len(evidence.foreign_tests)} foreign_tests"

    return asyncio.run(read())


def _endless_rows() -> str:
    noise = bytes(range(256)) * 256
    parts = {f"client_up_{n}": noise for n in range(11)}
    partition = burst_partition(RUN, 0)
    rows = [make_row(partition, f"chunk.client.00000.{n:03d}", parts) for n in range(150)]
    return _with_rows(rows)


def _endless_tests() -> str:
    """Store thousands of tests on one endpoint by an agent with write access."""
    plan = _plan()
    burst, endpoint = plan.bursts[0], plan.pairs[0].endpoint
    rows = []
    for number in range(20 * TESTS_MAX_COUNT):
        at = burst.planned_start_at + timedelta(milliseconds=number)
        test = ServerTest(
            agent_id="rogue",
            endpoint=endpoint,
            started_at=at,
            ended_at=at,
            engine=EngineReport(engine="iperf3"),
        )
        partition = f"tests.{at:%Y-%m-%dT%H}"
        key = f"{int(at.timestamp() * 1000):013d}.rogue.{endpoint.port}"
        rows.append(make_row(partition, key, {"json": test.model_dump_json()}))
    text = _with_rows(rows)
    return f"{TESTS_MAX_COUNT} of {len(rows)} looked at: {text}"


def _endless_message() -> str:
    """Store a row of one message with a very long list."""
    text = '{"agent_id":"a","ports":[' + "1," * 200_000 + "1]}"
    row = make_row("presence", "client.a", {"json": text})
    return refusal(RecordUnreadable, lambda: parse_row(Presence, row), "it was read")


ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants("seconds: {}", ROW, "memory, or a crash of the reader", _header, _HEADERS),
    Attack("a pair without end", ROW, "80 GB of columns from 10 MB of rows", _endless_pair),
    Attack("a pair's rows without end", ROW, "all of a pair's rows in memory", _endless_rows),
    Attack("tests without end", ROW, "an endpoint's tests in memory", _endless_tests),
    Attack("a message without end", ROW, "a row of one list", _endless_message),
)
