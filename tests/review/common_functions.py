"""Functions that the reviewed version and today's version have in common, in a separate process.

The packages of the version are on ``PYTHONPATH``. A line of standard input is a JSON list with the
name of a function and its arguments. A line of standard output is the result as JSON.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import io
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

# The packages of the reviewed version are top-level packages.
PREFIX: Final = "" if importlib.util.find_spec("coordinator") else "broadside."

IS_REVIEWED: Final = importlib.util.find_spec(f"{PREFIX}coordinator.device.telemetry") is None

Fields = Mapping[str, Any]


# Modules that were moved after the reviewed version.
MOVED: Final = {
    "coordinator.core.measure.columns": "coordinator.core.measure.records.columns",
    "coordinator.core.measure.evidence": "coordinator.core.measure.records.evidence",
    "coordinator.core.measure.measure_burst": "coordinator.core.measure.burst",
    "coordinator.core.plan.spec": "coordinator.core.run_spec",
}


def module(name: str) -> Any:
    return importlib.import_module(PREFIX + (MOVED.get(name, name) if PREFIX else name))


def at(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)


# Commands -----------------------------------------------------------------------------------------


def command(*argv: str) -> Fields:
    """Run a command of ``broadside`` and return the exit code, the output and the errors."""
    output, errors = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["broadside", *argv]
    code: object = 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            module("coordinator.cli").main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    return {"code": code, "output": output.getvalue(), "errors": errors.getvalue()}


# A launched run -----------------------------------------------------------------------------------


def judge(run: Fields) -> Fields:
    """Return the summary of a run from the records of its agents and its device.

    Args:
        run: Fields of `tests.review.fleets`.
    """
    evidence = module("coordinator.core.measure.evidence")
    plan = module("coordinator.core.plan.spec").Plan.model_validate(run["plan"]).sealed()
    now = at(run["now_s"])
    bursts = [
        evidence.BurstEvidence(burst=burst, pairs=tuple(_pair(pair) for pair in pairs))
        for burst, pairs in zip(plan.bursts, run["pairs"], strict=True)
    ]
    measured = [
        module("coordinator.core.measure.measure_burst").measure_burst(plan.spec, burst, now)
        for burst in bursts
    ]
    answer = run.get("ledger")
    ledger = asyncio.run(_prometheus(answer)) if answer and "url" in answer else _ledger(answer)
    summarise = module("coordinator.core.judge.summarise")
    telemetry = asyncio.run(_telemetry(run.get("witness")))
    summary = (
        summarise.summarise_run(plan, measured, ledger, now, testimony=telemetry)
        if IS_REVIEWED
        else summarise.summarise_run(
            plan, measured, ledger, now, summarise.RunContext(telemetry=telemetry)
        )
    )
    return _json(summary)


# Names in summaries of the reviewed version, and those of today.
_RENAMED = {"limiter": "bottleneck", "limiter_details": "bottleneck_details"}


def _json(message: Any) -> Fields:
    document: Fields = json.loads(message.model_dump_json())
    return {_RENAMED.get(name, name): value for name, value in document.items()}


def _pair(pair: Fields) -> Any:
    messages, evidence = module("exchange.messages"), module("coordinator.core.measure.evidence")
    return evidence.PairEvidence(
        pair_index=pair["pair_index"],
        claim=_message(messages.Claim, pair.get("claim")),
        report=_message(messages.JobReport, pair.get("report")),
        server_test=_message(messages.ServerTest, pair.get("server_test")),
        client_tracks=tuple(_track("client", track) for track in pair.get("client_tracks", ())),
        server_tracks=tuple(_track("server", track) for track in pair.get("server_tracks", ())),
        client_host=_host(pair.get("client_host")),
        server_host=_host(pair.get("server_host")),
        client_nic_bits_per_second=pair.get("nic_bits_per_second"),
        server_nic_bits_per_second=pair.get("nic_bits_per_second"),
        nic_mtu_bytes=1500,
    )


def _message(kind: Any, fields: Fields | None) -> Any:
    """Return a message without the fields that an earlier version does not have."""
    if fields is None:
        return None
    return kind.model_validate(
        {name: value for name, value in fields.items() if name in kind.model_fields}
    )


def _column(fields: Fields, name: str, count: int) -> Any:
    values = fields.get(name)
    return np.full(count, np.nan, np.float32) if values is None else np.array(values, np.float32)


def _track(side: str, track: Fields) -> Any:
    columns, messages = module("coordinator.core.measure.columns"), module("exchange.messages")
    edges = np.array(track["edges_s"], np.float64)
    count = len(edges) - 1
    names = ("retransmits_count", "rtt_s", "cwnd_bytes", "packets_count", "lost_count")
    return columns.disjoint_track(
        (columns.TrackColumns if IS_REVIEWED else columns.IntervalColumns)(
            side=messages.Side(side),
            flow=messages.Flow(track["flow"]),
            first_data_at_s=track["first_data_at_s"],
            start_s=edges[:-1],
            end_s=edges[1:],
            transferred_bytes=np.array(track["bytes"], np.float64),
            omitted=np.zeros(count, np.bool_),
            **{name: _column(track, name, count) for name in names},
        )
    )


def _host(host: Fields | None) -> Any:
    columns = module("coordinator.core.measure.columns")
    if host is None:
        return columns.NO_HOST
    edges = np.array(host["edges_at_s"], np.float64)
    count = len(edges) - 1
    return columns.HostColumns(
        start_at_s=edges[:-1],
        end_at_s=edges[1:],
        nic_rx_bytes=np.array(host["nic_rx_bytes"], np.float64),
        nic_tx_bytes=np.array(host["nic_tx_bytes"], np.float64),
        **{
            name: _column(host, name, count)
            for name in ("drops_count", "cpu_busy_ratio", "cpu_busiest_core_ratio")
        },
    )


def _ledger(ledger: Fields | None) -> Any:
    if ledger is None:
        return None
    edges = np.array(ledger["edges_at_s"], np.float64)
    evidence = module("coordinator.core.measure.evidence")
    return (evidence.FirewallLedger if IS_REVIEWED else evidence.CounterRecord)(
        source="device",
        layer=ledger.get("layer", "ip"),
        start_s=edges[:-1],
        end_s=edges[1:],
        bytes=np.array(ledger["bytes"], np.float64),
        grain_s=float(np.median(np.diff(edges))),
        read_at=at(edges[-1] + 60),
        flows=tuple(map(module("exchange.messages").Flow, ledger["flows"])),
    )


async def _prometheus(source: Fields) -> Any:
    """Read a counter from a Prometheus server."""
    span = (at(source["from_s"]), at(source["before_s"]))
    direction = module("exchange.messages").Direction.FORWARD
    if IS_REVIEWED:
        ledger = module("coordinator.device.ledgers.prometheus_source").PrometheusLedger(
            source["url"], "bytes", "bytes_total", layer="ip"
        )
        return await ledger.read(*span, direction)
    telemetry = "coordinator.device.telemetry"
    counter = {"query": "bytes", "unit": "bytes_total", "layer": "ip"}
    fields = {"type": "prometheus", "device": "fw", "url": source["url"], "byte_counter": counter}
    opened = module(f"{telemetry}.prometheus").open_source(fields)
    return (
        await module(f"{telemetry}.device_counter").DeviceCounter([opened]).read(*span, direction)
    )


async def _telemetry(witness: Fields | None) -> Any:
    """Poll a device that sends its own timestamps, with a simulated clock."""
    if witness is None:
        return None
    if IS_REVIEWED:
        polled, files = (
            module(f"coordinator.device.witnesses.{name}") for name in ("polled", "witness_file")
        )
        quantity = module("coordinator.core.measure.testimony").Quantity(witness["quantity"])
    else:
        polled = files = module("coordinator.device.telemetry.polling")
        quantity = module("coordinator.core.measure.telemetry").Quantity(witness["quantity"])
    now_s = 0.0

    async def ask() -> Any:
        reading = (polled.Reading if IS_REVIEWED else polled.PolledValue)(
            quantity=quantity, value=value
        )
        result = polled.Answer if IS_REVIEWED else polled.PollResult
        return result(readings=[reading], at_s=now_s + witness["off_s"])

    kind = {"source" if IS_REVIEWED else "type": "rest"}
    entry = files.PolledEntry(**kind, device="device", poll_s=witness["every_s"])
    clocks = {"wall_s": lambda: now_s, "steady_s": lambda: now_s}
    if IS_REVIEWED:
        device = polled.PolledWitness(ask, name="rest", entry=entry, **clocks)
    else:
        rest = polled.PolledDevice(request=ask, name="rest")
        device = polled.PolledSource(entry, rest, clocks=polled.Clocks(**clocks))
    now_s = witness["from_s"]
    for value in witness["values"]:  # noqa: B007 - `ask` answers it
        await device.poll()
        now_s += witness["every_s"]
    query = device.read if IS_REVIEWED else device.query
    return await query(at(witness["from_s"] - 600), at(now_s + 600))


# Parts --------------------------------------------------------------------------------------------


def clock(text: str, now_s: float) -> Fields:
    """Return the clock state from ``chronyc -c tracking``, and the reason that blocks a burst."""
    clocks = module("agent.clock")
    reading = clocks.parse_tracking(text, at(now_s))
    return {
        "bound_s": reading.bound_s,
        "synchronised": reading.synchronised,
        "problem": clocks.clock_problem(reading, 0.005),
    }


def kernel_clock(status: int, offset_us: int, error_us: int) -> Fields:
    """Return the clock state of a host from the result of ``adjtimex``."""
    return _json(module("agent.clock").judge_timex(0, status, offset_us, error_us, at(0.0)))


def search(question: Fields, capacity: float, paced_ratio: float) -> Fields:
    """Search the capacity of a path with an inaccurate sender and return the result."""
    searches, studies = module("coordinator.studies.search"), module("coordinator.studies.study")
    requested = studies.Search.model_validate(question)
    spec = module("coordinator.core.plan.spec").RunSpec(scenario="review")
    results: list[Any] = []
    while (offer := searches.next_offer(requested, spec, results)) is not None:
        sent = offer * paced_ratio
        received = min(sent, capacity)
        results.append(
            studies.TrialResult(
                index=len(results),
                offered_bits_per_second=offer,
                verdict="measured",
                completeness_ratio=1.0,
                sent_bits_per_second=sent,
                received_bits_per_second=received,
                retransmit_ratio=1 - received / sent,
            )
        )
    answer_of = getattr(searches, "search_answer", None) or searches.found
    return {"highest": answer_of(requested, spec, results).highest_bits_per_second}


def join(plan: Fields, claim: Fields, report: Fields, tests: Sequence[Fields]) -> Fields:
    """Return the server records that match the only pair of a run, and the unmatched ones."""
    evidence, messages = module("coordinator.core.measure.evidence"), module("exchange.messages")
    read = module("coordinator.core.plan.spec").Plan.model_validate(plan)
    records = [
        _Record(_message(messages.ServerTest, test), str(index)) for index, test in enumerate(tests)
    ]
    if not IS_REVIEWED:
        evidence = module("coordinator.core.measure.records.server_tests")
    joined = evidence.join_tests(
        read.bursts[0],
        read.pairs,
        {0: _message(messages.Claim, claim)},
        {0: _message(messages.JobReport, report)},
        records,
    )
    return {
        "joined": [record.name for record in joined.records.values()],
        "foreign_tests": [
            record.name for record in (joined.strays if IS_REVIEWED else joined.foreign_tests)
        ],
    }


@dataclass(frozen=True)
class _Record:
    test: Any
    name: str
    tracks: tuple[Any, ...] = ()
    host: Any = None


async def _host_seconds(address: str, size_bytes: int) -> Any:
    """Send bytes to an address of this host and return the counters of its agent."""
    hosts, counters = module("agent.host"), module("agent.counters")
    host = hosts.find_host(
        module("agent.agent_settings").AgentSettings(
            role="server", agent_id="review", address=address
        )
    )
    log = counters.HostLog(60)
    # This is the request of `agent_context.AgentContext`. The reviewed version has only the host's
    # interface.
    route: Fields = {}
    if PREFIX:
        route = {"nic": module("agent.interfaces").route_interface(address, address)}
    with (counters.HostCounters if IS_REVIEWED else counters.HostCounterReader)(host.nic) as files:
        watch = asyncio.create_task(log.watch(files))
        begun_s = time.time()
        await asyncio.sleep(1.2 - begun_s % 1.0)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1 << 20):
                pass
            writer.close()

        server = await asyncio.start_server(serve, address, 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(bytes(size_bytes))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        server.close()
        await asyncio.sleep(2.2)
        watch.cancel()
    return log.between(begun_s, time.time(), **route)


def host_counted(size_bytes: int) -> Fields | None:
    """Return the counters of an agent for a test within one host, or None without an address."""
    hosts = module("agent.host")
    try:
        address = hosts.find_address()
    except hosts.HostUnknown:
        return None
    seconds = asyncio.run(_host_seconds(address, size_bytes))
    return {"sent_bytes": sum(second.nic_tx_bytes for second in seconds)}


def requests(engine: str, job: Fields) -> str:
    """Return the requests that a client sends to its server as arguments and files."""
    ports, engines = module("exchange.engines.port"), module("exchange.engines").engines()
    names = [program.name for program in engines[engine].client_programs]
    launch = engines[engine].client(
        (ports.ClientAsk if IS_REVIEWED else ports.ClientRequest)(
            job=module("exchange.messages").Job.model_validate(job),
            tools={name: ports.Tool(argv=(name,), version="1") for name in names},
            folder="/nowhere",
            bind=None,
        )
    )
    argv = [part for process in launch.processes for part in process.argv]
    return "\n".join([*argv, *(file.text for file in launch.files)])


def fire(test: Fields) -> Fields:
    """Run both ends of an iperf3 test behind the start gate, like agents.

    Args:
        test: Binary, argv prefixes of the two ends, address, traffic, start time and duration.

    Returns:
        A dict for each end with its usability, the error of the engine, and the readings by flow:
        start and end (epoch s) and bytes.
    """
    return asyncio.run(_fire(test))


async def _fire(test: Fields) -> Fields:
    messages, gates = module("exchange.messages"), module("agent.gate")
    arguments, port = module("exchange.engines.iperf3"), 5201
    engine, gate = module("agent.engine_process").find_iperf3(test["binary"]), gates.find_gate()
    traffic = messages.Traffic.model_validate(test["traffic"])
    job = messages.Job(
        run_id="reviewed",
        burst_index=0,
        pair_index=0,
        endpoint=messages.Endpoint(agent_id="server", address=test["address"], port=port),
        traffic=traffic,
        planned_start_at=at(test["at_s"]),
        duration_s=test["duration_s"],
    )
    server = arguments.server_argv(
        port,
        engine.version,
        binary=(*test["server"], *engine.binary),
        bind=test["address"],
        # The current version has this default.
        **({"silence_s": 15.0} if IS_REVIEWED else {}),
    )
    client = arguments.client_argv(job, engine.version, binary=(*test["client"], *engine.binary))
    # Servers of the reviewed version have no gate.
    serves = {"env": gates.serving_env(gate)} if hasattr(gates, "serving_env") else {}
    serving = asyncio.create_task(_end("server", server, test, **serves))
    # A server listens within milliseconds.
    await asyncio.sleep(1)
    fired = await _end("client", client, test, env=gates.gate_env(gate, test["at_s"], traffic))
    return {"client": fired, "server": await serving}


async def _end(end: str, argv: Sequence[str], test: Fields, **options: Any) -> Fields:
    """Run one end and parse its output."""
    reader = module("exchange.engines.iperf3_text").StreamReader()
    engines, deadline_at_s = module("agent.engine_process"), test["at_s"] + test["duration_s"] + 8
    known = (
        {"deadline_at_s": deadline_at_s, **options}
        if IS_REVIEWED
        else {
            "stop": engines.StopRules(deadline_at_s=deadline_at_s),
            "setup": engines.ProcessSetup(**options),
        }
    )
    process = await engines.EngineProcess.spawn(argv, on_line=reader.feed, **known)
    ended = await process.wait()
    release = module("agent.gate").read_release(ended.stderr)
    reading = reader.finish(
        ended.exit_code,
        stderr=ended.stderr,
        released_at_s=release.released_at_s if release else None,
        server_ahead_s=release.server_ahead_s if release else 0.0,
    )
    zero_s = reading.first_data_at_s or 0.0
    return {
        "usable": reading.usable,
        "error": reading.report.error,
        "readings": {
            flow: [
                [zero_s + row.start_s, zero_s + row.end_s, row.transferred_bytes] for row in rows
            ]
            for flow, rows in reading.intervals.items()
        },
    }


# Safety -------------------------------------------------------------------------------------------


def grain(text: str) -> Fields:
    """Parse a time grain of Azure Monitor and return its seconds, or the error's name and text."""
    folder = "ledgers.azure_monitor_source" if IS_REVIEWED else "telemetry.azure_monitor"
    source = module(f"coordinator.device.{folder}")
    try:
        return {"seconds": source.parse_grain(text)}
    except Exception as error:
        return {"error": type(error).__name__, "said": str(error)}


# A fast receiver gets its notice before so many pieces of a slow response.
DRIPS_COUNT: Final = 60


def announce(data_dir: str) -> Fields:
    """Announce a run to a slow webhook and to a fast one.

    Return the number of notices to the fast one during the slow response and in total.
    """
    return asyncio.run(_announce(data_dir))


class _Quick:
    name = "quick"

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.is_told = asyncio.Event()

    async def tell(self, notice: Any) -> None:
        self.told.add(notice.header.run_id)
        self.is_told.set()

    # This is the name in today's version.
    deliver = tell


async def _announce(data_dir: str) -> Fields:
    fabrics, notices = module("exchange.fabric"), module("coordinator.notices.announcer")
    fabric = fabrics.open_fabric(fabrics.FabricSettings(data_dir=data_dir))
    quick, drips_count, over = _Quick(), 0, asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal drips_count
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\nX-A: ")
            while not over.is_set() and not writer.is_closing():
                writer.write(b"a")
                await writer.drain()
                drips_count += 1
                if drips_count >= DRIPS_COUNT:
                    enough.set()
                await asyncio.sleep(0.05)
        writer.close()

    enough = asyncio.Event()
    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = "http://127.0.0.1:{1}/".format(*server.sockets[0].getsockname()[:2])
    slow = module("coordinator.notices.webhook").Webhook(url, "whsec_" + "QUFB" * 11)
    # The run is the newest one that ended and was not imported. Both receivers were configured
    # before its end.
    headers = [
        header
        async for _, header in fabric.records.private.scan_runs()
        if header.outcome is not None
        and await fabric.records.private.read_document(
            header.run_id, module("exchange.records").Document.IMPORT
        )
        is None
    ]
    now = min(header.created_at for header in headers)
    announcer = notices.Announcer(fabric.records, [slow, quick], lambda: now)
    now = min(header.outcome.ended_at for header in headers)
    check = getattr(announcer, "deliver_due", None) or announcer.look
    looking = asyncio.create_task(check())
    waits = [asyncio.create_task(event.wait()) for event in (enough, quick.is_told)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    reported_count = min(1, len(quick.told))
    over.set()
    await asyncio.wait_for(quick.is_told.wait(), 60)
    for task in (looking, *waits):
        task.cancel()
    await asyncio.gather(looking, *waits, return_exceptions=True)
    server.close()
    await fabric.close()
    return {"while it dripped": reported_count, "in the end": min(1, len(quick.told))}


DOORS: Final[Mapping[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        *(announce, clock, command, fire, grain, host_counted, join, judge, kernel_clock),
        *(requests, search),
    )
}


def main() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"answer": DOORS[name](*arguments)}
        except Exception as error:
            answer = {"error": repr(error)}
        json.dump(answer, answers)
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main()
