"""Every second that an engine reports, held against what was on the wire in that second."""

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.measure.align import receiving_side
from broadside.coordinator.core.measure.spread import Spread
from broadside.exchange.engines.port import Reading
from broadside.exchange.messages import Direction, Flow, Protocol, Side, Traffic
from tests.live.engines import engines, start_client, start_server
from tests.live.wire import Wire, wire

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.alone]

PORT = 5201
RATIO = 0.01  # of the rate: what a second may be off
SEGMENT_BYTES = 1448
LEAD_MAX_S = 0.5  # a reading of the server before the instant is empty
BITS_PER_SECOND = 40_000_000
WINDOW_BYTES = 300_000  # of all streams: less than the queue, so that only the dark second loses
SLOWED_S, DARK_S, LENGTH_S = 4, 7, 11  # s from the instant: half the rate; nothing for a second


@pytest.fixture
def path() -> Iterator[Wire]:
    with wire() as made:
        yield made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """One flow as one end told it; times are epoch s."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    told: NDArray[np.float64]  # payload bytes
    again: NDArray[np.float64]  # segments that were sent again: twice on the wire, once payload

    @classmethod
    def of(cls, reading: Reading, flow: Flow) -> "_Track":
        rows, zero_s = reading.intervals[flow], reading.first_data_at_s
        assert zero_s is not None
        names = ("start_s", "end_s", "transferred_bytes", "retransmits_count")
        starts, ends, told, again = (
            np.array([getattr(row, name) or 0.0 for row in rows], np.float64) for name in names
        )
        return cls(start_s=zero_s + starts, end_s=zero_s + ends, told=told, again=again)


async def _change(path: Wire, at_s: float) -> None:
    """Halve the rate, and later let nothing through for a second."""
    for from_s, change in (
        (SLOWED_S, lambda: path.limit(BITS_PER_SECOND // 2)),
        (DARK_S, lambda: path.darken(True)),
        (DARK_S + 1, lambda: path.darken(False)),
    ):
        await asyncio.sleep(at_s + from_s - time.time())
        await asyncio.to_thread(change)


@pytest.mark.parametrize("streams_count", [2, 64])
@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("version", sorted(engines()))
async def test_iperf3_seconds_are_those_of_the_wire(
    version: str, protocol: Protocol, direction: Direction, streams_count: int, path: Wire
) -> None:
    paced = BITS_PER_SECOND // streams_count if protocol is Protocol.UDP else None
    traffic = Traffic(
        protocol=protocol,
        direction=direction,
        streams_count=streams_count,
        stream_bits_per_second=paced,
        block_bytes=1000 if protocol is Protocol.UDP else 4096,
        window_bytes=WINDOW_BYTES // streams_count if protocol is Protocol.TCP else None,
    )
    path.limit(BITS_PER_SECOND * 11 // 10)
    engine = engines()[version]
    serving = await start_server(engine, PORT, address=path.address, prefix=path.server)
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
    assert one.reading.usable and other.reading.usable, (one.reading.report, other.reading.report)
    readings = {Side.CLIENT: one.reading, Side.SERVER: other.reading}
    for flow in direction.flows:
        side = receiving_side(flow)
        track = _Track.of(readings[side], flow)
        again = _Track.of(readings[Side.SERVER if side is Side.CLIENT else Side.CLIENT], flow).again
        meter = up if side is Side.SERVER else down
        seconds = at_s + np.arange(LENGTH_S + 1.0)
        crossed = meter.payload(seconds, protocol)
        # Each reading, where and as long as it is; then each second since the instant.
        own = meter.payload(np.append(track.start_s, track.end_s[-1]), protocol)
        inside = track.start_s >= at_s - LEAD_MAX_S
        allowed = RATIO * crossed.max() + again.max() * SEGMENT_BYTES
        assert np.all(np.abs(track.told - own)[inside] <= allowed), (flow, track.told, own)
        told = Spread(track.start_s, track.end_s, seconds).over(track.told)
        late_s = abs(track.start_s - at_s - np.round(track.start_s - at_s)).max()
        steps = np.abs(np.diff(crossed, prepend=0.0, append=0.0))
        allowed += late_s * np.maximum(steps[1:], steps[:-1])
        assert np.all(np.abs(told - crossed) <= allowed), (flow, told, crossed, late_s)
        assert told[DARK_S] < 0.15 * crossed.max()
