"""Tests for the counter file in the lab, using only rows that can be read."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from broadside.coordinator.device.telemetry.lab import LabEntry, LabSource
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.messages import Direction

START, END = datetime.fromtimestamp(1000, UTC), datetime.fromtimestamp(1004, UTC)


def opened(path: Path) -> LabSource:
    return LabSource(LabEntry(type="lab", device="lab", file=path))


# The last row is not complete, as if it were just being written.
TEXT = """at_s,up_bytes,down_bytes
990,1,1
999,100,10
1000,200,20
damaged
1001,50,30
1002,150,40
1003,250"""


@pytest.mark.parametrize(
    ("direction", "counts"),
    [
        (Direction.FORWARD, [100, np.nan, 100]),
        (Direction.REVERSE, [10, 10, 10]),
        (Direction.BIDIRECTIONAL, [110, np.nan, 110]),
    ],
)
async def test_reads_directions_with_payload_and_a_reset_is_unknown(
    tmp_path: Path, direction: Direction, counts: list[float]
) -> None:
    path = tmp_path / "counter.csv"
    path.write_text(TEXT)
    device_counter = await opened(path).query_bytes(START, END, direction)
    np.testing.assert_array_equal(device_counter.bytes, counts)
    assert device_counter.start_s.tolist() == [999, 1000, 1001]
    assert device_counter.layer == "ip"


DROPS = """at_s,up_bytes,down_bytes,up_drops_count,down_drops_count
999,100,10,5,0
1000,200,20,9,1
1001,300,30,2,1
1002,400,40,4,3
"""


@pytest.mark.parametrize(
    ("direction", "drops"),
    [
        (Direction.FORWARD, [4, np.nan, 2]),
        (Direction.REVERSE, [1, 0, 2]),
        (Direction.BIDIRECTIONAL, [5, np.nan, 4]),
    ],
)
async def test_reads_drops_of_the_shaper(
    tmp_path: Path, direction: Direction, drops: list[float]
) -> None:
    path = tmp_path / "counter.csv"
    path.write_text(DROPS)
    device_counter = await opened(path).query_bytes(START, END, direction)
    assert device_counter.drops_count is not None
    np.testing.assert_array_equal(device_counter.drops_count, drops)


async def test_file_without_drops_has_unknown_drops(tmp_path: Path) -> None:
    path = tmp_path / "counter.csv"
    path.write_text(TEXT)
    device_counter = await opened(path).query_bytes(START, END, Direction.FORWARD)
    assert device_counter.drops_count is not None
    assert np.isnan(device_counter.drops_count).all()


@pytest.mark.parametrize(("first", "counts_from_s"), [("0,0", 990.0), ("1,1", None)])
async def test_firewall_with_counters_at_zero_is_new(
    tmp_path: Path, first: str, counts_from_s: float | None
) -> None:
    path = tmp_path / "counter.csv"
    path.write_text(TEXT.replace("990,1,1", f"990,{first}"))
    device_counter = await opened(path).query_bytes(START, END, Direction.BIDIRECTIONAL)
    assert device_counter.counts_from_s == counts_from_s


async def test_missing_lab_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="No such file or directory; is the lab up"):
        await opened(tmp_path / "none").query_bytes(START, END, Direction.FORWARD)
