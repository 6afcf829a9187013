"""Tests for gaps in the record. They are not used as zeros for any metric."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from tests.planted import measure
from tests.synthetic import Plant, fleet

MADE = fleet(
    Plant(pairs=30, bursts=1, burst_s=120, firewall_bits_per_second=None, device_counter=False),
    target_bits_per_second=100e9,
)


def _measured(gap: slice, count: int) -> BurstMeasurement:
    """Return the burst if a given gap is made for some pairs."""

    def without_gap(tracks: Sequence[IntervalColumns]) -> tuple[IntervalColumns, ...]:
        return tuple(track.rows(np.delete(np.arange(len(track)), gap)) for track in tracks)

    def without(pair: PairEvidence) -> PairEvidence:
        return replace(
            pair,
            client_tracks=without_gap(pair.client_tracks),
            server_tracks=without_gap(pair.server_tracks),
        )

    return measure(MADE.told(without, range(count)))[0]


@pytest.mark.parametrize("gap", [slice(50, 60), slice(3, 13), slice(100, 110)])
def test_gaps_do_not_lower_rates_and_are_reported(gap: slice) -> None:
    complete, part = _measured(slice(0), 0), _measured(gap, 6)
    figures, fewer = complete.summary, part.summary
    assert fewer.fleet_received_bits_per_second == pytest.approx(
        figures.fleet_received_bits_per_second, rel=2e-3
    )
    assert fewer.fleet_sent_bits_per_second == pytest.approx(
        figures.fleet_sent_bits_per_second, rel=2e-3
    )
    for lost, full in zip(fewer.pairs[:6], figures.pairs[:6], strict=True):
        assert lost.received_bits_per_second == pytest.approx(
            full.received_bits_per_second, rel=0.01
        )
    assert fewer.cliff is None
    assert figures.window is not None
    assert fewer.window is not None
    assert figures.window.covered_ratio == pytest.approx(1.0, abs=1e-3)
    assert fewer.window.covered_ratio == pytest.approx(1 - 6 * 10 / (30 * 119), abs=1e-3)
    assert not fewer.window.ramp_s
    assert not fewer.contradictions


@pytest.mark.parametrize("gap", [slice(50, 80), slice(1, 31), slice(90, 120)])
@pytest.mark.parametrize("count", [6, 30])
def test_large_gaps_change_the_state_and_do_not_lower_rates(gap: slice, count: int) -> None:
    """If a tenth is missing, a pair is not measured, but its report can show that it ran."""
    complete, part = _measured(slice(0), 0).summary, _measured(gap, count).summary
    assert part.pairs_measured == 30 - count
    window = part.window
    assert window is not None
    assert window.slowest_bits_per_second is not None
    assert window.slowest_bits_per_second > 0.99 * (complete.fleet_received_bits_per_second or 0.0)
    for figure in ("fleet_received_bits_per_second", "fleet_sent_bits_per_second"):
        assert getattr(part, figure) == pytest.approx(getattr(complete, figure), rel=4e-3)
    for figure in ("second_p5_bits_per_second", "pair_p5_bits_per_second"):
        assert getattr(part.flows[0], figure) == pytest.approx(
            getattr(complete.flows[0], figure), rel=0.02
        )
    assert part.completeness.measured_s < complete.completeness.measured_s
    assert part.cliff is None


def test_missing_seconds_have_no_bytes() -> None:
    complete, part = _measured(slice(0), 0), _measured(slice(50, 60), 6)
    gone = sum(
        float(track.transferred_bytes[50:60].sum())
        for pair in MADE.evidence[0].pairs
        if pair.pair_index < 6
        for track in pair.server_tracks
    )
    left = complete.series.received_bytes.sum() - part.series.received_bytes.sum()
    assert left == pytest.approx(gone, rel=1e-6)
