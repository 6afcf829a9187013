"""A device that is planted to grow in steps is told in steps, units and what they cost."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.core.measure.evidence import FirewallLedger
from coordinator.core.measure.scale_out import Hold, find_scale_out, scaling_of
from coordinator.core.summary import Disruption, DisruptionKind

START_S = 1_795_000_000.0
UNIT = 11.4e9


def hold(
    levels: NDArray[np.float64],
    *,
    after_s: float = 0.0,
    offered: float | None = None,
    seed: int = 0,
    **more: Any,
) -> Hold:
    """Seconds of a device's levels, under a load that may be less, with 0.5 % of noise."""
    random = np.random.default_rng(seed)
    noise = np.convolve(random.normal(size=len(levels) + 2), [0.5, 0.7, 0.5], "valid")
    rates = np.minimum(levels * (1 + 0.005 * noise), np.inf if offered is None else offered)
    known = {"retransmits": np.zeros(len(rates)), "rtt_s": np.full(len(rates), 0.002)} | more
    return Hold(start_s=START_S + after_s, rates=rates, offered_bits_per_second=offered, **known)


def stair(first: float, steps: int, every_s: int) -> NDArray[np.float64]:
    return np.repeat(first + UNIT * np.arange(steps + 1), every_s)


def test_one_step_of_load_shows_every_step_of_the_device() -> None:
    good = 0
    for seed in range(10):
        found = find_scale_out([hold(stair(20e9, 5, 20), seed=seed)])
        good += len(found.steps) == 5 and all(
            abs(step.after_overload_s - 20 * number) <= 3
            and step.size_bits_per_second == pytest.approx(UNIT, rel=0.05)
            for number, step in enumerate(found.steps, 1)
        )
    assert good >= 9
    assert found.unit_bits_per_second == pytest.approx(UNIT, rel=0.02)
    assert found.took_s == pytest.approx(100, abs=3)


def test_flat_holds_have_no_step() -> None:
    flat = [find_scale_out([hold(np.full(120, 20e9), seed=s)]) for s in range(10)]
    assert not any(found.steps for found in flat)
    assert all(found.unit_bits_per_second is None for found in flat)


def test_a_staircase_joins_its_holds_and_leaves_out_what_the_offer_capped() -> None:
    device = stair(20e9, 5, 30)  # 20, 31.4, 42.8, 54.2, 65.6, 77 Gbit/s, whatever is offered
    holds = [
        hold(device[:20], offered=15e9),  # carried
        hold(device[20:80], offered=50e9, after_s=20),
        hold(device[95:160], offered=60e9, after_s=95, seed=1),  # a pause of 15 s, with a step
    ]
    found = find_scale_out(holds)
    assert found.overload_at == datetime.fromtimestamp(START_S + 20, UTC)
    told = [(step.in_pause, step.capped) for step in found.steps]
    assert told == [(False, False), (False, False), (True, False), (False, True)]
    assert found.steps[2].from_at < found.steps[2].at < found.steps[2].to_at
    assert found.unit_bits_per_second == pytest.approx(UNIT, rel=0.05)
    assert scaling_of(holds[0]).carried
    assert not scaling_of(holds[1]).carried
    assert scaling_of(holds[1]).quiet_s == pytest.approx(20, abs=3)


def test_what_carries_everything_is_never_overloaded() -> None:
    found = find_scale_out([hold(np.full(60, 20e9), offered=10e9)])
    assert (found.overload_at, found.steps, found.unit_bits_per_second) == (None, (), None)


def test_a_step_has_its_costs_and_the_ledgers_word() -> None:
    levels = stair(20e9, 1, 30)
    retransmits = np.full(60, 2.0)
    retransmits[30:32] += 500
    rtt_s = np.full(60, 0.002)
    rtt_s[30] = 0.4
    reset = Disruption(
        kind=DisruptionKind.RESET,
        burst_index=0,
        start_at=datetime.fromtimestamp(START_S, UTC) + timedelta(seconds=31),
        end_at=datetime.fromtimestamp(START_S, UTC) + timedelta(seconds=60),
        duration_s=29,
        scope="one",
        pairs_count=1,
        pairs=("pair-001",),
    )
    edges = START_S + np.arange(0.0, 60, 1)
    ledger = FirewallLedger(
        source="lab",
        start_s=edges,
        end_s=edges + 1,
        bytes=levels * 1.036 / 8 / 100,
        grain_s=1.0,
        read_at=datetime.fromtimestamp(START_S + 60, UTC),
    )
    one = hold(
        levels,
        retransmits=retransmits,
        rtt_s=rtt_s,
        disruptions=(reset,),
        ledger=ledger,
        scale=100.0,
    )
    [step] = find_scale_out([one]).steps
    assert step.retransmits_count == pytest.approx(1000)
    assert step.rtt_max_s == 0.4
    assert step.broken_pairs_count == 1
    assert step.ledger_size_bits_per_second == pytest.approx(UNIT * 1.036, rel=0.01)


def test_what_was_cut_on_the_way_down_is_counted_apart() -> None:
    cut = Disruption(
        kind=DisruptionKind.RESET,
        burst_index=0,
        start_at=datetime.fromtimestamp(START_S + 100, UTC),
        end_at=datetime.fromtimestamp(START_S + 120, UTC),
        duration_s=20,
        scope="some",
        pairs_count=3,
        pairs=("pair-001", "pair-002", "pair-003"),
        short_bytes=4e9,
    )
    holds = [
        hold(stair(20e9, 1, 30)),
        hold(np.full(60, 90e9), offered=10e9, after_s=75, disruptions=(cut,), downward=True),
    ]
    found = find_scale_out(holds)
    assert len(found.steps) == 1
    assert found.scale_in is not None
    assert (found.scale_in.broken_pairs_count, found.scale_in.short_bytes) == (3, 4e9)


def test_units_are_counted_by_the_lower_end_of_one() -> None:
    found = find_scale_out([hold(stair(20e9, 5, 20))]).model_copy(
        update={"unit_bits_per_second": 11.4e9, "unit_half_width_bits_per_second": 0.6e9}
    )
    first = found.model_copy(update={"first_bits_per_second": 20e9})
    assert first.units_for(150e9, 2) == 15  # 2 there, and 130 of 10.8 Gbit/s
    assert first.units_for(150e9, None) == 15  # 20 / 11.4 is 2
    assert first.units_for(10e9, 2) == 2
