"""Offset between the clocks of a test's ends: by the common start, narrowed by the bytes."""

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
MEAN = 50_000_000.0  # bytes a second


def _rates(count: int, seed: int = 1) -> NDArray[np.float64]:
    """Bytes of each tenth of a second, with features: a new level every two seconds."""
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
    """What an end reads of the bytes of each tenth of a second.

    Its engine time begins ``late_s`` after the first byte, and its clock runs by ``pace`` as fast.
    """
    reached = np.concatenate(([0.0], np.cumsum(rates)))
    count = int((len(rates) / 10 - late_s) // every_s)
    edges = late_s + every_s * np.arange(count + 1)
    amounts = np.diff(np.interp(edges, 0.1 * np.arange(len(reached)), reached))
    track = seconds(side, zero_s, [1] * count, flow=flow)
    times = np.asarray(pace * every_s * np.arange(count + 1), dtype=np.float64)
    return replace(track, start_s=times[:-1], end_s=times[1:], transferred_bytes=amounts)


def test_without_features_the_common_start_alone_places_the_ends() -> None:
    """Stamps are 3 s apart; the start may be off by 1 s of control and 0.2 s of round trip."""
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
def test_bytes_show_by_how_much_one_end_began_later(late_s: float) -> None:
    """The server's zero is late, and its stamp says 2 s + late: its clock is 2 s ahead."""
    rates = _rates(60)
    result = place_ends(
        [_read(Side.CLIENT, rates)],
        [_read(Side.SERVER, rates, zero_s=ZERO_S + 2 + late_s, late_s=late_s)],
    )
    assert result is not None
    # Between the edges of readings bytes are taken as even, here to within a tenth of a second.
    assert result.low_s - 0.1 <= 2.0 <= result.high_s + 0.1
    assert result.high_s - result.low_s < 0.5
    # Of the interval what is nearest to the difference of the stamps.
    assert result.offset_s == pytest.approx(min(2 + late_s, result.high_s))
    assert result.by_series
    assert result.drift_ratio == 0.0


def test_a_flow_with_few_rows_does_not_hide_the_other_one() -> None:
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


def test_a_round_trip_widens_the_interval_on_both_sides() -> None:
    rates = _rates(60)
    ends = [_read(Side.CLIENT, rates)], [_read(Side.SERVER, rates)]
    narrow, wide = place_ends(*ends), place_ends(*ends, rtt_max_s=0.2)
    assert narrow is not None
    assert wide is not None
    assert wide.high_s - wide.low_s == pytest.approx(narrow.high_s - narrow.low_s + 0.4, abs=0.11)
    assert wide.offset_s == pytest.approx(0.0)
    assert not wide.is_significant


@pytest.mark.parametrize("side", list(Side))
def test_the_end_with_longer_readings_is_placed_in_the_other(side: Side) -> None:
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
def test_a_clock_that_runs_faster_is_told(drift: float) -> None:
    rates = _rates(400)
    result = place_ends([_read(Side.CLIENT, rates)], [_read(Side.SERVER, rates, pace=1 + drift)])
    assert result is not None
    assert result.drift_ratio == pytest.approx(drift, abs=5e-4)
    assert result.is_significant


@pytest.mark.parametrize("drift", [0.004, -0.004])
def test_a_drift_shows_in_the_halves_where_the_ends_stop_together(drift: float) -> None:
    """The server's last seconds are missing, so the spans of both ends are as long."""
    rates = _rates(400)
    server = _read(Side.SERVER, rates, pace=1 + drift)
    ends = 390.0
    client = _read(Side.CLIENT, rates)
    result = place_ends([client.rows(client.end_s <= ends)], [server.rows(server.end_s <= ends)])
    assert result is not None
    assert result.drift_ratio == pytest.approx(drift, rel=0.1)


def test_more_drift_than_a_clock_is_slewed_by_is_none() -> None:
    rates = _rates(200)
    pace = 1 + 2 * DRIFT_MAX_RATIO
    result = place_ends([_read(Side.CLIENT, rates)], [_read(Side.SERVER, rates, pace=pace)])
    assert result is None or result.drift_ratio == 0.0


def test_bytes_that_fit_far_from_the_common_start_contradict_it() -> None:
    rates = _rates(240)
    late = _read(Side.SERVER, rates, late_s=30.0)
    assert place_ends([_read(Side.CLIENT, rates)], [late]) is None


def test_bytes_of_another_test_fit_nowhere_and_contradict_nothing() -> None:
    result = place_ends([_read(Side.CLIENT, _rates(240, 1))], [_read(Side.SERVER, _rates(240, 2))])
    assert result is not None
    assert not result.by_series
    assert result.bound_s == pytest.approx(CONTROL_S)


def test_ends_without_a_flow_in_common_are_placed_by_their_stamps() -> None:
    rates = _rates(60)
    server = _read(Side.SERVER, rates, zero_s=ZERO_S - 1.5, flow=Flow.DOWN)
    result = place_ends([_read(Side.CLIENT, rates)], [server])
    assert result is not None
    assert (result.offset_s, result.low_s, result.high_s) == (-1.5, -2.5, -0.5)
    assert result.is_significant


def test_seconds_that_an_end_did_not_record_are_not_compared() -> None:
    rates = _rates(120)
    server = _read(Side.SERVER, rates, zero_s=ZERO_S + 0.5, late_s=0.5)
    stored = np.ones(len(server), bool)
    stored[40:60] = False
    result = place_ends([_read(Side.CLIENT, rates)], [server.rows(stored)])
    assert result is not None
    assert result.by_series
    assert result.offset_s == pytest.approx(0.0, abs=0.1)


def test_a_server_is_placed_on_its_clients_clock() -> None:
    offset = EndsOffset(offset_s=2.0, low_s=1.5, high_s=2.75, drift_ratio=0.25)
    track = seconds(Side.SERVER, ZERO_S, [10, 20])
    placed = offset.placed(track)
    assert placed.first_data_at_s == ZERO_S - 2
    assert list(placed.start_s) == [0.0, 0.8]
    assert list(placed.end_s) == [0.8, 1.6]
    assert list(placed.transferred_bytes) == [10, 20]
    assert offset.bound_s == 0.75


@pytest.mark.parametrize(
    ("low_s", "high_s", "drift", "apart"),
    [(-1, 1, 0.0, False), (0, 1, 0.0, False), (0.1, 1, 0.0, True), (-1, -0.1, 0.0, True),
     (-1, 0, 0.0, False), (-1, 1, 0.01, True)],
)  # fmt: skip
def test_clocks_are_apart_where_the_interval_is(
    low_s: float, high_s: float, drift: float, apart: bool
) -> None:
    offset = EndsOffset(offset_s=0.0, low_s=low_s, high_s=high_s, drift_ratio=drift)
    assert offset.is_significant is apart
