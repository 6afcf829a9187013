"""Tests for long readings. No claim is finer than the readings that it is based on."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.formulas.steady import slowest_stretch
from broadside.coordinator.core.measure.grid.grid_rows import reading_of
from broadside.coordinator.core.measure.records.columns import NO_HOST, HostColumns, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import PairEvidence
from broadside.coordinator.core.measure.resolution import (
    TimeScale,
    fleet_reading_s,
    means_of_readings,
)
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.summary import RunSummary, Verdict
from tests.planted import ids, summarise
from tests.synthetic import Break, Fleet, Plant, fleet

HALVED = Break(burst=0, from_s=20, length_s=20, factor=0.5)
PLANT = Plant(
    pairs=4, bursts=1, burst_s=60, period_s=90, noise=0.01, start_spread_s=0.0, breaks=(HALVED,)
)


def coarse(track: IntervalColumns, reading_s: int) -> IntervalColumns:
    """Return the track with a reading every few seconds."""
    firsts = np.arange(0, len(track), reading_s)
    lasts = np.minimum(firsts + reading_s, len(track)) - 1
    rows = track.rows(firsts)
    summed = np.add.reduceat(track.transferred_bytes, firsts)
    return replace(rows, end_s=track.end_s[lasts], transferred_bytes=summed)


def read_every(
    made: Fleet, receivers_s: int, senders_s: int, hosts: HostColumns | None = NO_HOST
) -> Fleet:
    """Return the fleet if readings have the given lengths.

    Use None for ``hosts`` if they should not be changed.
    """

    def changed(pair: PairEvidence) -> PairEvidence:
        return replace(
            pair,
            client_tracks=tuple(coarse(track, senders_s) for track in pair.client_tracks),
            server_tracks=tuple(coarse(track, receivers_s) for track in pair.server_tracks),
            client_host=pair.client_host if hosts is None else hosts,
        )

    return made.told(changed)


def run_summary(made: Fleet) -> RunSummary:
    """Return the summary if the target is a tenth below the mean rate."""
    rate = float(np.mean(made.truth.rates))
    return summarise(
        made.aiming(target_bits_per_second=rate / 1.1, tolerance_ratio=0, layer=Layer.PAYLOAD)
    )


@pytest.mark.parametrize("receivers_s", [20, 30])
def test_sender_seconds_reveal_a_stretch_hidden_in_receiver_readings(receivers_s: int) -> None:
    made = fleet(replace(PLANT, device_counter=False))
    assert "slow-stretch" in ids(run_summary(made))
    result = run_summary(read_every(made, receivers_s, 1))
    assert "slow-stretch" in ids(result)
    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("reading_s", [20, 30, 60])
def test_device_counter_reveals_a_stretch_hidden_by_both_ends(reading_s: int) -> None:
    result = run_summary(read_every(fleet(PLANT), reading_s, reading_s))
    assert "slow-stretch-device" in ids(result)
    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("reading_s", [20, 60])
def test_sender_host_counters_reveal_a_stretch_hidden_by_both_ends(reading_s: int) -> None:
    result = run_summary(
        read_every(fleet(replace(PLANT, device_counter=False)), reading_s, reading_s, None)
    )
    assert "slow-stretch" in ids(result)
    assert result.verdict is Verdict.INCONCLUSIVE
    steady = fleet(replace(PLANT, bursts=3, breaks=(), device_counter=False))
    assert run_summary(read_every(steady, reading_s, reading_s, None)).verdict is not Verdict.FAIL
    assert "shape-not-assessed" not in ids(
        run_summary(read_every(steady, reading_s, reading_s, None))
    )


def test_ignores_interfaces_with_other_traffic_or_rare_readings() -> None:
    """The rate of this interface can change even if the test does not."""

    def of(host: HostColumns, factor: float, rows: int) -> HostColumns:
        first = np.arange(0, len(host) // rows * rows, rows)
        picked = host.rows(first)
        return replace(
            picked,
            end_at_s=host.end_at_s[first + rows - 1],
            nic_tx_bytes=np.add.reduceat(host.nic_tx_bytes, first)[: len(first)] * factor,
        )

    def read_by(pair: PairEvidence, factor: float, rows: int) -> PairEvidence:
        return replace(pair, client_host=of(pair.client_host, factor, rows))

    made = fleet(replace(PLANT, bursts=3, breaks=(), device_counter=False))
    for factor, rows in ((1.15, 1), (0.9, 1), (1.0, 10), (1.0, 20)):
        changed = made.told(partial(read_by, factor=factor, rows=rows))
        result = run_summary(read_every(changed, 20, 20, None))
        assert "shape-not-assessed" in ids(result), (factor, rows)


@pytest.mark.parametrize("reading_s", [20, 30, 60])
def test_shape_without_a_fine_source_is_not_assessed(reading_s: int) -> None:
    made = fleet(replace(PLANT, bursts=3, breaks=(), device_counter=False))
    assert run_summary(made).verdict is Verdict.PASS
    result = run_summary(read_every(made, reading_s, reading_s))
    assert "shape-not-assessed" in ids(result)
    assert f"within {reading_s} s" in next(
        finding.sentence for finding in result.findings if finding.id == "shape-not-assessed"
    )
    assert result.verdict is Verdict.INCONCLUSIVE


def test_import_of_means_reports_it_and_can_pass() -> None:
    made = read_every(fleet(replace(PLANT, bursts=4, breaks=(), device_counter=False)), 60, 60)
    plan = made.plan.model_copy(update={"clocks_promised": False, "seal_sha256": None})
    result = run_summary(replace(made, plan=plan))
    assert "shape-not-assessed" in ids(result)
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize("reading_s", [2, 5])
def test_assesses_parts_of_two_readings(reading_s: int) -> None:
    steady = read_every(fleet(replace(PLANT, breaks=(), device_counter=False)), reading_s, 60)
    assert "shape-not-assessed" not in ids(run_summary(steady))
    fallen = read_every(fleet(replace(PLANT, device_counter=False)), reading_s, 60)
    assert "slow-stretch" in ids(run_summary(fallen))


def test_coarse_readings_give_no_interval_from_interpolated_seconds() -> None:
    made = read_every(fleet(replace(PLANT, breaks=(), device_counter=False)), 20, 20)
    (burst,) = run_summary(made).bursts
    assert burst.fleet_received_half_width_bits_per_second is None
    assert burst.flows[0].second_cov_ratio is None
    assert burst.window is not None
    assert burst.window.reading_s == 20


def test_readings_of_one_second_are_unchanged() -> None:
    (burst,) = run_summary(fleet(replace(PLANT, breaks=(), device_counter=False))).bursts
    assert burst.window is not None
    assert burst.window.reading_s is None
    assert burst.fleet_received_half_width_bits_per_second is not None


def test_reading_length_is_that_of_most_bytes() -> None:
    track = fleet(PLANT).evidence[0].pairs[0].server_tracks[0]
    assert reading_of(track) == pytest.approx(1.0, abs=0.01)
    assert reading_of(coarse(track, 20)) == pytest.approx(20.0, abs=0.01)
    assert math.isnan(reading_of(track.rows(slice(0))))


def values(*numbers: float) -> Floats:
    return np.array(numbers)


def test_coarsest_pairs_decide_unless_their_share_is_negligible() -> None:
    assert fleet_reading_s(values(1, 1, 30), values(50, 45, 5)) == 30
    assert fleet_reading_s(values(1, 1, 30), values(60, 39.5, 0.5)) == 1
    assert fleet_reading_s(values(1, math.nan), values(50, 50)) == math.inf
    assert fleet_reading_s(values(1), values(0)) == math.inf


def test_part_must_be_twice_as_long_as_a_reading() -> None:
    scale = TimeScale(receivers_s=6.0)
    assert scale.shows(12.0, 6.0)
    assert not scale.shows(11.9, 6.0)
    assert TimeScale(receivers_s=1.5).has_seconds
    assert not TimeScale(receivers_s=2.0).has_seconds


def test_means_of_readings_begin_with_a_reading() -> None:
    # The window should start after the first value in a reading, which is three seconds long.
    seconds = values(1, 1, 4, 4, 4, 7, 7, 7, 9)
    assert means_of_readings(seconds, 3.0, 1).tolist() == [4, 7]
    assert means_of_readings(seconds, 3.0, 0).tolist() == [2, 5, 23 / 3]
    assert means_of_readings(seconds, math.inf, 0).size == 0


def test_noise_of_readings_uses_the_number_of_readings() -> None:
    readings = np.array([10.0, 12, 10, 12, 10, 12, 10, 12])
    spread = np.repeat(readings, 5)
    reported = slowest_stretch(spread, readings, 5.0)
    assert reported is not None
    assert reported.length_s == 8
    assert reported.noise == pytest.approx(1.4826 * 2 / math.sqrt(2 * 8 / 5))
