"""Test pings to a device over real sockets, with an open port, a closed port and no host."""

import asyncio
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.coordinator.core.measure.telemetry import DeviceTelemetry, Quantity
from broadside.coordinator.device.telemetry.config import open_telemetry
from broadside.coordinator.device.telemetry.polling import PolledSource

pytestmark = [pytest.mark.live, pytest.mark.needs_root]


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def ping_telemetry(folder: Path, lines: str) -> DeviceTelemetry:
    path = folder / "telemetry.toml"
    path.write_text(f'[[source]]\ndevice = "fw"\ntype = "ping"\n{lines}\n')
    [source] = open_telemetry(path)
    assert isinstance(source, PolledSource)
    for _ in range(3):
        await source.poll()
        await asyncio.sleep(0.01)
    now = datetime.now(UTC)
    return await source.query(now - timedelta(minutes=1), now + timedelta(seconds=1))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_measures_icmp_and_tcp_round_trip_times(
    address: str, listening: int, tmp_path: Path
) -> None:
    received = await ping_telemetry(tmp_path, f'address = "{address}"\ntcp_port = {listening}')
    [icmp], [tcp] = received.of(Quantity.PING_ICMP), received.of(Quantity.PING_TCP)
    assert len(icmp.values) == len(tcp.values) == 3
    assert 0 < icmp.values.min() <= icmp.values.max() < 1
    assert 0 < tcp.values.min() <= tcp.values.max() < 1
    assert all(loss.values.max() == 0 for loss in received.of(Quantity.PING_LOSS))


async def test_refused_connection_counts_as_response(tmp_path: Path) -> None:
    received = await ping_telemetry(tmp_path, 'address = "127.0.0.1"\nicmp = false\ntcp_port = 1')
    assert len(received.of(Quantity.PING_TCP)[0].values) == 3


async def test_missing_host_is_a_loss_without_time(tmp_path: Path) -> None:
    # This address range is reserved (RFC 1112), so there will be no host.
    received = await ping_telemetry(tmp_path, 'address = "240.0.0.1"')
    assert not received.of(Quantity.PING_ICMP)
    [loss] = received.of(Quantity.PING_LOSS)
    assert loss.values.tolist() == [1.0, 1.0, 1.0]
