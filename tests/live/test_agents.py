"""Test jobs of two real agents over loopback and every possible outcome of a job."""

import asyncio
import os
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from broadside.agent.engine_process import Iperf3Program
from broadside.agent.server import OneTestPort
from broadside.agent.sockets import read_ports
from broadside.exchange.messages import (
    DEFAULT_ENGINE,
    BurstEnd,
    ClockSource,
    EndCause,
    Flow,
    JobPhase,
    JobReport,
    Outcome,
    Side,
    StartMethod,
    Track,
)
from tests.live.free_ports import free_port
from tests.live.live_agents import Range, find_any_engine, find_engine, is_alive
from tests.live.waiting import until
from tests.one_table import records_in
from tests.unit.agent.doubles import MemoryTable, make_tools

pytestmark = [pytest.mark.live, pytest.mark.asyncio(loop_scope="module")]

# Some data needs to be recorded. An old iperf3 reports only at its end.
TRAFFIC_S: Final = 2.0


@dataclass
class Pair:
    """An idle server agent and an idle client agent."""

    range: Range
    engine: Iperf3Program
    port: int


@pytest.fixture(scope="module", params=["stream", "whole"])
def engine(request: pytest.FixtureRequest) -> Iperf3Program:
    result = find_engine(streaming=request.param == "stream")
    if result is None:
        pytest.skip(f"no iperf3 here that writes its JSON as a {request.param}; make setup")
    return result


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    engine: Iperf3Program, clock: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    port = free_port()
    site = Range(folder=tmp_path_factory.mktemp("range"), clock=clock)
    site.start("server", engine, agent_id="server-1", ports=port)
    site.start("client", engine, agent_id="client-1")
    try:
        await site.presence("server-1", lambda presence: presence.ports == (port,))
        await site.presence("client-1", lambda presence: presence.engine_version is not None)
        yield Pair(range=site, engine=engine, port=port)
    finally:
        await site.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def empty(clock: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Range]:
    site = Range(folder=tmp_path_factory.mktemp("range"), clock=clock)
    try:
        yield site
    finally:
        await site.close()


@pytest.fixture
def site(empty: Range) -> Iterator[Range]:
    """Yield a range without agents, for tests that need to start and break agents."""
    yield empty
    empty.kill_agents()


def sent_bytes(report: JobReport) -> int:
    return sum(total.sent_bytes or 0 for total in report.engine.totals) if report.engine else 0


def assert_seconds_add_up(track: Track, total_bytes: int | None) -> None:
    """Verify that the seconds of a track add up to its total.

    Data may be missing if the threads send it after the last count. iperf3 3.16 and later will
    count first and then stop the threads.
    """
    assert total_bytes is not None
    rest_bytes = total_bytes - sum(row.transferred_bytes for row in track.intervals)
    assert 0 <= rest_bytes < 0.05 * total_bytes


# With both engines ------------------------------------------------------------------------------


async def test_measures_job_at_client_and_server(pair: Pair) -> None:
    site, port = pair.range, pair.port
    job = await site.launch(port)
    report = await site.report(job)
    assert (report.outcome, report.reason) == (Outcome.MEASURED, None), site.log_text("client-1")
    assert report.start_method is StartMethod.GATE
    assert report.engine is not None
    assert report.engine.streams_count == 2
    assert report.engine.argv[0] == pair.engine.binary[0]
    (totals,) = report.engine.totals
    assert totals.flow is Flow.UP
    assert totals.received_bytes is not None
    # The rate is 2 x 20 Mbit/s for 2 s, which is 10 MB.
    assert totals.received_bytes > 4_000_000
    assert report.start_error_s is not None
    assert -0.05 < report.start_error_s < job.late_after_s
    for clock in (report.clock_before, report.clock_after):
        assert clock is not None
        assert clock.source is ClockSource.CHRONY
        assert clock.bound_s is not None

    seconds = await site.seconds(job)
    assert seconds is not None
    (track,) = seconds.tracks
    assert (track.side, track.flow) == (Side.CLIENT, Flow.UP)
    assert len(track.intervals) >= 2
    assert any(second.nic_tx_bytes > 1_000_000 for second in seconds.host)

    cookie = report.engine.cookie
    test = await site.tests(port, lambda t: t.test.cookie == cookie and t.test.ended_at is not None)
    assert test.test.client_address == "127.0.0.1"
    (received,) = test.tracks
    assert (received.side, received.flow) == (Side.SERVER, Flow.UP)
    assert_seconds_add_up(received, totals.received_bytes)

    assert b"sum_received" in await site.raw(job)
    claim = await site.claim(job, lambda claim: claim.phase is JobPhase.REPORTED)
    assert None not in (claim.armed_at, claim.running_at, claim.clock)


async def test_bidirectional_job_has_both_flows(pair: Pair) -> None:
    site, port = pair.range, pair.port
    await site.presence("server-1", lambda presence: presence.ports == (port,))
    traffic = {
        "streams_count": 2,
        "stream_bits_per_second": 20_000_000,
        "direction": "bidirectional",
    }
    job = await site.launch(port, traffic=traffic)
    report = await site.report(job)
    assert report.outcome is Outcome.MEASURED, report.reason
    seconds = await site.seconds(job)
    assert seconds is not None
    assert {track.flow for track in seconds.tracks} == {Flow.UP, Flow.DOWN}


async def test_sends_nothing_if_cancelled_before_start(pair: Pair) -> None:
    site, port = pair.range, pair.port
    await site.presence("server-1", lambda presence: presence.ports == (port,))
    job = await site.launch(port)
    await site.claim(job, lambda claim: claim.armed_at is not None)
    await site.fabric.records.runs.cancel_run(
        job.run_id, at=datetime.now(UTC), by="ann", reason="too dear"
    )
    report = await site.report(job)
    assert (report.outcome, report.reason) == (Outcome.ABANDONED, "cancelled by ann: too dear")
    assert report.reported_at < job.planned_start_at
    assert sent_bytes(report) == 0
    seconds = await site.seconds(job)
    assert seconds is None or not seconds.tracks


async def test_stops_within_five_seconds_after_cancel(pair: Pair) -> None:
    site, port = pair.range, pair.port
    await site.presence("server-1", lambda presence: presence.ports == (port,))
    job = await site.launch(port, duration_s=30)
    await site.claim(job, lambda claim: claim.running_at is not None)
    await asyncio.sleep(TRAFFIC_S)
    cancelled_at = datetime.now(UTC)
    await site.fabric.records.runs.cancel_run(
        job.run_id, at=cancelled_at, by="ann", reason="enough"
    )
    report = await site.report(job)
    assert (report.outcome, report.reason) == (Outcome.ABANDONED, "cancelled by ann: enough")
    assert report.ended_at is not None
    assert (report.ended_at - cancelled_at).total_seconds() < 5
    seconds = await site.seconds(job)
    assert seconds is not None
    assert sum(i.transferred_bytes for i in seconds.tracks[0].intervals) > 1_000_000
    # The port should be free after the end of the test.
    await site.presence("server-1", lambda presence: presence.ports == (port,))


async def test_early_end_is_a_planned_end(pair: Pair) -> None:
    site, port = pair.range, pair.port
    await site.presence("server-1", lambda presence: presence.ports == (port,))
    job = await site.launch(port, duration_s=30, may_end_early=True)
    await site.claim(job, lambda claim: claim.running_at is not None)
    end = BurstEnd(
        burst_index=0,
        at=job.planned_start_at + timedelta(seconds=5),
        cause=EndCause.CERTAIN,
        reason="certain",
        decided_at=datetime.now(UTC),
    )
    await site.fabric.records.runs.end_burst(job.run_id, end)
    report = await site.report(job)
    assert (report.outcome, report.reason) == (Outcome.MEASURED, None)
    assert report.stopped_at is not None
    assert report.stopped_at >= end.at
    assert report.engine is not None
    assert report.engine.error is None
    seconds = await site.seconds(job)
    assert seconds is not None
    # The last whole second is complete, and the engine did not run to its own end.
    assert 5 <= seconds.tracks[0].intervals[-1].end_s < 15
    await site.presence("server-1", lambda presence: presence.ports == (port,))


# With one engine --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def any_engine() -> Iperf3Program:
    return find_any_engine()


async def test_stops_burst_after_lease_expired(site: Range, any_engine: Iperf3Program) -> None:
    """Test an expired lease after late, rejected, invalid and duplicate jobs on the same client."""
    _, _, port = await site.start_pair("l", any_engine)

    late = await site.launch(port, starts_in_s=-1.0)
    report = await site.report(late)
    assert report.outcome is Outcome.MISSED
    assert "after the planned start" in (report.reason or "")

    outside = {"agent_id": "server-l", "address": "192.0.2.99", "port": port}
    refused = await site.launch(port, endpoint=outside)
    report = await site.report(refused)
    assert report.outcome is Outcome.REFUSED
    assert "192.0.2.99" in (report.reason or "")

    await site.send(late, body=b"10.2.1.1 5201", message_id="poison")
    # Use another message id, so that the queue cannot detect the duplicate.
    await site.send(late, message_id="again")
    lapsing = await site.launch(port, lease_s=6.0, duration_s=30)
    report = await site.report(lapsing)
    assert report.outcome is Outcome.ABANDONED
    assert "lease lapsed" in (report.reason or "")
    assert report.ended_at is not None
    assert (report.ended_at - lapsing.planned_start_at).total_seconds() < 10

    dead = {letter.message_id: letter for letter in await site.fabric.queue.dead_letters()}
    assert dead["poison"].reason == "NotJson"
    assert dead[refused.job_id].reason == "Refused"
    assert "192.0.2.99" in dead[refused.job_id].description
    assert "claim_lost" in site.log_text("client-l")
    (claim,) = (await site.fabric.records.bursts.read_claims(late.run_id, 0)).values()
    # The report should not be written again.
    assert (await site.report(late)).reported_at < report.reported_at
    assert claim.phase is JobPhase.REPORTED
    for agent in site.agents:
        assert agent.stop() == 0
    assert await site.fabric.records.fleet.read_presences() == []


async def test_retries_busy_server_until_free(site: Range, any_engine: Iperf3Program) -> None:
    port = free_port()
    site.start("server", any_engine, agent_id="server-b", ports=port)
    await site.presence("server-b", lambda presence: presence.ports == (port,))
    site.start("client", any_engine, agent_id="client-b", arm_lead_s=6)
    await site.presence("client-b", lambda presence: presence.engine_version is not None)
    foreign = await asyncio.create_subprocess_exec(
        *any_engine.binary, "-c", "127.0.0.1", "-p", str(port), "-t", "60", "-b", "1M",
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    busy = await site.presence("server-b", lambda presence: presence.busy_ports == (port,))
    assert busy.ports == ()
    # The client will arm during the foreign test and start after it.
    job = await site.launch(port, starts_in_s=7.5)
    await until("another arming", lambda: "arm_again" in site.log_text("client-b"))
    foreign.terminate()
    await foreign.wait()
    report = await site.report(job)
    assert report.outcome is Outcome.MEASURED, report.reason
    assert "busy" in (report.reason or ""), site.log_text("client-b")


async def test_loses_no_rows_during_table_outage(site: Range, any_engine: Iperf3Program) -> None:
    """Use a lock to block all writes from the first second of a burst until after its end."""
    _, _, port = await site.start_pair("o", any_engine)
    job = await site.launch(port, duration_s=6)
    await site.under_way(job, intervals_count=1)
    table = sqlite3.connect(site.fabric_settings.data_dir / "results.sqlite3", isolation_level=None)
    table.execute("BEGIN IMMEDIATE")
    try:
        spools = [site.folder / f"spool-{agent_id}" for agent_id in ("client-o", "server-o")]
        await until(
            "rows in both spools",
            lambda: all(any(spool.glob("*.row")) for spool in spools),
            timeout_s=40,
        )
        assert await site.fabric.records.bursts.read_reports(job.run_id, 0) == {}
    finally:
        table.rollback()
        table.close()
    report = await site.report(job)
    assert report.outcome is Outcome.MEASURED, report.reason
    assert report.engine is not None
    seconds = await site.seconds(job)
    assert seconds is not None
    (sent,) = report.engine.totals
    assert_seconds_add_up(seconds.tracks[0], sent.sent_bytes)
    test = await site.tests(port, lambda t: t.test.ended_at is not None)
    assert_seconds_add_up(test.tracks[0], sent.received_bytes)
    await until("empty spools", lambda: not any(any(spool.iterdir()) for spool in spools))


async def test_reports_engine_error_if_no_server_listens(
    site: Range, any_engine: Iperf3Program
) -> None:
    site.start("client", any_engine, agent_id="client-n")
    await site.presence("client-n", lambda presence: presence.problem is None)
    job = await site.launch(free_port())
    report = await site.report(job)
    assert report.outcome is Outcome.FAILED
    assert "unable to connect" in (report.reason or "")


async def test_claims_no_job_without_engine(site: Range, any_engine: Iperf3Program) -> None:
    site.start("client", any_engine, agent_id="client-e", iperf3="/nowhere/iperf3")
    presence = await site.presence("client-e", lambda presence: presence.problem is not None)
    assert "/nowhere/iperf3" in (presence.problem or "")
    assert presence.engine_version is None
    job = await site.launch(free_port(), starts_in_s=1.0)
    # Wait for the planned start to pass.
    await asyncio.sleep(1.0)
    assert await site.fabric.records.bursts.read_claims(job.run_id, 0) == {}


async def test_refuses_job_with_unknown_clock(site: Range, any_engine: Iperf3Program) -> None:
    site.start("client", any_engine, agent_id="client-c", chronyc_socket="/nowhere")
    await site.presence("client-c", lambda presence: presence.engine_version is not None)
    job = await site.launch(free_port())
    report = await site.report(job)
    assert report.outcome is Outcome.REFUSED
    assert "clock unknown" in (report.reason or "")
    assert report.clock_before is not None
    assert report.clock_before.source is ClockSource.UNKNOWN


async def test_killed_client_leaves_server_record_and_no_engine(
    site: Range, any_engine: Iperf3Program
) -> None:
    _, client, port = await site.start_pair("k", any_engine)
    job = await site.launch(port, duration_s=20)
    await site.under_way(job, intervals_count=2)
    engines = client.children()
    assert len(engines) == 1
    client.kill()
    await until("the end of the engines", lambda: not any(is_alive(pid) for pid in engines))
    test = await site.tests(port, lambda t: t.test.ended_at is not None)
    assert test.test.engine.error is not None
    (track,) = test.tracks
    assert len(track.intervals) >= 2
    assert sum(i.transferred_bytes for i in track.intervals) > 2_000_000
    assert await site.fabric.records.bursts.read_reports(job.run_id, 0) == {}
    claim = (await site.fabric.records.bursts.read_claims(job.run_id, 0))[0]
    assert claim.phase is JobPhase.RUNNING
    await site.presence("server-k", lambda presence: presence.ports == (port,))


async def test_stopped_client_abandons_job_and_stopped_server_saves_record(
    site: Range, any_engine: Iperf3Program
) -> None:
    server, client, port = await site.start_pair("s", any_engine)
    job = await site.launch(port, duration_s=20)
    await site.under_way(job, intervals_count=1)
    assert server.stop() == 0
    report = await site.report(job)
    assert report.outcome is Outcome.FAILED
    assert "server has terminated" in (report.reason or "")
    test = await site.tests(port, lambda t: t.test.ended_at is not None)
    assert sum(i.transferred_bytes for i in test.tracks[0].intervals) > 1_000_000

    idle = await site.launch(port, starts_in_s=30.0)
    await site.under_way(idle)
    assert client.stop() == 0
    report = await site.report(idle)
    assert (report.outcome, report.reason) == (Outcome.ABANDONED, "the agent is stopping")


async def test_reports_problem_while_port_is_in_use(site: Range, any_engine: Iperf3Program) -> None:
    port = free_port()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        site.start("server", any_engine, agent_id="server-p", ports=port)
        presence = await site.presence("server-p", lambda p: p.problem is not None)
        assert presence.ports == ()
        assert f"port {port}" in (presence.problem or "")
        assert "in use" in (presence.problem or "")
        assert "BROADSIDE_AGENT_PORTS" in (presence.problem or "")
        starts = site.log_text("server-p").count("problem")
    presence = await site.presence("server-p", lambda p: p.ports == (port,), within_s=20)
    assert presence.problem is None
    # It should be reported only once, not for every attempt.
    assert starts == 1


async def test_restarts_stuck_server(site: Range, any_engine: Iperf3Program) -> None:
    """Test a server that listens and has a connection but does not send."""
    port = free_port()
    hurry = {"SILENT_S": 2.0, "LOOK_S": 0.5}
    server = site.start("server", any_engine, agent_id="server-d", ports=port, hurry=hurry)
    await site.presence("server-d", lambda presence: presence.ports == (port,))
    (stuck,) = server.children()
    os.kill(stuck, signal.SIGSTOP)
    with socket.create_connection(("127.0.0.1", port)):
        await site.presence("server-d", lambda presence: presence.busy_ports == (port,))
        await until(
            "the end of the stuck server", lambda: stuck not in server.children(), timeout_s=30
        )
    assert "sends nothing" in site.log_text("server-d")
    await site.presence("server-d", lambda presence: presence.ports == (port,))


async def test_server_is_not_free_while_it_rebinds(
    any_engine: Iperf3Program,
) -> None:
    """Test that a server is not reported as free while it restarts.

    A tunnel was added or removed, so no client should be able to connect to the server that is
    about to stop.
    """
    port = free_port()
    tools = replace(make_tools(records_in(MemoryTable())), engine=any_engine)
    served = OneTestPort(
        port=port,
        installed=tools.installed(DEFAULT_ENGINE),
        tools=tools,
        begun=asyncio.Event(),
    )
    serving = asyncio.create_task(served.serve())

    def is_free() -> bool:
        served.update(read_ports([port])[port], time.time())
        return served.free

    try:
        await until("a free port", is_free)
        tools.changed.clear()
        served.bind("127.0.0.1")
        assert not served.free
        assert tools.changed.is_set()
        await until("a free port", is_free)
        assert served.address == "127.0.0.1"
    finally:
        tools.stopping.set()
        await serving


async def test_invalid_settings_print_one_line_and_exit_code_3(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BROADSIDE_")} | {
        "BROADSIDE_DATA_DIR": str(tmp_path),
        "BROADSIDE_AGENT_AGENT_ID": "x",
        "BROADSIDE_AGENT_ROLE": "client",
        "BROADSIDE_AGENT_PORTS": "no",
    }
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "broadside.agent", env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, text = await agent.communicate()
    assert agent.returncode == 3
    (line,) = text.decode().splitlines()
    assert "BROADSIDE_AGENT_PORTS" in line
    assert "5201-5204,5210" in line
