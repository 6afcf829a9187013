"""Test the engines other than iperf3 with two real agents on loopback and short bursts."""

import asyncio
import ftplib
import io
import os
import re
import signal
import tempfile
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from broadside.exchange.messages import (
    EngineReport,
    Job,
    JobReport,
    Outcome,
    Presence,
    Side,
    StartMethod,
)
from broadside.exchange.second_rows import TestSeconds
from tests.live.free_ports import free_port
from tests.live.live_agents import AgentProcess, Range, find_any_engine, is_alive
from tests.live.waiting import until
from tests.one_table import read_served

pytestmark = [pytest.mark.live, pytest.mark.asyncio(loop_scope="module")]

SERVICES = ("http", "https", "ftp")
CIPHER = "ECDHE-ECDSA-CHACHA20-POLY1305"
CHOSEN = f"https:1.2:{CIPHER}"


@dataclass
class Pair:
    """Server agent with every service, and a client agent."""

    range: Range
    server: AgentProcess
    client: AgentProcess
    ports: dict[str, int]

    async def fire(self, engine: str, duration_s: int = 2, **traffic: Any) -> tuple[Job, JobReport]:
        service = f"{engine}:1.2:{CIPHER}" if "tls" in traffic.get("options", {}) else engine
        job = await self.range.launch(
            self.ports[service],
            duration_s=duration_s,
            traffic={"engine": engine, **traffic},
        )
        return job, await self.range.report(job)

    async def served(self, engine: str, job: Job) -> TestSeconds:
        """Return the complete record of the server for a job."""

        def of_job(record: TestSeconds) -> bool:
            first = record.test.first_data_at
            is_same_burst = first is not None and first >= job.planned_start_at
            return is_same_burst and record.test.ended_at is not None

        return await self.range.tests(self.ports[engine], of_job)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(clock: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    engine = find_any_engine()
    site = Range(folder=tmp_path_factory.mktemp("range"), clock=clock)
    ports = {name: free_port() for name in (*SERVICES, CHOSEN)}
    services = " ".join(f"{name}={port}" for name, port in ports.items())
    server = site.start("server", engine, agent_id="server-1", ports=free_port(), services=services)
    client = site.start("client", engine, agent_id="client-1")
    try:
        for name, port in ports.items():
            engine_name, _, tls = name.partition(":")
            await site.presence(
                "server-1", partial(_serves, engine=engine_name, tls=tls, port=port)
            )
            await site.presence("client-1", partial(_works, engine=engine_name))
        yield Pair(range=site, server=server, client=client, ports=ports)
    finally:
        await site.close()


def _serves(presence: Presence, engine: str, tls: str, port: int) -> bool:
    state = presence.engine(engine, tls)
    return state is not None and port in state.ports


def _works(presence: Presence, engine: str) -> bool:
    state = presence.engine(engine)
    return state is not None and state.version is not None and state.problem is None


def _measures(report: JobReport) -> dict[str, float]:
    assert report.engine is not None
    return {measure.name: measure.value for measure in report.engine.measures}


def _received_bytes(engine: EngineReport | None) -> int:
    assert engine is not None
    (totals,) = engine.totals
    return totals.received_bytes or totals.sent_bytes or 0


async def _measured_at_both_ends(pair: Pair, engine: str, job: Job, report: JobReport) -> None:
    """Verify the common properties of all engines that download and upload."""
    direction = job.traffic.direction
    (flow,) = direction.flows
    assert (report.outcome, report.reason) == (Outcome.MEASURED, None), pair.range.log_text(
        "client-1"
    )
    assert report.start_method is StartMethod.TIMED_EXEC
    assert report.start_error_s is not None
    assert 0 <= report.start_error_s < job.late_after_s
    assert report.engine is not None
    assert (report.engine.engine, report.engine.direction) == (engine, direction)
    seconds = await pair.range.seconds(job)
    assert seconds is not None
    (track,) = seconds.tracks
    assert (track.side, track.flow) == (Side.CLIENT, flow)
    received_bytes = _received_bytes(report.engine)
    assert sum(row.transferred_bytes for row in track.intervals) == received_bytes > 1_000_000
    assert track.intervals[-1].end_s > job.duration_s - 1
    served = await pair.served(engine, job)
    assert served.test.client_address == "127.0.0.1"
    (sent,) = served.tracks
    assert (sent.side, sent.flow) == (Side.SERVER, flow)
    assert sum(row.transferred_bytes for row in sent.intervals) == _received_bytes(
        served.test.engine
    )
    assert _received_bytes(served.test.engine) >= 0.99 * received_bytes
    stored = await read_served(pair.range.fabric.records, served.test.started_at)
    assert [host for test, _, host in stored if test == served.test] != [()]
    assert served.test.engine.cpu_s is not None
    assert served.test.engine.cpu_payload_bytes == sum(
        row.transferred_bytes for row in sent.intervals
    )


async def test_https_downloads_at_the_request_rate(pair: Pair) -> None:
    """Test HTTPS. See tests/live/test_traffic.py for a test without TLS."""
    options = {"requests_per_second": 20, "body_bytes": 100_000}
    job, report = await pair.fire("https", options=options)
    await _measured_at_both_ends(pair, "https", job, report)
    count = _measures(report)["requests_count"]
    # Requests will be dropped if they were not sent by the end.
    assert 30 <= count <= 40
    assert _measures(report)["success_ratio"] == 1
    assert _received_bytes(report.engine) == count * 100_000
    assert report.engine is not None
    (latency,) = report.engine.distributions
    assert (latency.name, latency.unit) == ("latency", "s")
    assert sum(latency.counts.values()) == count
    assert len((await pair.range.raw(job)).splitlines()) == count


async def test_https_reports_the_negotiated_protocol(pair: Pair) -> None:
    options = {
        "requests_per_second": 20,
        "body_mix": "1000,20000",
        "keepalive": False,
        "server_name": "shop.lab.test",
        "tls_resume": True,
        "http2": True,
    }
    job, report = await pair.fire("https", options=options)
    assert _measures(report)["success_ratio"] == 1
    served = await pair.served("https", job)
    assert served.test.engine is not None
    counts = {measure.name: measure.value for measure in served.test.engine.measures}
    requests = counts["server_requests_count"]
    assert requests == counts["server_http2_count"] == counts["server_named_count"] > 0
    # Requests that began together with the first one have no session yet.
    assert 0 < counts["server_resumed_count"] < requests
    assert sum(count for name, count in counts.items() if name.startswith("tlsv1_3")) == requests
    assert abs(_received_bytes(report.engine) - requests * 10_500) <= 20_000


@pytest.mark.parametrize("engine", ["http", "https"])
async def test_http_uploads_are_counted_at_both_ends(pair: Pair, engine: str) -> None:
    options = {"requests_per_second": 20, "body_mix": "20000,2000000"}
    job, report = await pair.fire(engine, direction="forward", options=options)
    await _measured_at_both_ends(pair, engine, job, report)
    assert _measures(report)["success_ratio"] == 1
    served = await pair.served(engine, job)
    assert _received_bytes(served.test.engine) == _received_bytes(report.engine)


async def test_server_port_enforces_tls_version_and_cipher_suite(pair: Pair) -> None:
    options = {"requests_per_second": 20, "body_bytes": 20_000, "tls": "1.2", "tls_cipher": CIPHER}
    job, report = await pair.fire("https", options=options)
    assert _measures(report)["success_ratio"] == 1
    served = await pair.served(CHOSEN, job)
    counts = {measure.name: measure.value for measure in served.test.engine.measures}
    name = "tlsv1_2_ecdhe_ecdsa_chacha20_poly1305_count"
    assert counts[name] == counts["server_requests_count"]
    assert [name for name in counts if name.startswith("tls")] == [name]


async def test_large_bodies_do_not_compress(pair: Pair) -> None:
    for suffix, share in (("", 1.0), ("-75", 0.25)):
        for engine in ("http", "https"):
            url = f"{engine}://127.0.0.1:{pair.ports[engine]}/5000000{suffix}"
            async with httpx.AsyncClient(verify=False) as client:  # noqa: S501
                body = (await client.get(url)).content
            assert len(body) == 5_000_000
            assert len(zlib.compress(body)) / len(body) == pytest.approx(share, abs=0.01)
        body = await asyncio.to_thread(_retrieve, pair.ports["ftp"], f"5000000{suffix}")
        assert len(body) == 5_000_000
        assert len(zlib.compress(body)) / len(body) == pytest.approx(share, abs=0.01)


def _retrieve(port: int, name: str) -> bytes:
    parts: list[bytes] = []
    with ftplib.FTP(timeout=10) as client:  # noqa: S321
        client.connect("127.0.0.1", port)
        client.login("anonymous", "x")
        client.retrbinary(f"RETR {name}", parts.append)
        # Nobody can store a file, in place of the one that discards its content.
        for stored in ("new", name):
            with pytest.raises(ftplib.error_perm):
                client.storbinary(f"STOR {stored}", io.BytesIO(b"x"))
    return b"".join(parts)


@pytest.mark.parametrize("streams", [1, 4])
async def test_ftp_uploads_are_counted_and_discarded(pair: Pair, streams: int) -> None:
    pace = {"stream_bits_per_second": 40_000_000}
    options = {"file_bytes": 10_000_000}
    job, report = await pair.fire(
        "ftp", 6, direction="forward", streams_count=streams, options=options, **pace
    )
    await _measured_at_both_ends(pair, "ftp", job, report)
    sent_bytes = _received_bytes(report.engine)
    assert sent_bytes == pytest.approx(5e6 * streams * job.duration_s, rel=0.25)
    assert not [
        path
        for path in _folders("server-1")
        for path in path.rglob("files/upload*")
        if not path.is_symlink()
    ]


async def test_counts_refused_connections_as_errors(pair: Pair) -> None:
    job = await pair.range.launch(
        free_port(),
        duration_s=1,
        traffic={"engine": "http", "options": {"requests_per_second": 10}},
    )
    report = await pair.range.report(job)
    assert report.outcome is Outcome.FAILED
    assert "connection refused" in (report.reason or "")
    count = _measures(report)["requests_count"]
    assert 7 <= count <= 10
    assert _measures(report)["errors_connection_refused_count"] == count
    assert _measures(report)["success_ratio"] == 0


@pytest.mark.parametrize("segments", [1, 64])
async def test_ftp_downloads_until_the_end_of_the_burst(pair: Pair, segments: int) -> None:
    pace = {"stream_bits_per_second": 80_000_000} if segments == 1 else {}
    # The login is part of the measured time, so it reduces the rate.
    duration_s = 6 if pace else 2
    job, report = await pair.fire(
        "ftp", duration_s, streams_count=segments, options={"file_bytes": 20_000_000}, **pace
    )
    await _measured_at_both_ends(pair, "ftp", job, report)
    assert 0 < _measures(report)["kept_ratio"] <= 1.001
    if pace:
        assert _received_bytes(report.engine) == pytest.approx(10e6 * job.duration_s, rel=0.15)
    assert report.ended_at is not None
    assert (report.ended_at - job.planned_start_at).total_seconds() < job.duration_s + 6


async def test_cancelled_download_stops_within_five_seconds(pair: Pair) -> None:
    job = await pair.range.launch(
        pair.ports["https"], duration_s=30, traffic={"engine": "https", "streams_count": 4}
    )
    await pair.range.under_way(job, intervals_count=1)
    engines = pair.client.children()
    assert engines
    cancelled_at = datetime.now(UTC)
    await pair.range.fabric.records.runs.cancel_run(
        job.run_id, at=cancelled_at, by="ann", reason="enough"
    )
    report = await pair.range.report(job)
    assert (report.outcome, report.reason) == (Outcome.ABANDONED, "cancelled by ann: enough")
    assert report.ended_at is not None
    assert (report.ended_at - cancelled_at).total_seconds() < 5
    await until("the end of the engines", lambda: not any(is_alive(pid) for pid in engines))
    assert _folders("client-1") == []


async def test_killed_download_has_failed(pair: Pair) -> None:
    job = await pair.range.launch(pair.ports["ftp"], duration_s=20, traffic={"engine": "ftp"})
    await pair.range.under_way(job, intervals_count=1)
    (engine,) = pair.client.children()
    os.kill(engine, signal.SIGKILL)
    report = await pair.range.report(job)
    assert report.outcome is Outcome.FAILED
    assert "lftp was killed by signal 9" in (report.reason or "")


async def test_servers_run_unprivileged_and_listen_on_the_agent_address(pair: Pair) -> None:
    daemons = _descendants(pair.server.process.pid)
    named = {pid: _proc(pid, "comm").strip() for pid in daemons}
    services = [pid for pid, name in named.items() if name in ("nginx", "vsftpd")]
    # There are two nginx with workers and one vsftpd.
    assert len(services) >= 5
    as_root = re.compile(r"(?m)^Uid:\s+0\s")
    if as_root.search(_proc(pair.server.process.pid, "status")):
        for pid in services:
            assert not as_root.search(_proc(pid, "status")), named[pid]
    listening = _listening(pair.server.process.pid)
    assert {listening[port] for port in pair.ports.values()} == {"0100007F"}


async def test_no_process_survives_killed_agents(pair: Pair) -> None:
    """Run this test last, because it will end the server agent.

    The next agent with the same name should remove the folders.
    """
    job = await pair.range.launch(
        pair.ports["ftp"],
        duration_s=30,
        traffic={"engine": "ftp", "options": {"file_bytes": 100_000_000_000}},
    )
    await pair.range.under_way(job, intervals_count=1)
    client_children = _descendants(pair.client.process.pid)
    daemons = _descendants(pair.server.process.pid)
    pair.server.kill()
    pair.client.kill()
    await until(
        "the end of all processes",
        lambda: not any(is_alive(pid) for pid in (*daemons, *client_children)),
    )
    assert _folders("server-1") != []
    for role in ("server", "client"):
        pair.range.start(role, find_any_engine(), agent_id=f"{role}-1", ports=free_port())
    await until("empty folders", lambda: _folders("server-1") == [] and _folders("client-1") == [])


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def _folders(agent_id: str) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"broadside-{agent_id}@*"))


def _descendants(pid: int) -> list[int]:
    """Return all descendants of a process.

    This includes processes that other threads started.
    """
    results: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            results += [child, *_descendants(child)]
    return results


def _listening(pid: int) -> dict[int, str]:
    """Return the local addresses in the kernel's notation by listening port."""
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    places = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {int(port, 16): address for address, port in places}
