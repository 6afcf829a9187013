"""Tests for the clock offset between both ends, using the common start and the bytes."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.ends_offset import (
    CONTROL_S,
    DRIFT_MAX_RATIO,
    EndsOffset,
    place_ends,
)
from broadside.exchange.messages import Flow, Side
from tests.unit.coordinator.core.records import seconds

ZERO_S = 1_800_000_000.0
# Bytes/s
MEAN = 50_000_000.0


def _rates(count: int, seed: int = 1) -> NDArray[np.float64]:
    """Return the number of bytes in a tenth of a second, with a new level every two seconds."""
    levels = np.random.default_rng(seed).uniform(0.2, 1.8, count // 2 + 1)
    return np.repeat(levels, 20)[: 10 * count] * MEAN / 10


def _read(
    side: Side,
    rates: NDArray[np.float64],
    *,
    zero_s: float = ZERO_S,
    late_s: float = 0.0,
    every_s: float = 1.0,
    pace: float = 1.0,
    flow: Flow = Flow.UP,
) -> IntervalColumns:
    """Return the intervals that an end will record, based on the bytes in a tenth of a second.

    Use ``late_s`` to start its engine time late, and ``pace`` to set the speed of its clock.
    """
    reached = np.concatenate(([0.0], np.cumsum(rates)))
    count = int((len(rates) / 10 - late_s) // every_s)
    edges = late_s + every_s * np.arange(count + 1)
    amounts = np.diff(np.interp(edges, 0.1 * np.arange(len(reached)), reached))
    track = seconds(side, zero_s, [1] * count, flow=flow)
    times = np.asarray(pace * every_s * np.arange(count + 1), dtype=np.float64)
    return replace(track, start_s=times[:-1], end_s=times[1:], transferred_bytes=amounts)


def test_constant_series_use_the_common_start() -> None:
    """The start can differ by 1 for the control connection and by 0.2 for the round trip."""
    flat = np.full(300, MEAN / 10)
    result = place_ends(
        [_read(Side.CLIENT, flat)],
        [_read(Side.SERVER, flat, zero_s=ZERO_S + 3)],
        rtt_max_s=0.2,
        stamps_s=0.05,
    )
    assert result is not None
    assert (result.offset_s, result.drift_ratio, result.by_series) == (3.0, 0.0, False)
    assert (result.low_s, result.high_s) == pytest.approx((3 - 1.25, 3 + 1.25))
    assert result.bound_s == pytest.approx(1.25)
    assert result.is_significant


@pytest.mark.parametrize("late_s", [0.0, 0.3, 0.8])
def test_bytes_reveal_a_late_start_of_one_end(late_s: float) -> None:
    """If the server starts late, the offset should still be 2."""
    rates = _rates(60)
    result = place_ends(
        [_read(Side.CLIENT, rates)],
        [_read(Side.SERVER, rates, zero_s=ZERO_S + 2 + late_s, late_s=late_s)],
    )
    assert result is not None
    # Bytes will be interpolated, so the bound is met to within 0.1 seconds.
    assert result.low_s - 0.1 <= 2.0 <= result.high_s + 0.1
    assert result.high_s - result.low_s < 0.5
    # This is the value in the interval that is nearest to the difference of the stamps.
    assert result.offset_s == pytest.approx(min(2 + late_s, result.high_s))
    assert result.by_series
    assert result.drift_ratio == 0.0


def test_flow_with_few_rows_does_not_hide_the_other_flow() -> None:
    rates, few = _rates(60), _rates(5)
    result = place_ends(
        [_read(Side.CLIENT, rates), _read(Side.CLIENT, few, flow=Flow.DOWN)],
        [
            _read(Side.SERVER, rates, zero_s=ZERO_S + 2),
            _read(Side.SERVER, few, zero_s=ZERO_S + 2, flow=Flow.DOWN),
        ],
    )
    assert result is not None
    assert result.by_series
    assert result.offset_s == pytest.approx(2.0, abs=0.1)


def test_round_trip_widens_the_interval_on_both_sides() -> None:
    rates = _rates(60)
    ends = [_read(Side.CLIENT, rates)], [_read(Side.SERVER, rates)]
    narrow, wide = place_ends(*ends), place_ends(*ends, rtt_max_s=0.2)
    assert narrow is not None
    assert wide is not None
    assert wide.high_s - wide.low_s == pytest.approx(narrow.high_s - narrow.low_s + 0.4, abs=0.11)
    assert wide.offset_s == pytest.approx(0.0)
    assert not wide.is_significant


@pytest.mark.parametrize("side", list(Side))
def test_aligns_the_end_with_longer_readings(side: Side) -> None:
    rates = _rates(240)
    every = {Side.CLIENT: 1.0, Side.SERVER: 1.0} | {side: 5.0}
    result = place_ends(
        [_read(Side.CLIENT, rates, every_s=every[Side.CLIENT])],
        [_read(Side.SERVER, rates, zero_s=ZERO_S + 0.5, late_s=0.5, every_s=every[Side.SERVER])],
    )
    assert result is not None
    assert result.by_series
    assert result.offset_s == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("drift", [0.02, -0.02])
def test_estimates_drift_of_a_fast_or_slow_clock(drift: float) -> None:
    rates = _rates(400)
    result = place_ends([_read(Side.CLIENT, rates)], [_read(Side.SERVER, rates, pace=1 + drift)])
    assert result is not None
    assert result.drift_ratio == pytest.approx(drift, abs=5e-4)
    assert result.is_significant


@pytest.mark.parametrize("drift", [0.004, -0.004])
def test_estimates_drift_from_halves_if_both_ends_stop_together(drift: float) -> None:
    """Remove the end of the server's record, so that both ends will have the same length."""
    rates = _rates(400)
    server = _read(Side.SERVER, rates, pace=1 + drift)
    ends = 390.0
    client = _read(Side.CLIENT, rates)
    result = place_ends([client.rows(client.end_s <= ends)], [server.rows(server.end_s <= ends)])
    assert result is not None
    assert result.drift_ratio == pytest.approx(drift, rel=0.1)


def test_ignores_drift_above_the_slew_limit() -> None:
    rates = _rates(200)
    pace = 1 + 2 * DRIFT_MAX_RATIO
    result = place_ends([_read(Side.CLIENT, rates)], [_read(Side.SERVER, rates, pace=pace)])
    assert result is None or result.drift_ratio == 0.0


def test_match_far_from_the_common_start_is_a_contradiction() -> None:
    rates = _rates(240)
    late = _read(Side.SERVER, rates, late_s=30.0)
    assert place_ends([_read(Side.CLIENT, rates)], [late]) is None


def test_bytes_of_another_test_do_not_match() -> None:
    result = place_ends([_read(Side.CLIENT, _rates(240, 1))], [_read(Side.SERVER, _rates(240, 2))])
    assert result is not None
    assert not result.by_series
    assert result.bound_s == pytest.approx(CONTROL_S)


def test_ends_without_a_common_flow_use_their_stamps() -> None:
    rates = _rates(60)
    server = _read(Side.SERVER, rates, zero_s=ZERO_S - 1.5, flow=Flow.DOWN)
    result = place_ends([_read(Side.CLIENT, rates)], [server])
    assert result is not None
    assert (result.offset_s, result.low_s, result.high_s) == (-1.5, -2.5, -0.5)
    assert result.is_significant


def test_ignores_seconds_that_an_end_did_not_record() -> None:
    rates = _rates(120)
    server = _read(Side.SERVER, rates, zero_s=ZERO_S + 0.5, late_s=0.5)
    recorded = np.ones(len(server), bool)
    recorded[40:60] = False
    result = place_ends([_read(Side.CLIENT, rates)], [server.rows(recorded)])
    assert result is not None
    assert result.by_series
    assert result.offset_s == pytest.approx(0.0, abs=0.1)


def test_moves_a_server_to_the_clients_clock() -> None:
    offset = EndsOffset(offset_s=2.0, low_s=1.5, high_s=2.75, drift_ratio=0.25)
    track = seconds(Side.SERVER, ZERO_S, [10, 20])
    placed = offset.placed(track)
    assert placed.first_data_at_s == ZERO_S - 2
    assert list(placed.start_s) == [0.0, 0.8]
    assert list(placed.end_s) == [0.8, 1.6]
    assert list(placed.transferred_bytes) == [10, 20]
    assert offset.bound_s == 0.75


@pytest.mark.parametrize(
    ("low_s", "high_s", "drift", "differs"),
    [(-1, 1, 0.0, False), (0, 1, 0.0, False), (0.1, 1, 0.0, True), (-1, -0.1, 0.0, True),
     (-1, 0, 0.0, False), (-1, 1, 0.01, True)],
)  # fmt: skip
def test_clocks_differ_if_the_interval_excludes_zero(
    low_s: float, high_s: float, drift: float, differs: bool
) -> None:
    offset = EndsOffset(offset_s=0.0, low_s=low_s, high_s=high_s, drift_ratio=drift)
    assert offset.is_significant is differs
