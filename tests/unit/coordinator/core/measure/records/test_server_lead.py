"""Tests for servers that start early because of the start gate.

Their readings are moved to the time when they were made.
"""

from dataclasses import replace

import numpy as np
import pytest

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.disruptions import judge_levels
from broadside.coordinator.core.measure.grid.align import align
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.exchange.messages import Flow, Side
from tests.planted import measure
from tests.synthetic import Break, Fleet, Plant, fleet

DARK_S, LENGTH_S = 20, 60
DARK = Break(burst=0, from_s=DARK_S, length_s=1, factor=0.0)
PLANT = Plant(
    pairs=3,
    bursts=1,
    burst_s=LENGTH_S,
    period_s=90,
    firewall_bits_per_second=None,
    noise=0.0,
    start_spread_s=0.0,
    ramp_s=0.0,
    clock_offset_s=0.0,
    breaks=(DARK,),
)


def ahead(track: IntervalColumns, lead_s: float) -> IntervalColumns:
    """Return the bytes that a server will record if its clock is started ``lead_s`` early."""
    at_s = np.append(track.start_s, track.end_s[-1]) + lead_s
    reached = np.append(0.0, np.cumsum(track.transferred_bytes, dtype=np.float64))
    edges = np.append(np.arange(0.0, at_s[-1]), at_s[-1])
    reported = np.diff(np.interp(edges, at_s, reached))
    rows = track.rows(np.minimum(np.arange(len(reported)), len(track) - 1))
    return replace(
        rows,
        first_data_at_s=track.first_data_at_s - lead_s,
        start_s=edges[:-1],
        end_s=edges[1:],
        transferred_bytes=reported,
    )


def led(lead_s: float) -> Fleet:
    def change(pair: PairEvidence) -> PairEvidence:
        assert pair.report is not None
        return replace(
            pair,
            report=pair.report.model_copy(update={"server_lead_s": lead_s}),
            server_tracks=tuple(
                ahead(track, lead_s) if track.flow is Flow.UP else track
                for track in pair.server_tracks
            ),
        )

    return fleet(PLANT).told(change)


def aligned_up(evidence: BurstEvidence, made: Fleet) -> tuple[Floats, Floats]:
    """Return the received bytes, both on the grid and by pair."""
    flows = align(evidence, made.plan.spec.traffic.direction).flows
    [flow] = [item for item in flows if item.flow is Flow.UP]
    return np.asarray(flow.received_bytes), np.asarray(flow.engine_bytes)


@pytest.mark.parametrize("lead_s", [1.0, 0.997, 1.004, 2.0])
def test_lead_of_complete_readings_moves_no_byte(lead_s: float) -> None:
    plain, led_fleet = fleet(PLANT), led(lead_s)
    truth, local_truth = aligned_up(plain.evidence[0], plain)
    reported, local = aligned_up(led_fleet.evidence[0], led_fleet)
    offset = reported.shape[1] - truth.shape[1]
    rate = truth.max()
    reported = reported[:, offset:] if offset > 0 else reported
    assert np.abs(reported - truth).max() <= 0.01 * rate
    assert np.abs(local - local_truth).max() <= 0.01 * rate
    assert local[:, DARK_S].max() <= 0.01 * rate
    assert reported.sum() == pytest.approx(truth.sum(), rel=1e-9)


def test_seconds_of_a_pair_begin_with_its_data() -> None:
    """An outage is found when it happens, and not later."""
    made = led(1.0)
    _, local = aligned_up(made.evidence[0], made)
    levels = judge_levels(local, np.ones_like(local), 0.5)
    assert [list(np.flatnonzero(row)) for row in levels.low] == [[DARK_S]] * PLANT.pairs


def test_ends_started_by_the_gate_are_consistent() -> None:
    [burst] = measure(led(1.0))
    assert burst.summary.contradictions == measure(fleet(PLANT))[0].summary.contradictions == ()


def test_client_track_has_no_lead() -> None:
    [pair] = fleet(replace(PLANT, pairs=1)).evidence[0].pairs
    [track] = [
        client_track for client_track in pair.client_tracks if client_track.side is Side.CLIENT
    ][:1]
    assert track.without_lead(1.0) is track
