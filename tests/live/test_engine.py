"""Test real iperf3 on loopback with both output formats, all pairings and all ways to end."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from broadside.agent.engine_process import EngineUnusable, Iperf3Program
from broadside.agent.gate import HOLD_MAX_S, find_gate
from broadside.agent.sockets import read_ports
from broadside.exchange.engines.iperf3 import streams_json
from broadside.exchange.engines.port import StartBasis
from broadside.exchange.messages import Direction, Protocol, Traffic
from tests.live.engines import (
    PATIENCE_S,
    Running,
    carried_bytes,
    engines,
    start_client,
    start_server,
)
from tests.live.free_ports import free_port
from tests.live.live_agents import is_alive
from tests.live.waiting import until
from tests.unit.agent.engine_runs import run_engine

pytestmark = pytest.mark.live

# The rate is per stream. It is low because many tests run at the same time.
LIGHT_BITS_PER_SECOND = 10_000_000
KINDS = [
    Traffic(
        protocol=protocol,
        direction=direction,
        streams_count=3,
        stream_bits_per_second=LIGHT_BITS_PER_SECOND,
        omit_s=omit_s,
    )
    for protocol, direction, omit_s in itertools.product(
        (Protocol.TCP, Protocol.UDP), Direction, (0, 1)
    )
]
FORWARD = KINDS[0]
# The bytes of one and a half intervals.
INTERVAL_BYTES = round(1.5 * FORWARD.streams_count * LIGHT_BITS_PER_SECOND / 8)
# Busy cores will need a long time to start all of them.
HOLDS_S = (4.0, HOLD_MAX_S, HOLD_MAX_S, HOLD_MAX_S)
# The minimum number of samples of a waiting client before it counts as not prioritised.
SAMPLES_MIN_COUNT = 5


@pytest.fixture(scope="module")
def ports() -> Iterator[int]:
    return iter(free_port, None)


@pytest.fixture(params=sorted(engines()))
def engine(request: pytest.FixtureRequest) -> Iperf3Program:
    return engines()[request.param]


def test_iperf3_with_and_without_json_stream_is_available() -> None:
    assert {streams_json(engine.version) for engine in engines().values()} == {True, False}, (
        "needs an iperf3 before 3.17 on PATH and a newer one: sh deploy/iperf3.sh"
    )


# Successful tests --------------------------------------------------------------------------------


@pytest.mark.parametrize("server", sorted(engines()))
@pytest.mark.parametrize("client", sorted(engines()))
async def test_every_traffic_kind_starts_at_the_planned_time(
    client: str, server: str, ports: Iterator[int]
) -> None:
    async def fire(traffic: Traffic, port: int) -> None:
        serving = await start_server(engines()[server], port)
        at_s = time.time() + 3.2
        firing = await start_client(engines()[client], port, traffic, release_at_s=at_s)
        one, other = await asyncio.gather(firing.end(), serving.end())
        for end in (one, other):
            assert end.reading.report.error is None
            assert end.reading.usable
            assert end.exit.stopped is None
            assert set(end.reading.intervals) == set(traffic.direction.flows)
            report = end.reading.report
            assert (report.protocol, report.direction) == (traffic.protocol, traffic.direction)
            assert (report.streams_count, report.omit_s) == (3, traffic.omit_s)
        assert one.reading.report.cookie == other.reading.report.cookie
        assert one.release is not None
        assert one.release.gate_reached_at_s < at_s <= one.release.released_at_s
        assert one.reading.first_data_at_s is not None
        # The tolerance is the estimator's own error.
        assert one.reading.first_data_at_s > at_s - 0.01
        live = streams_json(engines()[client].version)
        assert one.reading.start_basis is (StartBasis.ARRIVALS if live else StartBasis.RELEASE)
        for total in one.reading.report.totals:
            assert total.sent_bytes is not None and total.received_bytes is not None
            # A lead that was not read or an omitted second would add a second. The end will be late
            # on a busy host.
            assert total.sent_s == pytest.approx(total.received_s, abs=0.75)

    await asyncio.gather(*(fire(traffic, next(ports)) for traffic in KINDS))


def _policies(engine: Running) -> set[int]:
    """Return the scheduling policies of all threads, or an empty set if they have ended."""
    result = set()
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{engine.process.pid}/task").iterdir():
            with suppress(ProcessLookupError):
                result.add(os.sched_getscheduler(int(task.name)))
    return result


async def _scheduling_policies(
    engine: Iperf3Program, port: int, traffic: Traffic, wait_s: float, prefix: Sequence[str]
) -> tuple[set[int], set[int]] | None:
    """Return the scheduling policies of a waiting client, and those until its end.

    The result is None if the client or the samples were too late to see both phases.
    """
    serving = await start_server(engine, port)
    at_s = time.time() + wait_s
    firing = await start_client(
        engine, port, traffic, duration_s=5, release_at_s=at_s, prefix=prefix
    )
    sampled_at_s, early = [], set[int]()
    while time.time() < at_s and os.SCHED_FIFO not in early:
        sampled_at_s.append(time.time())
        early |= _policies(firing)
        await asyncio.sleep(0.02)
    await until(
        "normal priority",
        lambda: time.time() > at_s and os.SCHED_FIFO not in _policies(firing),
        PATIENCE_S,
    )
    later = set[int]()
    # Continue to sample until the client ends.
    while now := _policies(firing):
        later |= now
        await asyncio.sleep(0.2)
    one, other = await asyncio.gather(firing.end(), serving.end())
    assert one.reading.usable and other.reading.usable
    release = one.release
    assert release is not None
    # A client has normal priority until the servers are ready.
    ahead_s = release.server_ahead_s
    urgent_at_s = release.released_at_s - ahead_s if ahead_s else release.gate_reached_at_s
    checks_count = sum(urgent_at_s < check_at_s for check_at_s in sampled_at_s)
    seen = os.SCHED_FIFO in early or checks_count >= SAMPLES_MIN_COUNT
    return (early, later) if seen and urgent_at_s < at_s and later else None


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "not allowed"])
async def test_waiting_client_has_realtime_priority_only_until_start(
    engine: Iperf3Program, ports: Iterator[int], allowed: bool
) -> None:
    prefix = () if allowed else ("setpriv", "--bounding-set=-sys_nice")

    async def fire(traffic: Traffic) -> None:
        for lock_s in HOLDS_S:
            if turns := await _scheduling_policies(engine, next(ports), traffic, lock_s, prefix):
                break
        else:
            pytest.fail(f"no client was seen while waiting, in {len(HOLDS_S)} tries")
        early, later = turns
        assert (os.SCHED_FIFO in early) == allowed
        assert later == {os.SCHED_OTHER}

    await asyncio.gather(*map(fire, KINDS))


async def test_long_idle_server_accepts_a_gated_test(
    engine: Iperf3Program, ports: Iterator[int]
) -> None:
    async def fire(traffic: Traffic, port: int) -> None:
        serving = await start_server(engine, port, silence_s=1.5)
        await asyncio.sleep(2)
        firing = await start_client(engine, port, traffic, release_at_s=time.time() + 1)
        one, other = await asyncio.gather(firing.end(), serving.end())
        assert one.reading.usable and other.reading.usable

    both = [kind for kind in KINDS if not kind.omit_s and kind.protocol is Protocol.TCP]
    await asyncio.gather(*(fire(traffic, next(ports)) for traffic in both))


async def test_long_idle_server_waits_for_late_data(
    engine: Iperf3Program, ports: Iterator[int]
) -> None:
    """Test as if clients got no CPU in the second before the planned start."""
    port, traffic = next(ports), Traffic(streams_count=2)
    serving = await start_server(engine, port, silence_s=1.0)
    await asyncio.sleep(1.5)
    release_at_s = time.time() + 2.5
    firing = await start_client(engine, port, traffic, release_at_s=release_at_s, sends_ahead=False)
    one, other = await asyncio.gather(firing.end(), serving.end())
    assert one.reading.usable, one.exit.stderr
    assert other.reading.usable, other.exit.stderr


async def test_reads_long_lines_of_many_streams(
    engine: Iperf3Program, ports: Iterator[int]
) -> None:
    port = next(ports)
    traffic = Traffic(streams_count=128, stream_bits_per_second=100_000, block_bytes=1_000)
    serving = await start_server(engine, port)
    end = await (await start_client(engine, port, traffic)).end()
    await serving.end()
    assert end.reading.usable
    assert end.reading.report.streams_count == 128


async def test_measures_over_ipv6(engine: Iperf3Program, ports: Iterator[int]) -> None:
    port = next(ports)
    serving = await start_server(engine, port, address="::1")
    firing = await start_client(engine, port, FORWARD, address="::1", release_at_s=time.time() + 1)
    end = await firing.end()
    assert end.reading.usable and end.release is not None
    assert (await serving.end()).reading.client_address == "::1"


async def test_gate_without_start_time_does_nothing(
    engine: Iperf3Program, ports: Iterator[int]
) -> None:
    port = next(ports)
    serving = await start_server(engine, port)
    library = find_gate()
    assert library is not None
    lines: list[bytes] = []
    argv = (*engine.binary, "-c", "127.0.0.1", "-p", str(port), "-t", "1", "-b", "1M", "-J")
    exit_ = await run_engine(
        argv,
        on_line=lambda line, _: lines.append(line),
        deadline_at_s=time.time() + 10,
        env=os.environ | {"LD_PRELOAD": str(library)},
    )
    await serving.end()
    assert (exit_.exit_code, exit_.stderr) == (0, "")
    assert b'"sum_received"' in b"".join(lines)


async def under_way(engine: Iperf3Program, port: int) -> tuple[Running, Running]:
    """Start a server and a client, and wait for the first interval."""
    serving = await start_server(engine, port)
    firing = await start_client(engine, port, FORWARD, duration_s=10)
    await until("a first interval", lambda: carried_bytes(port) > INTERVAL_BYTES, PATIENCE_S)
    return serving, firing


# Failing tests -----------------------------------------------------------------------------------


async def test_reports_refused_connection(engine: Iperf3Program, ports: Iterator[int]) -> None:
    end = await (await start_client(engine, next(ports), FORWARD)).end()
    assert not end.reading.usable
    assert "Connection refused" in (end.reading.report.error or "")


async def test_reports_busy_server(engine: Iperf3Program, ports: Iterator[int]) -> None:
    port = next(ports)
    serving = await start_server(engine, port)
    first = await start_client(engine, port, FORWARD, duration_s=3)
    await until("the first to have the server", lambda: carried_bytes(port) > 100_000, PATIENCE_S)
    second = await (await start_client(engine, port, FORWARD)).end()
    assert "busy" in (second.reading.report.error or "")
    one, other = await asyncio.gather(first.end(), serving.end())
    assert one.reading.usable and other.reading.usable


async def test_client_keeps_its_counts_if_server_is_killed(
    engine: Iperf3Program, ports: Iterator[int]
) -> None:
    serving, firing = await under_way(engine, next(ports))
    os.kill(serving.process.pid, signal.SIGKILL)
    one, other = await asyncio.gather(firing.end(), serving.end())
    assert "closed unexpectedly" in (one.reading.report.error or "")
    assert not one.reading.usable
    assert one.reading.intervals
    assert one.exit.stopped is None
    assert other.exit.exit_code == -signal.SIGKILL
    assert other.reading.report.truncated


async def test_server_keeps_its_counts_if_client_is_killed(
    engine: Iperf3Program, ports: Iterator[int]
) -> None:
    serving, firing = await under_way(engine, next(ports))
    os.kill(firing.process.pid, signal.SIGKILL)
    one, other = await asyncio.gather(firing.end(), serving.end())
    assert other.reading.report.error == "the client has unexpectedly closed the connection"
    assert not other.reading.usable
    assert other.reading.intervals and other.reading.report.cookie
    assert one.reading.report.truncated and not one.reading.usable


@pytest.mark.parametrize("before_start", [True, False])
async def test_abort_is_fast_and_keeps_the_counts(
    engine: Iperf3Program, ports: Iterator[int], before_start: bool
) -> None:
    port = next(ports)
    serving = await start_server(engine, port)
    release_at_s = time.time() + (8 if before_start else 0.3)
    firing = await start_client(engine, port, FORWARD, duration_s=10, release_at_s=release_at_s)
    await until("the client", lambda: read_ports([port])[port].connected, PATIENCE_S)
    if not before_start:
        await until("a first interval", lambda: carried_bytes(port) > INTERVAL_BYTES, PATIENCE_S)
    requested_at_s = time.time()
    firing.process.stop("cancelled by a test")
    firing.process.stop("again")
    end = await firing.end()
    assert end.exit.stopped == "cancelled by a test"
    assert end.exit.ended_at_s < min(
        requested_at_s + 5, release_at_s if before_start else requested_at_s + 5
    )
    assert "terminated" in (end.reading.report.error or "")
    assert not end.reading.usable
    assert bool(end.reading.intervals) is not before_start
    serving.process.stop("over")
    await serving.end()


async def test_deadline_stops_stuck_engine_with_its_counts(
    engine: Iperf3Program, ports: Iterator[int]
) -> None:
    port = next(ports)
    serving = await start_server(engine, port)
    firing = await start_client(engine, port, FORWARD, duration_s=60, stop_in_s=3)
    end = await firing.end()
    await serving.end()
    assert end.exit.stopped == "deadline"
    assert end.reading.intervals
    assert end.reading.report.totals[0].sent_bytes


# Processes ---------------------------------------------------------------------------------------


def ignore(line: bytes, at_s: float) -> None:
    """Ignore the line."""


async def test_kernel_kills_engine_at_hard_stop(
    engine: Iperf3Program, ports: Iterator[int]
) -> None:
    exit_ = await run_engine(
        (*engine.binary, "--server", "--port", str(next(ports))),
        on_line=ignore,
        deadline_at_s=None,
        hard_stop_at_s=time.time() + 0.5,
    )
    assert exit_.exit_code == -signal.SIGALRM
    assert exit_.stopped is None


async def test_kills_unresponsive_process_with_its_children() -> None:
    lines: list[bytes] = []
    exit_ = await run_engine(
        ("sh", "-c", "trap '' TERM; sleep 60 & echo $!; while :; do sleep 1; done"),
        on_line=lambda line, _: lines.append(line),
        deadline_at_s=time.time() + 2,
    )
    assert (exit_.exit_code, exit_.stopped) == (-signal.SIGKILL, "deadline")
    await until("the child to die", lambda: not is_alive(int(lines[0])), PATIENCE_S)


async def test_cancelled_wait_kills_the_engine() -> None:
    pids: list[int] = []
    waiting = asyncio.create_task(
        run_engine(
            ("sh", "-c", "echo $$; exec sleep 60"),
            on_line=lambda line, _: pids.append(int(line)),
            deadline_at_s=None,
        )
    )
    await until("the first line", lambda: bool(pids), PATIENCE_S)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not is_alive(pids[0])


async def test_failing_reader_stops_the_engine() -> None:
    def fail(line: bytes, at_s: float) -> None:
        raise RuntimeError(line.decode())

    with pytest.raises(RuntimeError, match="hello"):
        await run_engine(
            ("sh", "-c", "echo hello; echo again; exec sleep 60"),
            on_line=fail,
            deadline_at_s=time.time() + 30,
        )


async def test_long_output_does_not_block_the_reader() -> None:
    lines: list[bytes] = []
    exit_ = await run_engine(
        ("sh", "-c", "head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero; echo; printf end"),
        on_line=lambda line, _: lines.append(line),
        deadline_at_s=time.time() + 30,
    )
    assert [len(line) for line in lines] == [3_000_000, 3]
    assert len(exit_.stderr) == 65_536
    assert (exit_.exit_code, exit_.stopped) == (0, None)


async def test_missing_engine_error_names_the_fix() -> None:
    with pytest.raises(EngineUnusable, match=r"/nowhere/iperf3.*make setup"):
        await run_engine(("/nowhere/iperf3",), on_line=ignore, deadline_at_s=None)
