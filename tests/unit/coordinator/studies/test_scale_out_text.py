"""Tests for the conclusion of a scale-out study."""

from datetime import UTC, datetime
from typing import Any

import pytest

from broadside.coordinator.core.measure.experiments.scale_out import CapacityStep, ScaleOut
from broadside.coordinator.studies.scale_out_text import long_time, scaled_out
from broadside.coordinator.studies.study import Staircase

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)
STEP = CapacityStep(
    at=AT,
    from_at=AT,
    to_at=AT,
    after_overload_s=300.0,
    before_bits_per_second=10e9,
    after_bits_per_second=12e9,
    size_bits_per_second=2e9,
    half_width_bits_per_second=0.1e9,
    broken_pairs_count=3,
)
QUESTION = Staircase(plan_bits_per_second=20e9)


def scale_out(**changes: Any) -> ScaleOut:
    fields = {
        "overload_at": AT,
        "first_bits_per_second": 10e9,
        "last_bits_per_second": 12e9,
        "took_s": 300.0,
        "steps": (STEP,),
        "unit_bits_per_second": 2e9,
    }
    return ScaleOut.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "unknown"), (119.0, "119 s"), (120.0, "2 min"), (330.0, "6 min")]
)
def test_long_time_is_in_minutes_from_two_minutes_on(seconds: float | None, text: str) -> None:
    assert long_time(seconds) == text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "no hold has seconds"),
        (scale_out(overload_at=None), "the device carried all of the load, 12 Gbit/s"),
        (scale_out(steps=()), "no capacity step was detected"),
        (scale_out(unit_bits_per_second=None), "that cannot show the size of a unit"),
        (scale_out(), "from 10 Gbit/s to 12 Gbit/s of payload; about 1 step of 2 Gbit/s"),
        (scale_out(), "pre-scale to 10 units for 20 Gbit/s"),
    ],
)
def test_sentence_states_the_result(result: ScaleOut | None, text: str) -> None:
    assert text in scaled_out(QUESTION, result).sentence


def test_notes_have_the_pairs_that_a_step_reset() -> None:
    notes = " ".join(scaled_out(QUESTION, scale_out()).notes)
    assert "steps after 300 s" in notes
    assert "3 pairs reset" in notes
