"""Test UDP on a path that loses datagrams, even those that open a stream."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from broadside.agent.gate import read_opening
from broadside.exchange.messages import Direction, Protocol, Traffic
from tests.live.engines import engines, start_client, start_server
from tests.live.wired_path import Wire, wire

pytestmark = [pytest.mark.live, pytest.mark.quiet, pytest.mark.needs_root]

PORT = 5201
LOSS_RATIO = 0.05
TRIES_COUNT = 10
BITS_PER_SECOND = 2_560_000


@pytest.fixture
def path() -> Iterator[Wire]:
    with wire() as made:
        yield made


@pytest.mark.parametrize("streams_count", [16, 64])
@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("version", sorted(engines()))
async def test_repeats_lost_first_datagram(
    version: str, direction: Direction, streams_count: int, path: Wire
) -> None:
    """Test with a loss at which most tests with 16 streams would hang without repetition."""
    path.lose(LOSS_RATIO)
    traffic = Traffic(
        protocol=Protocol.UDP,
        direction=direction,
        streams_count=streams_count,
        stream_bits_per_second=BITS_PER_SECOND // streams_count,
        block_bytes=1000,
    )

    async def play(port: int) -> None:
        engine = engines()[version]
        serving = await start_server(engine, port, address=path.address, prefix=path.server)
        at_s = time.time() + 8
        firing = await start_client(
            engine,
            port,
            traffic,
            duration_s=3,
            address=path.address,
            prefix=path.client,
            release_at_s=at_s,
            stop_in_s=30,
        )
        one, other = await asyncio.gather(firing.end(), serving.end())
        assert one.reading.usable, (one.exit.stderr, one.reading.report)
        assert other.reading.usable, other.reading.report
        assert one.reading.report.streams_count == streams_count
        assert one.reading.first_data_at_s is not None
        assert one.reading.first_data_at_s > at_s - 0.01
        for total in one.reading.report.totals:
            assert total.packets_count and total.lost_count is not None
            assert total.lost_count / total.packets_count == pytest.approx(LOSS_RATIO, abs=0.03)
            assert total.received_bytes is not None and total.sent_bytes is not None
            assert 0.85 < total.received_bytes / total.sent_bytes < 0.99
            # A repeated opening datagram is not a data packet and has no sequence number.
            assert total.jitter_s is not None and total.jitter_s < 0.1

    await asyncio.gather(*(play(PORT + item) for item in range(TRIES_COUNT)))


@pytest.mark.parametrize("version", sorted(engines()))
async def test_detects_path_without_udp_before_the_start(version: str, path: Wire) -> None:
    path.lose(1.0)
    engine = engines()[version]
    serving = await start_server(engine, PORT, address=path.address, prefix=path.server)
    traffic = Traffic(protocol=Protocol.UDP, streams_count=16, stream_bits_per_second=200_000)
    at_s = time.time() + 5
    firing = await start_client(
        engine,
        PORT,
        traffic,
        address=path.address,
        prefix=path.client,
        release_at_s=at_s,
        stop_in_s=30,
    )
    end = await firing.end()
    assert end.exit.ended_at_s < at_s
    assert end.exit.stopped is None
    assert "read from stream socket" in (end.reading.report.error or "")
    opening = read_opening(end.exit.stderr)
    assert opening is not None and opening.unanswered_count == opening.streams_count == 3
    await serving.end()
