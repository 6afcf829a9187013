"""Attacks on agents through the queue, the tables, the engines' network input and the disk."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

from broadside.agent.attempt import Attempt, AttemptLimits
from broadside.agent.decide import check
from broadside.agent.worker import Worker
from broadside.exchange.embedded.embedded_queue import EmbeddedQueue
from broadside.exchange.engines import engines
from broadside.exchange.engines.port import Process
from broadside.exchange.messages import Control, Job, Tunnel, tunnel_of
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import Entity, Outgoing, RecordUnreadable
from broadside.exchange.rows import parse_row
from tests.attack import Attack, attack_variants, refusal
from tests.attack.fuzzed import fuzz_messages, fuzz_rows, planned_job
from tests.attack.injections import (
    INJECTIONS,
    KINDS,
    MARK,
    PLACES,
    Kind,
    check_kind,
    text_fields,
    written,
)
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryQueue, MemoryTable, make_tools, work_until_idle
from tests.unit.agent.jobs import make_settings

QUEUE: Final = "queue to client agent"
TABLE: Final = "table to agents"
ENGINE: Final = "agent to engine"
# The worker uses a separate synced commit to set a message aside.
POISON_COUNT: Final = 500


# Forged jobs -------------------------------------------------------------------------------------

FORGED: Final[dict[str, dict[str, Any]]] = {
    "a twentieth of the rate": {"traffic": {"streams_count": 8, "stream_bits_per_second": 5}},
    "a clock gate of a day": {"clock_bound_max_s": 86_400},
    "data may be an hour late": {"late_after_s": 3_600},
    "another server": {"endpoint": {"agent_id": "server-1", "address": "10.2.1.9", "port": 5201}},
    "another port": {"endpoint": {"agent_id": "server-1", "address": "10.2.1.3", "port": 8080}},
    "a second of traffic": {"duration_s": 1},
    "fewer streams": {"traffic": {"streams_count": 1}},
    "another engine": {"traffic": {"engine": "http", "direction": "reverse"}},
    "an engine's option": {"traffic": {"streams_count": 8, "options": {"verify": True}}},
    "through a tunnel": {"traffic": {"streams_count": 8, "encapsulation": "vxlan"}},
    "without the probes": {"traffic": {"streams_count": 8, "probe": "udp"}},
    "another mark": {"traffic": {"streams_count": 8, "dscp": 46}},
    "a warm-up of a minute": {"traffic": {"streams_count": 8, "omit_s": 60}},
    "an hour later": {"planned_start_at": datetime(2033, 1, 1, tzinfo=UTC)},
    "a pair that is not planned": {"pair_index": 99},
    "a burst that is not planned": {"burst_index": 7},
    "a run that is not planned": {"run_id": "run-9"},
}


async def _forge(changes: dict[str, Any]) -> str:
    table, queue = MemoryTable(), MemoryQueue()
    records, true = records_in(table), planned_job()
    await records.runs.save_jobs(true.run_id, true.burst_index, [true])
    forged = Job.model_validate(true.model_dump() | changes)
    queue.put(forged.body, "forged")
    queue.put(true.body, "true")
    worker = Worker(queue=queue, tools=make_tools(records))
    await work_until_idle(worker, queue)
    verb, _, reason, text = queue.settled[0]
    assert (verb, reason) == ("dead_letter", "NotPlanned"), queue.settled[0]
    assert queue.settled[1] == ("complete", "true"), "the true job was not taken"
    assert "report.00002" in table.written, "the true job was not carried out"
    answer = worker.tools.troubles.new_since(datetime.min.replace(tzinfo=UTC))
    reported = (await records.bursts.read_reports(true.run_id, 0))[2].troubles
    assert "forged" in {trouble.kind for trouble in (*answer, *reported)}, "no finding"
    return f"NotPlanned: {text}"


async def _without_control() -> str:
    """Deliver a job when the plan cannot be read. The job must not be run without this check."""
    table, queue = MemoryTable(), MemoryQueue()
    soon = planned_job().model_copy(update={"planned_start_at": utc_now() + timedelta(seconds=0.3)})
    table.away = True
    queue.put(soon.body, "unchecked")
    worker = Worker(queue=queue, tools=make_tools(records_in(table)))
    await work_until_idle(worker, queue)
    assert queue.settled == [("abandon", "unchecked")]
    assert not table.written, "something was claimed"
    return "not believed: given back, and past its instant it is a missed measurement"


# Bodies ------------------------------------------------------------------------------------------

BODIES: Final[dict[str, bytes]] = {
    "100 kB of [": b"[" * 100_000,
    "100 kB of {": b'{"a":' * 20_000,
    "no UTF-8": b"\xff\xfe{}",
    "a number of 600 digits": planned_job().body.replace(
        b'"burst_index":0', b'"burst_index":1' + b"0" * 600
    ),
    "a number of 5,000 digits": b'{"burst_index":' + b"9" * 5_000 + b"}",
    "a megabyte": planned_job().body + b" " * 2**20,
    "half a pair of a character": b'{"run_id":"\\ud800"}',
    "not a number": planned_job().body.replace(b'"duration_s":10', b'"duration_s":NaN'),
    "a scope with a command": planned_job().body.replace(b"10.2.1.3", b"::1%\\n!id"),
    "no address": planned_job().body.replace(b"10.2.1.3", b"$(id)"),
    "port 0": planned_job().body.replace(b'"port":5201', b'"port":0'),
    "a port of -5": planned_job().body.replace(b'"more_ports":[]', b'"more_ports":[0,-5]'),
    "a path for a run": planned_job().body.replace(b'"run-1"', b'"../../etc"'),
}


async def _send_body(body: bytes) -> str:
    queue = MemoryQueue()
    queue.put(body, "m")
    worker = Worker(queue=queue, tools=make_tools(records_in(MemoryTable())))
    await work_until_idle(worker, queue)
    verb, _, reason, text = queue.settled[0]
    assert verb == "dead_letter"
    return f"{reason}: {text[:160]}"


def _target(address: str, port: int) -> str:
    job = planned_job(endpoint={"agent_id": "s", "address": address, "port": port})
    ending = check(job, make_settings(), utc_now() - timedelta(days=1))
    assert ending is not None
    assert ending.outcome == "refused"
    return str(ending.reason)


async def _poisoned_queue(count: int = POISON_COUNT) -> str:
    """Run a burst at one agent while another processes a queue full of invalid messages."""
    with tempfile.TemporaryDirectory() as folder:
        queue = EmbeddedQueue(Path(folder) / "data")
        expires_at = utc_now() + timedelta(minutes=10)
        bodies = list(BODIES.values())
        await queue.send(
            [
                Outgoing(
                    body=bodies[n % len(bodies)][:200_000],
                    message_id=f"poison-{n}",
                    expires_at=expires_at,
                )
                for n in range(count)
            ]
        )
        table = MemoryTable()
        records, true = records_in(table), planned_job()
        await records.runs.save_jobs(true.run_id, true.burst_index, [true])
        await queue.send([Outgoing(body=true.body, message_id="true", expires_at=expires_at)])
        worker = Worker(queue=queue, tools=make_tools(records))
        running = Beside()
        under_method = asyncio.create_task(running.run())
        work = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(600):
                while "report.00002" not in table.written:
                    assert not work.done(), "the agent ended"
                    await asyncio.sleep(0.05)
        finally:
            worker.tools.stopping.set()
            await work
            under_method.cancel()
            await asyncio.gather(under_method, return_exceptions=True)
        counts = await queue.counts()
        await queue.close()
        assert counts.dead_count == count, f"{counts.dead_count} of {count} set aside"
        assert running.longest_s < 1.0, f"the loop was blocked for {running.longest_s:.2f} s"
        return (
            f"{count} set aside with a reason, then the true job was carried out; what ran "
            f"beside it waited {running.longest_s * 1000:.0f} ms at most"
        )


class Beside:
    """Task in the same process that measures the longest delay of the event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            await asyncio.sleep(0.01)
            self.longest_s = max(self.longest_s, loop.time() - before_s - 0.01)


# Text in fields ----------------------------------------------------------------------------------


def _inject_field(field: str) -> str:
    kind = text_fields()[field]
    for text in INJECTIONS:
        check_kind(field, kind, text)
    return f"{KINDS[field]}: {len(INJECTIONS)} injections"


def _inject_writer(place: str) -> str:
    reached = [
        f"{engine}: {ascii(text)[:60]}"
        for engine in engines()
        for text in INJECTIONS
        if MARK in written(engine, place, text)
    ]
    assert not reached, f"{place} reaches {reached[0]}"
    return f"no trace of {len(INJECTIONS)} in what {len(engines())} engines and ip are given"


_KEPT_BACK: Final = {
    "BROADSIDE_SERVICEBUS_CONNECTION_STRING": "SharedAccessKey=topsecret",
    "BROADSIDE_AGENT_JOIN": "bsj.x.topsecret",
    "AZURE_CLIENT_SECRET": "topsecret",
    "MSI_SECRET": "topsecret",
    "https_proxy": "http://user:topsecret@proxy",
    "FTP_PROXY": "http://user:topsecret@proxy",
    "GITHUB_TOKEN": "topsecret",
}


async def _engine_environment() -> str:
    """Check the environment of an engine, because it serves strangers and can be run as nobody."""
    with mock.patch.dict("os.environ", _KEPT_BACK):
        attempt = await Attempt.spawn(
            Process(argv=("env",), env={"HOME": "/nowhere"}),
            engines()["iperf3"].server_reader(),
            AttemptLimits(raw_max_bytes=2**20),
        )
        await attempt.exit
    reported = attempt.transcript.text()
    assert b"PATH=" in reported
    assert b"topsecret" not in reported, reported
    return f"{len(reported.splitlines())} other variables"


def _bad_tunnel(**changes: Any) -> str:
    job = planned_job(traffic={"encapsulation": "vxlan"})
    fields = tunnel_of(job, client_address="10.1.1.1").model_dump(mode="json") | changes
    text = refusal(ValueError, lambda: Tunnel.model_validate(fields), f"a tunnel with {changes}")
    return text.splitlines()[2].strip()


def _bad_row(json: str) -> str:
    row = Entity(partition_key="run.r", row_key="control", properties={"json": json})
    return refusal(RecordUnreadable, lambda: parse_row(Control, row), "it was read")[:160]


# The table ---------------------------------------------------------------------------------------


async def _fuzz(fuzz: Callable[[int, int], Coroutine[Any, Any, Counter[str]]], count: int) -> str:
    reported = await fuzz(count, 20261122)
    return ", ".join(f"{number} {kind}" for kind, number in reported.most_common())


_TUNNELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tunnel to its own address": (
        "inner addresses of somebody's network",
        {"inner_server_address": "10.0.0.1"},
    ),
    "tunnel of commands": (
        "lines for ip -batch",
        {"inner_server_address": "1.1.1.1\nlink delete eth0"},
    ),
    "tunnel of another id": ("another tunnel's addresses", {"vni": 5}),
    "tunnel's opener a path": ("a job id that climbs", {"opened_by": "../../x"}),
}
# Values are the attempt and the text of the row.
_ROWS: Final = {
    "deep control row": ("100,000 brackets in a run's control row", "[" * 100_000),
    "large control row": ("2 MB in a run's control row", '"' + "a" * 2**21 + '"'),
    "half a character": ("a lone surrogate in a row", "\ud800"),
}

ATTACKS: Final[tuple[Attack, ...]] = (
    *attack_variants("forged job: {}", QUEUE, "a job like the planned one, but {}", _forge, FORGED),
    Attack("job while control is away", QUEUE, "a job with an unreadable plan", _without_control),
    *attack_variants("body: {}", QUEUE, "a message of {}", _send_body, BODIES),
    Attack(
        "target port 22",
        QUEUE,
        "a planned job to a network's own service",
        partial(_target, "10.2.1.3", 22),
    ),
    Attack(
        "target outside",
        QUEUE,
        "a planned job to an address of the Internet",
        partial(_target, "8.8.8.8", 5201),
    ),
    Attack("poisoned queue", QUEUE, f"{POISON_COUNT} messages before a true one", _poisoned_queue),
    Attack("fuzzed messages", QUEUE, "2,000 random messages", partial(_fuzz, fuzz_messages, 2_000)),
    Attack("fuzzed rows", TABLE, "2,000 random rows", partial(_fuzz, fuzz_rows, 2_000)),
    *attack_variants(
        "field {}",
        TABLE,
        "commands, paths and escapes as text",
        _inject_field,
        (field for field, kind in KINDS.items() if kind is not Kind.OWN),
    ),
    *attack_variants(
        "writers: {}", ENGINE, "an unchecked value in argv and scripts", _inject_writer, PLACES
    ),
    Attack("an engine's environment", ENGINE, "secrets, proxies", _engine_environment),
    *(
        Attack(name, TABLE, tried, partial(_bad_tunnel, **changes))
        for name, (tried, changes) in _TUNNELS.items()
    ),
    *(Attack(name, TABLE, tried, partial(_bad_row, json)) for name, (tried, json) in _ROWS.items()),
)
