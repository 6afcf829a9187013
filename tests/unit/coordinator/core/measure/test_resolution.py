"""No claim is finer than its source: readings of many seconds are no seconds."""

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
    """The same track in readings of several seconds."""
    firsts = np.arange(0, len(track), reading_s)
    lasts = np.minimum(firsts + reading_s, len(track)) - 1
    rows = track.rows(firsts)
    summed = np.add.reduceat(track.transferred_bytes, firsts)
    return replace(rows, end_s=track.end_s[lasts], transferred_bytes=summed)


def read_every(
    made: Fleet, receivers_s: int, senders_s: int, hosts: HostColumns | None = NO_HOST
) -> Fleet:
    """The fleet with readings of these lengths, and without its hosts' unless they are None."""

    def changed(pair: PairEvidence) -> PairEvidence:
        return replace(
            pair,
            client_tracks=tuple(coarse(track, senders_s) for track in pair.client_tracks),
            server_tracks=tuple(coarse(track, receivers_s) for track in pair.server_tracks),
            client_host=pair.client_host if hosts is None else hosts,
        )

    return made.told(changed)


def judged(made: Fleet) -> RunSummary:
    """The verdict where the burst's mean is a tenth over the limit."""
    rate = float(np.mean(made.truth.rates))
    return summarise(
        made.aiming(target_bits_per_second=rate / 1.1, tolerance_ratio=0, layer=Layer.PAYLOAD)
    )


@pytest.mark.parametrize("receivers_s", [20, 30])
def test_senders_seconds_show_what_receivers_readings_hide(receivers_s: int) -> None:
    made = fleet(replace(PLANT, ledger=False))
    assert "slow-stretch" in ids(judged(made))
    result = judged(read_every(made, receivers_s, 1))
    assert "slow-stretch" in ids(result)
    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("reading_s", [20, 30, 60])
def test_the_device_shows_what_both_ends_hide(reading_s: int) -> None:
    result = judged(read_every(fleet(PLANT), reading_s, reading_s))
    assert "slow-stretch-device" in ids(result)
    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("reading_s", [20, 60])
def test_the_senders_hosts_show_what_both_ends_hide(reading_s: int) -> None:
    result = judged(read_every(fleet(replace(PLANT, ledger=False)), reading_s, reading_s, None))
    assert "slow-stretch" in ids(result)
    assert result.verdict is Verdict.INCONCLUSIVE
    steady = fleet(replace(PLANT, bursts=3, breaks=(), ledger=False))
    assert judged(read_every(steady, reading_s, reading_s, None)).verdict is not Verdict.FAIL
    assert "shape-not-assessed" not in ids(judged(read_every(steady, reading_s, reading_s, None)))


def test_an_interface_with_other_traffic_or_rare_readings_shows_no_shape() -> None:
    """Its bytes may fall, or not, whatever the test does."""

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

    made = fleet(replace(PLANT, bursts=3, breaks=(), ledger=False))
    for factor, rows in ((1.15, 1), (0.9, 1), (1.0, 10), (1.0, 20)):
        changed = made.told(partial(read_by, factor=factor, rows=rows))
        result = judged(read_every(changed, 20, 20, None))
        assert "shape-not-assessed" in ids(result), (factor, rows)


@pytest.mark.parametrize("reading_s", [20, 30, 60])
def test_what_no_source_shows_is_not_assessed(reading_s: int) -> None:
    made = fleet(replace(PLANT, bursts=3, breaks=(), ledger=False))
    assert judged(made).verdict is Verdict.PASS
    result = judged(read_every(made, reading_s, reading_s))
    assert "shape-not-assessed" in ids(result)
    assert f"within {reading_s} s" in next(
        finding.sentence for finding in result.findings if finding.id == "shape-not-assessed"
    )
    assert result.verdict is Verdict.INCONCLUSIVE


def test_an_import_of_means_states_it_and_may_pass() -> None:
    made = read_every(fleet(replace(PLANT, bursts=4, breaks=(), ledger=False)), 60, 60)
    plan = made.plan.model_copy(update={"clocks_promised": False, "seal_sha256": None})
    result = judged(replace(made, plan=plan))
    assert "shape-not-assessed" in ids(result)
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize("reading_s", [2, 5])
def test_a_part_that_holds_two_readings_is_assessed(reading_s: int) -> None:
    steady = read_every(fleet(replace(PLANT, breaks=(), ledger=False)), reading_s, 60)
    assert "shape-not-assessed" not in ids(judged(steady))
    fallen = read_every(fleet(replace(PLANT, ledger=False)), reading_s, 60)
    assert "slow-stretch" in ids(judged(fallen))


def test_coarse_readings_make_no_interval_of_their_spread_seconds() -> None:
    made = read_every(fleet(replace(PLANT, breaks=(), ledger=False)), 20, 20)
    (burst,) = judged(made).bursts
    assert burst.fleet_received_half_width_bits_per_second is None
    assert burst.flows[0].second_cov_ratio is None
    assert burst.window is not None
    assert burst.window.reading_s == 20


def test_seconds_are_left_as_they_were() -> None:
    (burst,) = judged(fleet(replace(PLANT, breaks=(), ledger=False))).bursts
    assert burst.window is not None
    assert burst.window.reading_s is None
    assert burst.fleet_received_half_width_bits_per_second is not None


def test_a_reading_is_as_long_as_most_bytes_were_read_in() -> None:
    track = fleet(PLANT).evidence[0].pairs[0].server_tracks[0]
    assert reading_of(track) == pytest.approx(1.0, abs=0.01)
    assert reading_of(coarse(track, 20)) == pytest.approx(20.0, abs=0.01)
    assert math.isnan(reading_of(track.rows(slice(0))))


def values(*numbers: float) -> Floats:
    return np.array(numbers)


def test_the_coarse_pairs_decide_unless_they_carry_next_to_nothing() -> None:
    assert fleet_reading_s(values(1, 1, 30), values(50, 45, 5)) == 30
    assert fleet_reading_s(values(1, 1, 30), values(60, 39.5, 0.5)) == 1
    assert fleet_reading_s(values(1, math.nan), values(50, 50)) == math.inf
    assert fleet_reading_s(values(1), values(0)) == math.inf


def test_a_part_must_be_twice_as_long_as_a_reading() -> None:
    scale = TimeScale(receivers_s=6.0)
    assert scale.shows(12.0, 6.0)
    assert not scale.shows(11.9, 6.0)
    assert TimeScale(receivers_s=1.5).has_seconds
    assert not TimeScale(receivers_s=2.0).has_seconds


def test_means_of_readings_begin_where_readings_do() -> None:
    # The window begins one second after the first reading of three.
    seconds = values(1, 1, 4, 4, 4, 7, 7, 7, 9)
    assert means_of_readings(seconds, 3.0, 1).tolist() == [4, 7]
    assert means_of_readings(seconds, 3.0, 0).tolist() == [2, 5, 23 / 3]
    assert means_of_readings(seconds, math.inf, 0).size == 0


def test_noise_of_readings_is_that_of_fewer_values() -> None:
    readings = np.array([10.0, 12, 10, 12, 10, 12, 10, 12])
    spread = np.repeat(readings, 5)
    reported = slowest_stretch(spread, readings, 5.0)
    assert reported is not None
    assert reported.length_s == 8
    assert reported.noise == pytest.approx(1.4826 * 2 / math.sqrt(2 * 8 / 5))
