"""Fuzzing of the coordinator's readers with invalid rows and dead letters from a seed.

It uses all rows that agents can write (claims, reports, seconds, probes, server tests, presences,
raw output), collections of the private table, and dead letters. An invalid row must never stop a
reader. A row should be read, or be named in the log with a reason.
"""

import asyncio
import logging
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broadside.coordinator.auth.static_tokens import Token
from broadside.coordinator.chunk_decoder import decode_end
from broadside.coordinator.core.plan.reserved import Reservation
from broadside.coordinator.core.plan.schedule import Schedule
from broadside.coordinator.core.run_spec import Burst, Plan
from broadside.coordinator.runs.dead_letters import explain, read_dead_job
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.coordinator.studies.study import Study
from broadside.exchange import rows as row_log
from broadside.exchange.chunks import pack
from broadside.exchange.embedded.embedded_table import EmbeddedTable
from broadside.exchange.messages import (
    Claim,
    HostInfo,
    JobReport,
    Message,
    Presence,
    Role,
    ServerTest,
)
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import DeadLetter, Entity, RecordUnreadable, Value
from broadside.exchange.records import Records
from broadside.exchange.records.collection import Collection
from broadside.exchange.records.keys import PRESENCE, burst_partition, server_tests_partition
from broadside.exchange.rows import make_row, parse_row, row_name
from tests.attack.fuzzed import mangled, planned_job
from tests.attack.on_requests import RUN, site
from tests.unit.coordinator.presences import presence

# Number of rows in the table at the same time.
_PART_COUNT: Final = 500
_LEFT_OUT: Final = re.compile(r"row (\S+?)(?::|$)")
_SHELVES: Final[dict[str, type[Message]]] = {
    "tokens": Token,
    "schedules": Schedule,
    "studies": Study,
    "reservations": Reservation,
    "passport": HostInfo,
}
_MODELS: Final[dict[str, type[Message]]] = {"claim.": Claim, "report.": JobReport}


class _Named(logging.Handler):
    """Log handler that collects the skipped rows and the reasons."""

    def __init__(self) -> None:
        super().__init__()
        self.why: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.__dict__.get("action") == "unreadable" and (match := _LEFT_OUT.search(text)):
            self.why[match[1]] = text


@contextmanager
def _listening() -> Iterator[_Named]:
    named = _Named()
    before = (row_log.log.propagate, logging.root.manager.disable)
    row_log.log.addHandler(named)
    row_log.log.propagate = False
    logging.disable(logging.NOTSET)
    try:
        yield named
    finally:
        row_log.log.removeHandler(named)
        row_log.log.propagate = before[0]
        logging.disable(before[1])


def _value(draw: random.Random, goods: Sequence[str]) -> Value:
    packed = pack({"gap_us": [draw.randrange(2**40)] * 3, "span_us": [10**6] * 3})
    made: list[Value] = [
        draw.randbytes(draw.randrange(60)),
        packed,
        packed[: draw.randrange(len(packed))] + draw.randbytes(3),
        draw.choice([0.0, -1.0, 1e300, float("nan"), float("inf")]),
        draw.randrange(-(2**63), 2**63),
        draw.choice(["{", "null", "[]", "{}", '{"version":1}', "\x1b[2J", "1e999"]),
        draw.random() < 0.5,
        datetime(2026, 1, 1, tzinfo=UTC),
        mangled(draw.choice(goods), draw)[:30_000].decode(errors="replace"),
        draw.choice(goods),
    ]
    return draw.choice(made)


_NAMES: Final = (
    *("json", "json", "json", "client_up_0", "client_up_first_data_at_s", "server_down_0"),
    *("server_down_first_data_at_s", "host_0", "probes_0", "first_at_s", "every_s"),
    *("part_0", "rows_count", "crc", "numbers_0"),
)


def _rows(draw: random.Random, count: int, burst: Burst, goods: Sequence[str]) -> list[Entity]:
    """Return ``count`` rows under valid and invalid keys."""
    made: dict[tuple[str, str], Entity] = {}
    while len(made) < count:
        key = f"{draw.choice(['claim.', 'report.', 'chunk.client.', 'probe.'])}"
        key += f"{draw.randrange(40):05d}" + draw.choice(["", f".{draw.randrange(4):03d}", ".x"])
        partition = burst_partition(RUN, 0)
        match draw.randrange(8):
            case 0 | 1:
                agent_id = f"s{draw.randrange(9)}"
                partition = server_tests_partition(burst.planned_start_at, agent_id)
                begun_ms = int(burst.planned_start_at.timestamp() * 1000) + draw.randrange(20)
                key = f"{begun_ms:013d}.{agent_id}.5201"
                key += draw.choice(["", ".chunk.000", f".chunk.{draw.randrange(2000)}", ".x"])
            case 2:
                partition, key = PRESENCE, f"client.{draw.randrange(99)}"
            case 3:
                partition, key = draw.choice(list(_SHELVES)), f"n{draw.randrange(99)}"
            case 4:
                partition, key = f"raw.{RUN}.00000", f"client.{draw.randrange(9):05d}.000"
        names = draw.sample(_NAMES, draw.randrange(5))
        properties = {name: _value(draw, goods) for name in names}
        made[partition, key] = make_row(partition, key, properties)
    return list(made.values())


async def _read_all(records: Records, table: EmbeddedTable, plan: Plan, burst: Burst) -> None:
    """Read all rows as the coordinator does."""
    await read_evidence(records, plan, burst)
    await records.fleet.read_presences()
    async for _, end in records.bursts.stream_seconds(RUN, 0):
        decode_end(end, 1_000)
    async for _ in records.bursts.stream_probes(RUN, 0):
        pass
    for name, model in _SHELVES.items():
        async for _ in Collection(table, name, model).scan():
            pass


async def _became(records: Records, row: Entity, why: dict[str, str]) -> str:
    """Return if a row was read, or if it was skipped with a reason.

    Raises:
        AssertionError: It was skipped without a reason.
    """
    name, partition, key = row_name(row), row.partition_key, row.row_key
    if name in why or any(item.startswith(f"{name}:") for item in why):
        return "left out with a reason"
    if partition.startswith("raw."):
        try:
            await records.bursts.read_raw(RUN, 0, int(key.split(".")[1]))
        except RecordUnreadable as error:
            assert str(error)
            return "raw output: left out with a reason"
        return "read"
    model = _SHELVES.get(partition)
    if partition == PRESENCE:
        model = Presence
    elif partition.startswith("burst."):
        model = next((item for start, item in _MODELS.items() if key.startswith(start)), None)
    elif partition.startswith("tests."):
        model = ServerTest if "json" in row.properties else None
    if model is not None:
        # This call will raise if the row was dropped without a reason.
        parse_row(model, row)
    return "read"


async def _feed(count: int, seed: int) -> Counter[str]:
    draw, reported = random.Random(seed), Counter[str]()
    plan_row = await site().fabric.records.read_run(RUN)
    assert plan_row is not None
    plan = Plan.model_validate_json(plan_row[1])
    burst, job = plan.bursts[0], planned_job()
    there = presence(Role.CLIENT, 1, beat_at=utc_now())
    goods = [job.to_json(), there.to_json()]
    goods += await _good_rows(burst)
    with tempfile.TemporaryDirectory() as folder, _listening() as named:
        table = EmbeddedTable(Path(folder), "results")
        records = Records(control=site().fabric.control, results=table, private=table)
        done = 0
        while done < count:
            some = min(_PART_COUNT, count - done)
            letters = some // 8
            rows = _rows(draw, some - letters, burst, goods)
            named.why.clear()
            row_log._reported.clear()
            for row in rows:
                await table.upsert(row)
            await _read_all(records, table, plan, burst)
            for row in rows:
                reported[await _became(records, row, named.why)] += 1
            for number in range(letters):
                reported[_letter(draw, job.to_json(), number)] += 1
            for partition in {row.partition_key for row in rows}:
                await table.delete_partition(partition)
            done += some
        await table.close()
    return reported


async def _good_rows(burst: Burst) -> list[str]:
    """Return valid claims, reports and tests of the attacked run."""
    bursts = site().fabric.records.bursts
    claims, reports = await bursts.read_claims(RUN, 0), await bursts.read_reports(RUN, 0)
    span = (burst.planned_start_at, burst.planned_end_at)
    tests = [test async for test, _ in bursts.stream_tests(*span)]
    results: list[Message] = [*claims.values(), *reports.values(), *tests]
    return [item.model_dump_json() for item in results[:20]]


def _letter(draw: random.Random, good: str, number: int) -> str:
    """Return the displayed text of a random dead letter."""
    body = mangled(good, draw)
    letter = DeadLetter(
        sequence_number=number,
        body=body,
        message_id=draw.choice(["m", "\x1b[2J", "a" * 200]),
        reason=draw.choice(["NotJson", "", "Refused", "x" * 5_000]),
        description=draw.choice(["", ": ", "c1: endpoint.port: no", "\x1b]0;owned\x07"]),
    )
    text = explain(letter, read_dead_job(letter), None, utc_now())
    assert text.advice
    assert text.resend_problem or text.run_id
    return "dead letters explained"


def fuzz_coordinator(count: int, seed: int) -> Counter[str]:
    """Read ``count`` rows and dead letters, which must be read or named with a reason."""
    # The site has to be started before the event loop.
    site()
    return asyncio.run(_feed(count, seed))
