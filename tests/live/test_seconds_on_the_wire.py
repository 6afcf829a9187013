"""Compare the seconds that an engine reports with the bytes on the wire in these seconds."""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.agent.attempt import Attempt, AttemptLimits
from broadside.agent.client_processes import ClientProcesses
from broadside.agent.engine_process import Iperf3Program, ProcessSetup
from broadside.agent.gate import find_bodies
from broadside.agent.installed_engines import find_installed_engine
from broadside.agent.workspace import Workspace
from broadside.coordinator.core.measure.grid.resample import OverlapResampler
from broadside.coordinator.core.measure.records.evidence import receiving_side
from broadside.exchange.engines import engines as all_engines
from broadside.exchange.engines.port import (
    Certificate,
    ClientRequest,
    EngineResult,
    Launch,
    ServerRequest,
)
from broadside.exchange.messages import (
    Direction,
    Endpoint,
    Flow,
    Job,
    Protocol,
    Role,
    Side,
    Traffic,
)
from tests.live.certificates import make_certificates
from tests.live.engines import engines, start_client, start_server
from tests.live.wired_path import Meter, Wire, wire

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.alone]

PORT = 5201
# The permitted difference of a second, relative to the rate.
PROTOCOLS = (Protocol.TCP, Protocol.UDP)
RATIO = 0.01
TRIES_COUNT = 4
# Intervals can be this late if a core is busy, relative to full seconds.
LATE_MAX_S = 0.05
BITS_PER_SECOND = 40_000_000
# The window of all streams together should be smaller than the queue, so that only the dark second
# will lose packets.
WINDOW_BYTES = 300_000
# The times after the start are of half the rate and of one second without traffic.
SLOWED_S, DARK_S, LENGTH_S = 3, 5, 8


@pytest.fixture
def path() -> Iterator[Wire]:
    with wire() as made:
        yield made


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFlow:
    """Flow as reported by one end.

    Attributes:
        start_s: Start of each interval, epoch s.
        end_s: End of each interval, epoch s.
        transferred_bytes: Payload bytes of each interval.
    """

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    transferred_bytes: NDArray[np.float64]

    @classmethod
    def of(cls, reading: EngineResult, flow: Flow) -> "ReportedFlow":
        rows, zero_s = reading.intervals[flow], reading.first_data_at_s
        assert zero_s is not None
        starts, ends, reported = (
            np.array([getattr(row, name) for row in rows], np.float64)
            for name in ("start_s", "end_s", "transferred_bytes")
        )
        return cls(start_s=zero_s + starts, end_s=zero_s + ends, transferred_bytes=reported)


async def _change(path: Wire, at_s: float) -> None:
    """Halve the rate, and later drop all packets for one second."""
    for from_s, change in (
        (SLOWED_S, lambda: path.limit(BITS_PER_SECOND // 2)),
        (DARK_S, lambda: path.darken(True)),
        (DARK_S + 1, lambda: path.darken(False)),
    ):
        await asyncio.sleep(at_s + from_s - time.time())
        await asyncio.to_thread(change)


async def _play(
    engine: Iperf3Program, traffic: Traffic, path: Wire
) -> tuple[float, dict[Side, EngineResult], dict[Side, Meter]]:
    """Run a test and return its start time, the readings and the packets of both ends."""
    serving = await start_server(engine, PORT, address=path.address, prefix=path.server)
    path.limit(BITS_PER_SECOND * 11 // 10)
    with path.meters() as (down, up):
        at_s = float(math.ceil(time.time() + 4))
        firing = await start_client(
            engine,
            PORT,
            traffic,
            duration_s=LENGTH_S,
            address=path.address,
            prefix=path.client,
            release_at_s=at_s,
            stop_in_s=30,
        )
        changing = asyncio.create_task(_change(path, at_s))
        one, other = await asyncio.gather(firing.end(), serving.end())
        await changing
        await asyncio.sleep(0.2)
    assert one.reading.usable and other.reading.usable, (one.reading.report, other.reading.report)
    readings = {Side.CLIENT: one.reading, Side.SERVER: other.reading}
    return at_s, readings, {Side.CLIENT: down, Side.SERVER: up}


def _off(
    flow: Flow,
    at_s: float,
    readings: dict[Side, EngineResult],
    meters: dict[Side, Meter],
) -> float:
    """Return the largest difference of a second from the wire, relative to the limit."""
    side = receiving_side(flow)
    track = ReportedFlow.of(readings[side], flow)
    seconds = at_s + np.arange(LENGTH_S + 1.0)
    crossed = meters[side].payload(seconds)
    allowed = RATIO * crossed.max()
    # Compare the intervals at their own positions and lengths.
    local = meters[side].payload(np.append(track.start_s, track.end_s[-1]))
    worst = (np.abs(track.transferred_bytes - local) / allowed).max()
    # Compare the seconds since the start. A late interval contains parts of two seconds.
    reported = OverlapResampler(track.start_s, track.end_s, seconds).over(track.transferred_bytes)
    late_s = abs(track.start_s - at_s - np.round(track.start_s - at_s)).max()
    if late_s > LATE_MAX_S:
        return math.inf
    steps = np.abs(np.diff(crossed, prepend=0.0, append=0.0))
    mixed = allowed + late_s * np.maximum(steps[1:], steps[:-1])
    return float(max(worst, (np.abs(reported - crossed) / mixed).max()))


@pytest.mark.parametrize(
    ("protocol", "direction", "streams_count"),
    [
        *(
            (protocol, direction, 2)
            for protocol in (Protocol.TCP, Protocol.UDP)
            for direction in Direction
        ),
        (Protocol.TCP, Direction.FORWARD, 64),
    ],
)
@pytest.mark.parametrize("version", sorted(engines()))
async def test_iperf3_seconds_equal_those_on_the_wire(
    version: str, protocol: Protocol, direction: Direction, streams_count: int, path: Wire
) -> None:
    """Test that all seconds are within 1 % of the rate, even the first and the dark second.

    Compare to the payload that a receiver could have read. Retransmitted data is on the wire twice,
    and it is not yet possible to read data behind a lost segment. An engine may read 30 ms late if
    the cores are busy, so the test has several attempts. A real smear would occur in all of them.
    """
    traffic = Traffic(
        protocol=protocol,
        direction=direction,
        streams_count=streams_count,
        stream_bits_per_second=(
            BITS_PER_SECOND // streams_count if protocol is Protocol.UDP else None
        ),
        block_bytes=1000 if protocol is Protocol.UDP else None,
        window_bytes=WINDOW_BYTES // streams_count if protocol is Protocol.TCP else None,
    )
    tried = []
    for _ in range(TRIES_COUNT):
        at_s, readings, meters = await _play(engines()[version], traffic, path)
        tried.append(max(_off(flow, at_s, readings, meters) for flow in direction.flows))
        if tried[-1] <= 1:
            break
    assert min(tried) <= 1, tried


OTHERS = {
    "http": {"engine": "http", "options": {"body_bytes": 1_000_000}},
    "https": {"engine": "https", "options": {"body_bytes": 1_000_000, "verify": False}},
    "ftp": {"engine": "ftp", "options": {"file_bytes": 20_000_000}},
}


def _moved(launch: Launch, prefix: tuple[str, ...]) -> Launch:
    """Return the same launch, to be used inside a namespace."""
    processes = tuple(
        replace(process, argv=(*prefix, *process.argv)) for process in launch.processes
    )
    return replace(launch, processes=processes)


async def _download(name: str, path: Wire, folder: Path) -> float:
    """Return the largest difference of a second from the wire, relative to the rate."""
    traffic = Traffic.model_validate(
        {"direction": "reverse", "streams_count": 2 if name != "ftp" else 1, **OTHERS[name]}
    )
    path.limit(BITS_PER_SECOND)
    engine = all_engines()[name]
    certificates = make_certificates(folder, path.address)
    with ExitStack() as stack:
        client_place, server_place = (
            stack.enter_context(closing(Workspace(f"wire-{end}"))) for end in ("client", "server")
        )
        serving = engine.server(
            ServerRequest(
                port=PORT,
                address=path.address,
                tools=find_installed_engine(engine, Role.SERVER).tools,
                folder=str(server_place.path),
                duration_max_s=60,
                certificate=Certificate(
                    certificate=str(certificates.chain), key=str(certificates.key)
                ),
                bodies=find_bodies(),
            )
        )
        server_place.fill(
            replace(file, text=f"user root; {file.text}") if file.name == "nginx.conf" else file
            for file in serving.files
        )
        server = await Attempt.spawn(
            _moved(serving, path.server).processes[0],
            engine.server_reader(),
            AttemptLimits(raw_max_bytes=1_000_000),
        )
        await asyncio.sleep(1)
        at_s = float(math.ceil(time.time() + 1))
        job = Job(
            run_id="live",
            burst_index=0,
            pair_index=0,
            endpoint=Endpoint(agent_id="server", address=path.address, port=PORT),
            traffic=traffic,
            planned_start_at=datetime.fromtimestamp(at_s, UTC),
            duration_s=LENGTH_S,
        )
        launch = engine.client(
            ClientRequest(
                job=job,
                tools=find_installed_engine(engine, Role.CLIENT).tools,
                folder=str(client_place.path),
                bind=None,
                bodies=find_bodies(),
            )
        )
        client_place.fill(launch.files)
        with path.meters() as (down, _):
            await asyncio.sleep(at_s - time.time())
            changing = asyncio.create_task(_change(path, at_s))
            client = await ClientProcesses.spawn(
                engine,
                _moved(launch, path.client),
                job,
                AttemptLimits(raw_max_bytes=1_000_000, deadline_at_s=at_s + LENGTH_S + 10),
                lambda _: ProcessSetup(),
            )
            await client.exit
            await changing
            await asyncio.sleep(0.5)
        server.process.stop("over")
        await server.exit
    reading = client.read()
    assert reading.usable, reading.report
    seconds = at_s + np.arange(LENGTH_S + 1.0)
    crossed = down.payload(seconds)
    track = ReportedFlow.of(reading, Flow.DOWN)
    reported = OverlapResampler(track.start_s, track.end_s, seconds).over(track.transferred_bytes)
    return float((np.abs(reported - crossed) / crossed.max()).max())


@pytest.mark.parametrize("name", sorted(OTHERS))
async def test_download_seconds_equal_those_on_the_wire(
    name: str, path: Wire, tmp_path: Path
) -> None:
    """Test that all seconds are within 1 % of the rate with login, TLS and HTTP headers.

    There is no start gate, so part of the first second is over before the first byte.
    """
    tried = []
    for _ in range(TRIES_COUNT):
        tried.append(await _download(name, path, tmp_path))
        if tried[-1] <= RATIO:
            break
    assert min(tried) <= RATIO, tried
