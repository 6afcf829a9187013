"""Tests for packed burst series."""

import numpy as np
import pytest

from broadside.coordinator.core.measure.grid.series import BurstSeries
from tests.synthetic import Plant
from tests.unit.coordinator.core.judge.reconciliation.test_reconcile import made


def test_burst_series_survives_pack_and_unpack() -> None:
    series = made(Plant(pairs=5, bursts=1))[0][0]
    again = BurstSeries.unpack(series.pack())
    assert again.window == series.window
    assert (again.received_bytes == series.received_bytes).all()
    (flow,), (stored,) = series.flows, again.flows
    np.testing.assert_allclose(
        stored.pairs_bits_per_second, flow.pairs_bits_per_second, rtol=0, atol=1e6
    )
    assert len(series.pack()) < 5 * len(series.coverage_ratio) * 20
    with pytest.raises(ValueError, match="burst series"):
        BurstSeries.unpack(b"else")


def test_series_without_pairs_has_the_same_sums() -> None:
    series = made(Plant(pairs=5, bursts=1))[0][0]
    again = BurstSeries.unpack(series.pack(), with_pairs=False)
    assert again.flows[0].pairs_bits_per_second.shape[0] == 0
    np.testing.assert_array_equal(again.flows[0].sent_bytes, series.flows[0].sent_bytes)
