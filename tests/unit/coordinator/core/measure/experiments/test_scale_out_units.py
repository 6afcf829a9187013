"""Tests for the units that translated addresses show during a scale-out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from broadside.coordinator.core.measure.experiments.scale_out import LoadPhase, find_scale_out
from broadside.coordinator.core.summary import Translation, UnitChange, Units, UnitSummary
from broadside.coordinator.studies.scale_out_text import scaled_out
from broadside.coordinator.studies.study import Staircase

AT = datetime(2027, 3, 1, 12, tzinfo=UTC)


def units(rates: list[float], begun_s: float = 0.0, *changes: UnitChange) -> Units:
    return Units(
        translation=Translation.UNITS,
        pairs_count=2,
        count=len(rates),
        start_at=AT,
        every_s=1.0,
        changes=changes,
        units=tuple(
            UnitSummary(
                address=f"10.9.0.{index}",
                clients_count=2,
                flows_mean_count=8.0,
                received_bits_per_second=rate,
                first_at=AT + timedelta(seconds=begun_s + index),
                last_at=AT + timedelta(seconds=begun_s + 30),
                bits_per_second=(),
                flows=(),
            )
            for index, rate in enumerate(rates, 1)
        ),
    )


def phase(after_s: float, level: float, seen: Units | None, *, downward: bool = False) -> LoadPhase:
    blank = np.zeros(30)
    return LoadPhase(
        start_s=AT.timestamp() + after_s,
        rates=np.full(30, level),
        retransmits=blank,
        rtt_s=blank,
        downward=downward,
        scale=10.0,
        units=seen,
    )


def test_scale_out_has_the_capacity_and_the_first_stream_of_units() -> None:
    left = UnitChange(
        address="10.9.0.3", change="left", at=AT, resolution_s=1.0, flows_count=5, flows_cut=True
    )
    result = find_scale_out(
        [
            phase(0, 20e6, units([1e6, 1e6])),
            phase(60, 30e6, units([1e6, 1.2e6, 0.8e6], 60)),
            phase(120, 10e6, units([1e6, 1e6, 1e6], 120, left), downward=True),
        ]
    )
    assert (result.seen_before_count, result.seen_after_count) == (2, 3)
    # At real scale.
    assert result.seen_unit_bits_per_second == 10e6
    assert result.seen_unit_half_width_bits_per_second is not None
    # The interval of the three units is 10 +- 5 Mbit/s, and two units carry 20 Mbit/s.
    assert result.units_for(60e6, None) == 10
    [new] = result.new_units
    assert (new.address, new.after_overload_s) == ("10.9.0.3", 63.0)
    assert result.scale_in is not None
    assert result.scale_in.flows_cut_count == 5
    notes = " ".join(scaled_out(Staircase(), result).notes)
    assert "translated addresses show 2 to 3 units" in notes
    assert "10.9.0.3 63 s" in notes
    assert "scale-in cut 5 streams" in notes


def test_unit_below_its_limit_shows_no_capacity() -> None:
    """Of 24 streams with 1 Mbit/s each, the third unit has the four that it can carry."""
    seen = units([8e5, 8.2e5, 4e5])
    counts = zip(seen.units, (10, 10, 4), strict=True)
    seen = seen.model_copy(
        update={"units": tuple(u.model_copy(update={"flows_count": n}) for u, n in counts)}
    )
    steady = replace(phase(0, 20.2e6, seen), offered_bits_per_second=24e6)
    result = find_scale_out([steady])
    assert result.seen_unit_bits_per_second == 8.1e6


def test_scale_out_without_translation_claims_no_units() -> None:
    result = find_scale_out([phase(0, 20e6, None)])
    assert (result.seen_before_count, result.seen_unit_bits_per_second) == (None, None)
    assert result.new_units == ()
