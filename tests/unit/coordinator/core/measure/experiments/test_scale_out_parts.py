"""Tests for load phases, levels and capacity steps, using worked examples."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from broadside.coordinator.core.measure.experiments.scale_out import (
    CapacityStep,
    LoadPhase,
    ScaleOut,
    _are_similar,
    _between,
    _mean,
    _most,
    _over_median,
    _rate_curve,
    _scale_in,
    _short_bytes,
    _with_counter,
    rate_curve,
    six_digits,
)
from broadside.coordinator.core.measure.formulas.steady import t95
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import DisruptionKind
from tests.unit.coordinator.core.records import disruption

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
START_S = START.timestamp()
NAN = float("nan")


def _at(second: float) -> datetime:
    return datetime.fromtimestamp(START_S + second, UTC)


def _phase(rates: list[float], *, after_s: float = 0.0, **changes: Any) -> LoadPhase:
    count = len(rates)
    known = {"retransmits": np.zeros(count), "rtt_s": np.zeros(count)}
    return LoadPhase(
        start_s=START_S + after_s, rates=np.array(rates, dtype=np.float64), **(known | changes)
    )


def _step(size: float, half: float = 1.0, **changes: Any) -> CapacityStep:
    known = {"at": _at(10), "from_at": _at(9), "to_at": _at(12), "after_overload_s": 1.0,
             "before_bits_per_second": 1.0, "after_bits_per_second": 1.0}  # fmt: skip
    return CapacityStep(
        size_bits_per_second=size, half_width_bits_per_second=half, **(known | changes)
    )


def test_level_is_the_median_of_five_seconds_after_the_start() -> None:
    phase = _phase([9, 9, 9, 1, 2, NAN, 3, 4, 100, 50, 60, 70, 80])
    assert list(phase.known) == [3, 4, 6, 7, 8, 9, 10, 11, 12]
    # Use the median for 1, 2, 3, 4 and 100.
    assert phase.level(at_end=False) == 3.0
    # Use the median for 100, 50, 60, 70 and 80.
    assert phase.level(at_end=True) == 70.0
    assert phase.end_s == START_S + 13
    assert _phase([1.0, 1.0, 1.0, NAN]).level(at_end=True) is None


@pytest.mark.parametrize(
    ("level", "offered", "carries"),
    [(95.0, 100.0, True), (94.9, 100.0, False), (None, 100.0, False), (95.0, None, False)],
)
def test_load_is_carried_at_95_percent_of_the_offer(
    level: float | None, offered: float | None, carries: bool
) -> None:
    assert _phase([1.0], offered_bits_per_second=offered).carries(level) is carries


def test_stalled_pairs_count_with_the_mean_of_the_others() -> None:
    """If one pair in four stalls, 75 from the others are counted as 100."""
    stall = disruption(DisruptionKind.STALL, _at(2), 2.0, "p")
    drop = disruption(DisruptionKind.DROP, _at(0), 2.0, "p")
    phase = _phase([100, 100, 75, 75, 100], disruptions=(stall, drop), pairs_count=4)
    assert list(phase.without_stalls) == [100, 100, 100, 100, 100]
    before = replace(phase, disruptions=(disruption(DisruptionKind.STALL, _at(-3), 4.0, "p"),))
    assert list(before.without_stalls) == pytest.approx([400 / 3, 100, 75, 75, 100])
    alone = replace(phase, pairs_count=1)
    assert list(alone.without_stalls) == [100, 100, 75, 75, 100]


@pytest.mark.parametrize(
    ("rate", "count", "units"),
    [(100.0, 2.0, 7), (100.0, None, 7), (60.0, 2.0, 4), (10.0, 2.0, 2), (100.0, 2.5, 8)],
)
def test_units_for_a_rate(rate: float, count: float | None, units: int) -> None:
    """If a unit adds at least 14, it will need 5 more units to add 60 to the level of 40."""
    result = ScaleOut(
        overload_at=START,
        first_bits_per_second=40.0,
        last_bits_per_second=100.0,
        took_s=1.0,
        unit_bits_per_second=20.0,
        unit_half_width_bits_per_second=6.0,
    )
    assert result.units_for(rate, count) == units
    reported = result.model_copy(update={"units_before_count": 9.0})
    assert reported.units_for(10.0, None) == 9
    assert result.model_copy(update={"unit_bits_per_second": None}).units_for(9.0, 1) is None
    assert result.model_copy(update={"first_bits_per_second": None}).units_for(9.0, 1) is None
    wide = result.model_copy(update={"unit_half_width_bits_per_second": 20.0})
    assert wide.units_for(100.0, 2.0) is None
    sure = result.model_copy(update={"unit_half_width_bits_per_second": None})
    assert sure.units_for(100.0, 2.0) == 5
    small = result.model_copy(update={"first_bits_per_second": 4.0})
    assert small.units_for(4.0, None) == 1


def test_step_sizes_are_similar_within_cochrans_q() -> None:
    """For 10 -+ d and errors of 1, Q is 2 d^2 and the limit 3.75 (3.84 exactly)."""
    assert _are_similar([_step(10 - 1.36, 1.96), _step(10 + 1.36, 1.96)])
    assert not _are_similar([_step(10 - 1.40, 1.96), _step(10 + 1.40, 1.96)])
    assert not _are_similar([_step(10.0)])


def test_mean_of_steps_has_an_interval() -> None:
    assert _mean([], []) == (None, None)
    assert _mean([7.0], [_step(7.0, 2.0)]) == (7.0, 2.0)
    mean, half = _mean([1.0, 2.0, 3.0], [])
    assert mean == 2.0
    assert half == pytest.approx(t95(2) / 3**0.5)


FLAT = [0.0] * 3 + [100.0] * 10


def test_step_in_a_pause_uses_the_levels_of_the_phases() -> None:
    before = _phase(FLAT)
    after = _phase([0.0] * 3 + [128.0, 132.0] * 3, after_s=23, offered_bits_per_second=135.0)
    step = _between(before, after, START_S - 5)
    assert step is not None
    assert (step.from_at, step.at, step.to_at) == (_at(13), _at(18), _at(23))
    assert step.after_overload_s == 23.0
    assert (step.before_bits_per_second, step.after_bits_per_second) == (100.0, 128.0)
    assert step.size_bits_per_second == 28.0
    assert step.half_width_bits_per_second == pytest.approx(np.std([128, 132, 128, 132, 128]), 1e-4)
    assert (step.capped, step.in_pause) == (False, True)
    capped = _between(before, replace(after, offered_bits_per_second=130.0), START_S)
    assert capped is not None
    assert capped.capped
    full = replace(after, offered_bits_per_second=None)
    down = _between(full, replace(before, offered_bits_per_second=100.0), START_S)
    assert down is not None
    assert (down.size_bits_per_second, down.capped) == (-32.0, False)


@pytest.mark.parametrize(("rate", "is_step"), [(104.1, False), (104.2, True)])
def test_step_exceeds_four_percent_of_the_larger_level(rate: float, is_step: bool) -> None:
    result = _between(_phase(FLAT), _phase([rate] * 9, after_s=20), START_S)
    assert (result is not None) is is_step


def test_no_step_for_carried_noisy_or_unknown_load() -> None:
    after = _phase([130.0] * 9, after_s=20)
    assert _between(_phase(FLAT, offered_bits_per_second=100.0), after, START_S) is None
    assert _between(_phase([NAN] * 9), after, START_S) is None
    assert _between(_phase(FLAT), _phase([NAN] * 9), START_S) is None
    # This level has a deviation of 19.6.
    noisy = _phase([0.0] * 3 + [100.0, 140.0] * 3, after_s=20)
    assert _between(_phase(FLAT), noisy, START_S) is None


def _device_counter(counted: list[float], lag_s: float | None = None) -> CounterRecord:
    edges = START_S + np.arange(len(counted) + 1, dtype=np.float64)
    return CounterRecord(
        source="lab",
        start_s=edges[:-1],
        end_s=edges[1:],
        bytes=np.array(counted),
        grain_s=1.0,
        read_at=START,
        lag_hint_s=lag_s,
    )


def test_counter_size_of_a_step_uses_the_bins_around_it() -> None:
    """The lab has half the rate, so the size is (400 - 100) bytes x 8 x 2.

    Use the bins from 3 to 9, when the step can begin, for the level before it. Use the bins
    from 12, when the step has to be over, to the end for the level behind it.
    """
    counted = [7.0] * 3 + [100.0] * 6 + [999.0] * 3 + [400.0] * 7 + [5.0]
    phase = _phase([1.0] * 20, device_counter=_device_counter(counted), scale=2.0)
    result = _with_counter([_step(1.0)], 0, [phase])
    assert result.counter_size_bits_per_second == 4800.0
    late = replace(phase, device_counter=_device_counter([9.0] * 2 + counted, 2.0))
    assert _with_counter([_step(1.0)], 0, [late]).counter_size_bits_per_second == 4800.0
    unknown = replace(phase, device_counter=_device_counter([*counted[:3], NAN, *counted[4:]]))
    assert _with_counter([_step(1.0)], 0, [unknown]).counter_size_bits_per_second == 4800.0


def test_bins_between_two_steps_form_one_level() -> None:
    counted = [0.0] * 3 + [100.0] * 6 + [0.0] * 3 + [400.0] * 3 + [900.0] * 5
    phase = _phase([1.0] * 20, device_counter=_device_counter(counted))
    second = _step(1.0, at=_at(15.5), from_at=_at(15), to_at=_at(16))
    first, last = (_with_counter([_step(1.0), second], place, [phase]) for place in (0, 1))
    assert first.counter_size_bits_per_second == 2400.0
    assert last.counter_size_bits_per_second == 4000.0


@pytest.mark.parametrize("changes", [{"in_pause": True}, {"from_at": _at(5)}, {"at": _at(99)}])
def test_too_few_bins_give_no_size(changes: dict[str, Any]) -> None:
    phase = _phase([1.0] * 20, device_counter=_device_counter([100.0] * 20))
    assert _with_counter([_step(1.0, **changes)], 0, [phase]).counter_size_bits_per_second is None
    bare = replace(phase, device_counter=None)
    assert _with_counter([_step(1.0)], 0, [bare]).counter_size_bits_per_second is None


def test_scale_in_disruptions_are_summed() -> None:
    reset = disruption(DisruptionKind.RESET, _at(1), 1.0, "a", "b", short_bytes=5.0)
    stall = disruption(DisruptionKind.STALL, _at(1), 1.0, "c")
    phases = [
        _phase([1.0] * 3, retransmits=np.array([1.0, NAN, 2.0]), disruptions=(reset, stall)),
        _phase([1.0] * 3, retransmits=np.full(3, NAN), disruptions=(reset,), after_s=5),
    ]
    result = _scale_in(phases)
    assert (result.from_at, result.holds_count) == (START, 2)
    assert (result.broken_pairs_count, result.stalled_pairs_count) == (4, 1)
    assert (result.short_bytes, result.retransmits_count) == (10.0, 3.0)
    nothing = _scale_in([_phase([1.0], retransmits=np.full(1, NAN))])
    assert (nothing.short_bytes, nothing.retransmits_count) == (None, None)


def test_rate_curve_places_phases_in_time() -> None:
    result = _rate_curve([_phase([1.0, 2.0]), _phase([3.0, NAN], after_s=3.0)])
    assert result is not None
    assert (result.start_at, result.every_s) == (START, 1.0)
    assert result.bits_per_second == (1.0, 2.0, None, 3.0, None)
    assert _rate_curve([]) is None
    overlapping = _rate_curve([_phase([1.0] * 4), _phase([5.0], after_s=1.0)])
    assert overlapping is not None
    assert overlapping.bits_per_second == (1.0, 5.0, 1.0, 1.0)


def test_long_rate_curve_consists_of_means() -> None:
    result = rate_curve(START_S, np.append(np.arange(1200.0), 5.0))
    assert (result.every_s, len(result.bits_per_second)) == (3.0, 401)
    assert result.bits_per_second[:2] == (1.0, 4.0)
    # If a value is not known, the mean is not known.
    assert result.bits_per_second[-1] is None
    assert rate_curve(START_S, np.ones(600)).every_s == 1.0


def test_costs_around_a_step() -> None:
    """To get 8, the values 8 and 2 are both reduced by the usual 1."""
    near = slice(0, 3)
    values = np.array([8.0, NAN, 2.0, 1.0, 1.0, 1.0, 1.0])
    assert _over_median(values, near) == 8.0
    assert _over_median(np.array([0.0, 1.0, 1.0]), slice(0, 1)) == 0.0
    assert _over_median(np.array([NAN, 1.0]), slice(0, 1)) is None
    assert _most(np.array([NAN, 2.0, 1.0])) == 2.0
    assert _most(np.array([NAN])) is None
    assert _short_bytes(np.array([100.0, 20.0, NAN, 180.0]), 100.0) == 10.0
    assert _short_bytes(np.array([NAN]), 100.0) is None
    assert six_digits(1234567.0) == 1234570.0
