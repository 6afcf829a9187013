"""Tests for the number, size, time and cost of the steps when a device scales out."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from broadside.coordinator.core.measure.experiments.scale_out import (
    LoadPhase,
    find_scale_out,
    scaling_of,
)
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.summary import DisruptionKind
from tests.unit.coordinator.core.measure.formulas.test_change_points import noisy, sawtooth
from tests.unit.coordinator.core.records import disruption

START_S = 1_795_000_000.0
UNIT = 11.4e9


def load_phase(
    levels: NDArray[np.float64],
    *,
    after_s: float = 0.0,
    offered: float | None = None,
    seed: int = 0,
    **more: Any,
) -> LoadPhase:
    """Return a load phase with 0.5 % noise, limited to the offered load."""
    random = np.random.default_rng(seed)
    noise = np.convolve(random.normal(size=len(levels) + 2), [0.5, 0.7, 0.5], "valid")
    rates = np.minimum(levels * (1 + 0.005 * noise), np.inf if offered is None else offered)
    known = {"retransmits": np.zeros(len(rates)), "rtt_s": np.full(len(rates), 0.002)} | more
    return LoadPhase(
        start_s=START_S + after_s, rates=rates, offered_bits_per_second=offered, **known
    )


def stair(first: float, steps: int, every_s: int) -> NDArray[np.float64]:
    return np.repeat(first + UNIT * np.arange(steps + 1), every_s)


def stalled(levels: NDArray[np.float64], seed: int, *, taken_over: bool) -> LoadPhase:
    """Return a phase in which one pair stops for a random time of 2 to 12 seconds.

    Add 1 % noise. Use ``taken_over`` to move the missing share to the other pairs.
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(8, 31))
    shares = np.outer(np.full(count, 1 / count), noisy(levels, seed, 0.01, 0.0))
    for_s = random.uniform(2, 12)
    from_s = random.uniform(4, len(levels) - for_s - 1)
    covered = np.clip(np.arange(1, len(levels) + 1) - from_s, 0, 1)
    covered -= np.clip(np.arange(1, len(levels) + 1) - from_s - for_s, 0, 1)
    lost = covered * shares[0]
    shares[0] -= lost
    shares[1:] += taken_over * lost / (count - 1)
    begun_at = datetime.fromtimestamp(START_S + from_s, UTC)
    stall = disruption(DisruptionKind.STALL, begun_at, for_s, "pair-001")
    return replace(plain(shares.sum(axis=0)), disruptions=(stall,), pairs_count=count)


def plain(rates: NDArray[np.float64]) -> LoadPhase:
    nothing = np.zeros(len(rates))
    return LoadPhase(start_s=START_S, rates=rates, retransmits=nothing, rtt_s=nothing)


def slow(levels: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Use 2 to 5 seconds to get to the next level, and add 1 % noise."""
    for_s = 2 + seed % 4
    begun = np.concatenate([np.full(for_s - 1, levels[0]), levels])
    reached = np.convolve(begun, np.full(for_s, 1 / for_s), "valid")
    return reached * noisy(np.ones(len(levels)), seed, 0.01, 0.5)


def dipped(levels: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Reduce a fifteenth of the values by 20 % to 100 %. No two are in a row."""
    random = np.random.default_rng(seed)
    rates = noisy(levels, seed, 0.01, 0.0)
    at = 2 * random.choice(np.arange(2, len(levels) // 2), len(levels) // 15, replace=False)
    rates[at] *= 1 - random.uniform(0.2, 1.0, len(at))
    return rates


KINDS: dict[str, Callable[[NDArray[np.float64], int], LoadPhase]] = {
    "white": lambda levels, seed: plain(noisy(levels, seed, 0.02, 0.0)),
    "correlated": lambda levels, seed: plain(noisy(levels, seed, 0.006, 0.8)),
    "3 %, correlated": lambda levels, seed: plain(noisy(levels, seed, 0.03, 0.5)),
    "3 % of each level": lambda levels, seed: plain(
        levels * noisy(np.ones(len(levels)), seed, 0.03, 0.5)
    ),
    "sawtooth": lambda levels, seed: plain(sawtooth(levels, seed, 0.02)),
    "slow": lambda levels, seed: plain(slow(levels, seed)),
    "dips": lambda levels, seed: plain(dipped(levels, seed)),
    "stall": lambda levels, seed: stalled(levels, seed, taken_over=False),
    "stall taken over": lambda levels, seed: stalled(levels, seed, taken_over=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_finds_all_steps_of_the_device_after_one_load_step(kind: str) -> None:
    good = 0
    for seed in range(10):
        scale_out = find_scale_out([KINDS[kind](stair(20e9, 5, 20), seed)])
        good += len(scale_out.steps) == 5 and all(
            abs(step.after_overload_s - 20 * number) <= 3
            and step.size_bits_per_second == pytest.approx(UNIT, rel=0.05)
            for number, step in enumerate(scale_out.steps, 1)
        )
        if len(scale_out.steps) == 5:
            assert scale_out.unit_bits_per_second == pytest.approx(UNIT, rel=0.05)
            assert scale_out.took_s == pytest.approx(100, abs=3)
    assert good >= 9


def test_steps_equal_within_noise_have_the_unit_size() -> None:
    scale_out = find_scale_out([plain(noisy(stair(20e9, 3, 20), 1, 0.01, 0.0))])
    assert scale_out.unit_bits_per_second is not None
    sizes = [step.size_bits_per_second for step in scale_out.steps]
    assert sizes == pytest.approx([scale_out.unit_bits_per_second] * 3, rel=1e-5)


def test_steps_different_beyond_noise_have_separate_sizes() -> None:
    planted = [8e9, 14e9, 11e9, 17e9, 9e9]
    levels = np.repeat(20e9 + np.cumsum([0, *planted]), 20)
    for seed in range(10):
        scale_out = find_scale_out([plain(noisy(levels, seed, 0.01, 0.5))])
        sizes = [step.size_bits_per_second for step in scale_out.steps]
        assert sizes == pytest.approx(planted, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [60, 120])
def test_constant_load_phases_have_no_step(kind: str, count: int) -> None:
    flat = [find_scale_out([KINDS[kind](np.full(count, 20e9), seed)]) for seed in range(10)]
    assert not any(result.steps for result in flat)
    assert all(result.unit_bits_per_second is None for result in flat)


def test_combines_load_phases_and_marks_steps_capped_by_the_offer() -> None:
    # The levels are 20, 31.4, 42.8, 54.2, 65.6 and 77 Gbit/s for any offered load.
    device = stair(20e9, 5, 30)
    phases = [
        # The device is able to carry this load.
        load_phase(device[:20], offered=15e9),
        load_phase(device[20:80], offered=50e9, after_s=20),
        # A step is made in this pause.
        load_phase(device[95:160], offered=60e9, after_s=95, seed=1),
    ]
    scale_out = find_scale_out(phases)
    assert scale_out.overload_at == datetime.fromtimestamp(START_S + 20, UTC)
    reported = [(step.in_pause, step.capped) for step in scale_out.steps]
    assert reported == [(False, False), (False, False), (True, False), (False, True)]
    assert scale_out.steps[2].from_at < scale_out.steps[2].at < scale_out.steps[2].to_at
    assert scale_out.unit_bits_per_second == pytest.approx(UNIT, rel=0.05)
    assert scaling_of(phases[0]).carried
    assert not scaling_of(phases[1]).carried
    assert scaling_of(phases[1]).quiet_s == pytest.approx(20, abs=3)


def test_device_that_carries_all_load_is_not_overloaded() -> None:
    scale_out = find_scale_out([load_phase(np.full(60, 20e9), offered=10e9)])
    assert (scale_out.overload_at, scale_out.steps, scale_out.unit_bits_per_second) == (
        None,
        (),
        None,
    )


def test_step_has_costs_and_size_by_the_device_counter() -> None:
    levels = stair(20e9, 1, 30)
    retransmits = np.full(60, 2.0)
    retransmits[30:32] += 500
    rtt_s = np.full(60, 0.002)
    rtt_s[30] = 0.4
    begun_at = datetime.fromtimestamp(START_S + 31, UTC)
    reset = disruption(DisruptionKind.RESET, begun_at, 29, "pair-001")
    edges = START_S + np.arange(0.0, 60, 1)
    device_counter = CounterRecord(
        source="lab",
        start_s=edges,
        end_s=edges + 1,
        bytes=levels * 1.036 / 8 / 100,
        grain_s=1.0,
        read_at=datetime.fromtimestamp(START_S + 60, UTC),
    )
    one = load_phase(
        levels,
        retransmits=retransmits,
        rtt_s=rtt_s,
        disruptions=(reset,),
        device_counter=device_counter,
        scale=100.0,
    )
    [step] = find_scale_out([one]).steps
    assert step.retransmits_count == pytest.approx(1000)
    assert step.rtt_max_s == 0.4
    assert step.broken_pairs_count == 1
    assert step.counter_size_bits_per_second == pytest.approx(UNIT * 1.036, rel=0.01)


def test_scale_in_disruptions_are_counted_separately() -> None:
    begun_at = datetime.fromtimestamp(START_S + 100, UTC)
    three = ("pair-001", "pair-002", "pair-003")
    cut = disruption(DisruptionKind.RESET, begun_at, 20, *three, short_bytes=4e9)
    phases = [
        load_phase(stair(20e9, 1, 30)),
        load_phase(np.full(60, 90e9), offered=10e9, after_s=75, disruptions=(cut,), downward=True),
    ]
    scale_out = find_scale_out(phases)
    assert len(scale_out.steps) == 1
    assert scale_out.scale_in is not None
    assert (scale_out.scale_in.broken_pairs_count, scale_out.scale_in.short_bytes) == (3, 4e9)


def test_unit_count_uses_the_lower_bound_of_the_unit_size() -> None:
    result = find_scale_out([load_phase(stair(20e9, 5, 20))]).model_copy(
        update={"unit_bits_per_second": 11.4e9, "unit_half_width_bits_per_second": 0.6e9}
    )
    first = result.model_copy(update={"first_bits_per_second": 20e9})
    # Two units exist, so more are only needed for 130 Gbit/s, using units of 10.8 Gbit/s.
    assert first.units_for(150e9, 2) == 15
    # If the number of units is not given, use 20 / 11.4, which is rounded to 2.
    assert first.units_for(150e9, None) == 15
    assert first.units_for(10e9, 2) == 2
