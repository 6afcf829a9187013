import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.live.progress import progress
from broadside.coordinator.core.measure.records.columns import NO_HOST, IntervalColumns
from broadside.coordinator.core.run_spec import Burst
from broadside.exchange.messages import Flow, Interval, Side, Track
from tests.seconds_as_columns import host_columns, track_columns
from tests.unit.coordinator.core.records import host_second
from tests.unit.coordinator.presences import NOW

BURST = Burst(index=0, planned_start_at=NOW, duration_s=10)


def track(first_data_s: float, intervals: list[tuple[float, float, int]]) -> IntervalColumns:
    return track_columns(
        Track(
            side=Side.CLIENT,
            flow=Flow.UP,
            first_data_at_s=NOW.timestamp() + first_data_s,
            intervals=tuple(
                Interval(start_s=begin, end_s=end, transferred_bytes=count)
                for begin, end, count in intervals
            ),
        )
    )


@given(
    first_data_s=st.floats(0, 0.9),
    counts=st.lists(st.integers(0, 10**10), min_size=1, max_size=9),
)
def test_progress_conserves_bytes(first_data_s: float, counts: list[int]) -> None:
    intervals = [(i * 1.0, i + 1.0, count) for i, count in enumerate(counts)]
    seen = progress("run-1", BURST, [([track(first_data_s, intervals)], NO_HOST)])
    total_bits = sum(second.fleet_bits_per_second for second in seen.seconds)
    assert total_bits == pytest.approx(sum(counts) * 8, rel=1e-9)


def test_pair_without_intervals_uses_host_counters() -> None:
    second = host_second(NOW.timestamp(), 1000)
    seen = progress(
        "run-1", BURST, [([track(0, [(0, 1, 500)])], NO_HOST), ([], host_columns([second]))]
    )
    (first,) = seen.seconds
    assert first.fleet_bits_per_second == pytest.approx(1500 * 8)
    assert (first.pairs_count, first.from_host_count) == (2, 1)
