"""Fuzzing of the agents' readers with invalid messages and rows from a seed.

Use ``python -m tests.attack --fuzz 100000`` to run the long round, which includes the coordinator's
readers. A message must be set aside with a reason. It must never raise an unexpected exception.
"""

import asyncio
import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from broadside.agent.control_reads import ControlReads, ControlState, NoAnswer
from broadside.agent.tunnels import TunnelKeeper
from broadside.agent.worker import Worker
from broadside.exchange.messages import Control, Job, Presence, Role, tunnel_of
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity, RecordUnreadable, Value
from broadside.exchange.records.job_digests import jobs_rows
from broadside.exchange.records.keys import (
    ASK,
    run_partition,
    tunnel_key,
    tunnels_partition,
)
from broadside.exchange.rows import message_row, parse_row
from tests.attack.injections import INJECTIONS
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryQueue, MemoryTable, make_tools, work_until_idle
from tests.unit.agent.jobs import make_job
from tests.unit.coordinator.presences import presence

# Number of messages in the queue at the same time.
_PART_COUNT: Final = 500
_ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    10**600,
    2**63,
    -(10**400),
    1e308,
    float("nan"),
    float("-inf"),
    "",
    [],
    {},
    [[]] * 50,
    {"a": {"b": {}}},
    *INJECTIONS[:-1],
)


def planned_job(**changes: Any) -> Job:
    return make_job(planned_start_at=utc_now() - timedelta(seconds=5), **changes)


def mangled(text: str, draw: random.Random) -> bytes:
    """Damage a valid body using one of many ways, or return a random body."""
    match draw.randrange(9):
        case 0:
            return draw.randbytes(draw.randrange(300))
        case 1:
            return text.encode()[: draw.randrange(len(text))]
        case 2:
            bad = bytearray(text.encode())
            for _ in range(draw.randrange(1, 8)):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            return bytes(bad)
        case 3:
            return (draw.choice("[{") * draw.choice((40, 1_000, 100_000))).encode()
        case 4:
            depth = draw.choice((40, 3_000))
            return ('{"a":' * depth + "1" + "}" * depth).encode()
        case 5:
            return text.encode().replace(b":1", b":" + b"9" * draw.choice((20, 600, 5_000)))
        case 6:
            return (text + " " * 300_000).encode()
        case _:
            return _with_invalid_values(text, draw)


def _with_invalid_values(text: str, draw: random.Random) -> bytes:
    fields = json.loads(text)
    for _ in range(draw.randrange(1, 4)):
        place = fields
        name = draw.choice(list(place))
        while isinstance(place[name], dict) and place[name] and draw.random() < 0.8:
            place = place[name]
            name = draw.choice(list(place))
        if draw.random() < 0.2:
            name = draw.choice(("extra", INJECTIONS[0]))
        place[name] = copy.deepcopy(draw.choice(_ODD))
    limit = sys.get_int_max_str_digits()
    # The limit is lifted only here. Readers have the default.
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(fields).encode()
    finally:
        sys.set_int_max_str_digits(limit)


async def fuzz_messages(count: int, seed: int) -> Counter[str]:
    """Send ``count`` messages to a worker and count the results.

    A valid job among them is executed.
    """
    draw, reported = random.Random(seed), Counter[str]()
    table = MemoryTable()
    records = records_in(table)
    job = planned_job()
    await records.runs.save_jobs(job.run_id, job.burst_index, [job])
    done_count = 0
    while done_count < count:
        queue = MemoryQueue()
        worker = Worker(queue=queue, tools=make_tools(records))
        some = min(_PART_COUNT, count - done_count)
        for number in range(some):
            body = mangled(job.to_json(), draw)
            queue.put(body if body != job.body else b"", str(number))
        await work_until_idle(worker, queue)
        assert len(queue.settled) == some, "a message was not settled"
        assert len({settled[1] for settled in queue.settled}) == some, "one was settled twice"
        for verb, _, *why in queue.settled:
            assert verb == "dead_letter", f"one was taken: {verb}"
            assert all(why), "one has no reason"
            reported[why[0]] += 1
        done_count += some
    assert not any(key.startswith("claim.") for key in table.written), "one was claimed"
    queue = MemoryQueue()
    queue.put(job.body, "true")
    await work_until_idle(Worker(queue=queue, tools=make_tools(records)), queue)
    assert [settled[0] for settled in queue.settled] == ["complete"], "the true job was lost"
    assert "claim.00002" in table.written
    return reported


def _row(text: str, partition: str, key: str, draw: random.Random) -> Entity:
    value: Value = mangled(text, draw).decode(errors=draw.choice(("replace", "surrogateescape")))
    if draw.random() < 0.1:
        value = draw.choice((b"\0", 1, 2.5, True, datetime(2026, 1, 1, tzinfo=UTC), 2**62))
    return Entity(partition_key=partition, row_key=key, properties={"json": value})


async def fuzz_rows(count: int, seed: int) -> Counter[str]:
    """Read ``count`` control, tunnel, job digest and presence rows and count the results."""
    draw, reported = random.Random(seed), Counter[str]()
    table = MemoryTable()
    records = records_in(table)
    tools = make_tools(records)
    keeper = TunnelKeeper(tools=tools, bind=lambda ports, address: None)
    tunnel = tunnel_of(planned_job(traffic={"encapsulation": "vxlan"}), client_address="10.1.1.1")
    control = Control(run_id="run-1", lease_until_at=utc_now())
    digests = jobs_rows("run-1", 0, [planned_job()])[0]
    reads = ControlReads(lambda: records.runs.read_control("run-1"), asyncio.Event())
    there = presence(Role.CLIENT, 1, beat_at=utc_now())
    for number in range(count):
        table.rows.clear()
        match number % 4:
            case 0:
                await table.upsert(
                    _row(control.model_dump_json(), run_partition("run-1"), "control", draw)
                )
                reads.ask()
                answer = await reads.next(5.0)
                match answer:
                    case NoAnswer(why=why):
                        assert why
                        reported["control: set aside"] += 1
                    case ControlState(control=Control()):
                        reported["control: still one"] += 1
                    case _:
                        raise AssertionError(f"control row: {answer}")
            case 1:
                other = f"run-2.00000.{number:05d}"
                key = f"{ASK}.{tunnel.vni:08d}.{other}"
                text = tunnel.model_copy(update={"opened_by": other}).model_dump_json()
                bad = _row(text, tunnels_partition("client-1"), key, draw)
                good = message_row(tunnels_partition("client-1"), tunnel_key(ASK, tunnel), tunnel)
                await table.batch([bad, good])
                rows = await records.fleet.read_tunnels("client-1")
                assert tunnel in rows, "another's row took this one away"
                reported["tunnel: " + ("set aside" if len(rows) == 1 else "still one")] += 1
                await table.delete(good.partition_key, good.row_key)
                await keeper.poll()
            case 2:
                bad_digests = draw.randbytes(draw.randrange(10_000))
                changed = {**digests.properties, "digests_0": bad_digests}
                await table.upsert(replace(digests, properties=changed))
                with _counted(reported, "digests"):
                    await records.runs.read_jobs("run-1", 0, 2)
            case _:
                row = _row(there.to_json(), "presence", "client.c", draw)
                with _counted(reported, "presence"):
                    parse_row(Presence, row)
    await reads.close()
    return reported


@contextmanager
def _counted(counter: Counter[str], name: str) -> Iterator[None]:
    """Count if a row was valid, or if it was set aside with a reason."""
    try:
        yield
    except RecordUnreadable as error:
        assert str(error)
        counter[f"{name}: set aside"] += 1
    else:
        counter[f"{name}: still one"] += 1
