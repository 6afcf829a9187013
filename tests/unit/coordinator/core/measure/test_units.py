"""Tests for the units behind the address of a device, with planted units."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from broadside.coordinator.core.measure import burst
from broadside.coordinator.core.measure.experiments.scale_out import seen_first
from broadside.coordinator.core.measure.units import PeerTrack, UnitGrid, units_of
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import Translation, Units, describe_units

START_S = 1_800_000_000
LENGTH_S = 40
PACE = 1e6
# Units join and leave at whole seconds in the simulation.
Carries = Callable[[int, np.ndarray], np.ndarray]


def everything(unit: int, second: np.ndarray) -> np.ndarray:
    """Return the share of its streams' load that a unit carries."""
    return np.ones(len(second))


def simulated(
    seed: int,
    units_count: int,
    *,
    pairs_count: int = 4,
    streams_count: int = 128,
    carries: Carries = everything,
    requests: bool = False,
) -> list[PeerTrack]:
    """Return the tracks of pairs with streams that a device spreads by hash over its units."""
    random = np.random.default_rng(seed)
    second = np.arange(LENGTH_S)
    tracks = []
    for pair in range(pairs_count):
        chosen = np.bincount(
            random.integers(units_count, size=streams_count), minlength=units_count
        )
        for unit in np.flatnonzero(chosen):
            share = carries(int(unit), second)
            noise = 1 + 0.02 * random.standard_normal(LENGTH_S)
            active = chosen[unit] * (share > 0).astype(float)
            tracks.append(
                PeerTrack(
                    pair_index=pair,
                    client=f"10.1.1.{pair + 1}",
                    address=f"10.9.0.{unit + 1}",
                    bytes=chosen[unit] * PACE / 8 * share * noise,
                    active=random.poisson(active).astype(float) if requests else active,
                    streams_count=None if requests else int(chosen[unit]),
                    step_s=1,
                )
            )
    return tracks


def found(
    tracks: Sequence[PeerTrack], *, pace: float | None = PACE, first: int = 3, stop: int = 38
) -> Units:
    return units_of(
        UnitGrid(
            start_s=START_S,
            tracks=tracks,
            window=slice(first, stop),
            stream_bits_per_second=pace,
        )
    )


def since_start(at: object) -> float:
    return at.timestamp() - START_S  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("units_count", [2, 3, 4, 8, 16])
def test_count_and_rate_of_planted_units(units_count: int) -> None:
    for seed in range(20):
        tracks = simulated(seed, units_count)
        units = found(tracks)
        assert (units.translation, units.count) == (Translation.UNITS, units_count)
        assert (units.median_count, units.min_count, units.max_count) == (units_count,) * 3
        assert units.changes == ()
        assert units.slow is None
        assert units.limit is None
        for unit in units.units:
            streams = sum(t.streams_count or 0 for t in tracks if t.address == unit.address)
            assert unit.flows_mean_count == streams
            assert unit.received_bits_per_second == pytest.approx(streams * PACE, rel=0.01)
            assert (unit.received_half_width_bits_per_second or 1e9) < 0.02 * streams * PACE
        assert sum(sum(unit.bits_per_second) for unit in units.units) == pytest.approx(
            8 * sum(track.bytes.sum() for track in tracks), rel=1e-4
        )


@pytest.mark.parametrize("units_count", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("pace", [PACE, None])
def test_unit_at_half_its_rate_is_named(units_count: int, pace: float | None) -> None:
    def half(unit: int, second: np.ndarray) -> np.ndarray:
        return np.full(len(second), 0.5 if unit == 1 else 1.0)

    for seed in range(20):
        units = found(simulated(seed, units_count, streams_count=256, carries=half), pace=pace)
        assert units.slow == "10.9.0.2"
        # Without a set rate, two other units do not show that they are below their limit.
        if pace is not None:
            assert units.limit is not None
            assert units.limit.startswith("10.9.0.2 carries")


def test_starved_streams_do_not_hide_a_slow_unit() -> None:
    """Plant a unit whose streams have payload only in a half of the seconds."""
    tracks = [
        replace(t, bytes=t.bytes / 2, active=t.active / 2) if t.address == "10.9.0.1" else t
        for t in simulated(1, 4)
    ]
    units = found(tracks)
    assert units.slow == "10.9.0.1"
    assert units.limit is not None


def test_all_units_at_their_limit_have_no_single_limit() -> None:
    """Plant units with the same total rate, and one with half of it."""
    tracks = simulated(1, 4, pairs_count=1, streams_count=100)
    rates = [20e6, 20e6, 20e6, 10e6]
    limited = [
        replace(track, bytes=np.full(LENGTH_S, rate / 8), streams_count=count)
        for track, rate, count in zip(tracks, rates, (30, 24, 33, 13), strict=True)
    ]
    for pace in (PACE, None):
        units = found(limited, pace=pace)
        assert (units.slow, units.limit) == ("10.9.0.4", None)


def test_unit_with_few_streams_is_not_slow() -> None:
    [light, heavy, *_] = simulated(1, 2, pairs_count=1)
    light = replace(
        light,
        bytes=light.bytes / 10,
        active=light.active / 10,
        streams_count=round((light.streams_count or 0) / 10),
    )
    assert found([light, heavy]).slow is None
    assert found([light, heavy], pace=None).slow is None


@pytest.mark.parametrize("requests", [False, True])
@pytest.mark.parametrize("units_count", [2, 4, 16])
def test_joined_and_left_units_are_dated(units_count: int, requests: bool) -> None:
    joined_at, left_at = 11, 27

    def moves(unit: int, second: np.ndarray) -> np.ndarray:
        if unit == 0:
            return (second >= joined_at).astype(float)
        return (second < left_at).astype(float) if unit == 1 else np.ones(len(second))

    for seed in range(20):
        units = found(simulated(seed, units_count, carries=moves, requests=requests))
        joined, left = units.changes
        assert (joined.change, joined.address) == ("joined", "10.9.0.1")
        assert (left.change, left.address) == ("left", "10.9.0.2")
        assert abs(since_start(joined.at) - joined_at) <= 1
        assert abs(since_start(left.at) - left_at) <= 1
        assert (left.flows_cut, left.flows_count is None) == (
            (None, True) if requests else (True, False)
        )
        # The rate of a unit is that of the time in which it was there.
        [first] = [unit for unit in units.units if unit.address == "10.9.0.1"]
        streams = (units.units[0].flows_mean_count or 0) * PACE
        if not requests:
            assert first.received_bits_per_second == pytest.approx(streams, rel=0.02)


def test_end_of_a_pair_is_no_unit_that_left() -> None:
    """Plant a pair that uses a unit alone and that ends early."""
    tracks = simulated(1, 3, pairs_count=2)
    alone = [t for t in tracks if (t.pair_index == 0) == (t.address == "10.9.0.1")]
    ended = [
        replace(t, bytes=np.where(np.arange(LENGTH_S) < 20, t.bytes, 0)) if t.pair_index == 0 else t
        for t in alone
    ]
    assert found(ended).changes == ()


def test_low_request_rate_shows_no_changes() -> None:
    """Plant one request per second and unit, so that pauses are usual."""
    for seed in range(200):
        random = np.random.default_rng(seed)
        tracks = []
        for track in simulated(seed, 8, pairs_count=1, requests=True):
            active = random.poisson(0.5, LENGTH_S).astype(float)
            tracks.append(replace(track, active=active, bytes=1000 * active))
        assert found(tracks).changes == ()


def test_nothing_is_claimed_without_translation() -> None:
    for seed in range(20):
        local = [replace(t, address=t.client) for t in simulated(seed, 4)]
        units = found(local)
        assert units.translation is Translation.NONE
        assert (units.count, units.units, units.changes, units.slow, units.limit) == (
            *(None, (), ()),
            *(None, None),
        )
        assert describe_units(units).startswith("Not translated")


def test_nothing_is_claimed_for_one_address_per_client() -> None:
    one_to_one = [replace(t, address=t.client.replace("10.1", "10.8")) for t in simulated(1, 4)]
    units = found(one_to_one)
    assert (units.translation, units.count) == (Translation.ONE_TO_ONE, None)
    assert describe_units(units).startswith("Translated one to one")


def test_one_address_for_all_clients_is_one_unit() -> None:
    units = found([replace(t, address="10.9.0.1") for t in simulated(1, 4)])
    assert (units.count, units.imbalance_ratio, units.jain_ratio) == (1, 1, 1)
    assert describe_units(units) == "1 unit carried the burst."
    assert describe_units(None).startswith("Unknown")


def test_imbalance_and_probability_of_a_missed_unit() -> None:
    tracks = simulated(1, 2, pairs_count=1)
    for track, rate in zip(tracks, (3e6, 1e6), strict=True):
        track.bytes[:] = rate / 8
    units = found(tracks)
    assert units.imbalance_ratio == 1.5
    assert units.jain_ratio == pytest.approx(16 / 20)
    assert units.missed_ratio == pytest.approx((2 / 3) ** 128)


def test_connections_without_payload_show_units_but_no_rates() -> None:
    silent = [replace(t, bytes=0 * t.bytes) for t in simulated(1, 3, requests=True)]
    units = found(silent)
    assert (units.count, units.min_count, units.changes, units.slow) == (3, 3, (), None)
    assert {unit.received_bits_per_second for unit in units.units} == {0.0}
    # 512 connections per second in total.
    starts = [unit.starts_per_second or 0.0 for unit in units.units]
    assert sum(starts) == pytest.approx(512, rel=0.02)
    assert units.imbalance_ratio == pytest.approx(max(starts) / (sum(starts) / 3))
    assert all(unit.flows_mean_count is None for unit in units.units)


def test_clients_with_several_own_addresses_show_nothing() -> None:
    options = {"source_addresses": "all"}
    spec = RunSpec(scenario="smoke", pairs_count=2)
    spec = spec.model_copy(update={"traffic": spec.traffic.model_copy(update={"options": options})})
    assert burst._units(spec, None, None) is None  # type: ignore[arg-type]


def test_units_that_a_later_hold_shows_first() -> None:
    two, three = found(simulated(1, 2)), found(simulated(1, 3))
    [(index, unit)] = seen_first([None, two, three, three])
    assert (index, unit.address) == (2, "10.9.0.3")
    assert seen_first([None]) == ()


def test_long_burst_has_a_short_series() -> None:
    tracks = [
        replace(t, bytes=np.tile(t.bytes, 50), active=np.tile(t.active, 50))
        for t in simulated(1, 2)
    ]
    # 4,000 steps of two units fit, and 32,000 of 16 do not.
    assert found(tracks).every_s == 1
    many = [replace(t, address=f"10.9.0.{n}") for n in range(16) for t in tracks]
    assert found(many).every_s == 7
