"""Tests to compare a recomputed summary with the stored summary."""

from broadside.coordinator.core.summary import RunSummary, canonical
from broadside.coordinator.views.responses import DIFFERENCES_MAX_COUNT, compare_stored_summary
from tests.unit.coordinator.imports.small_tables import fleet, made, parse


def summary(bursts: int = 3) -> RunSummary:
    return made(parse(fleet(3, bursts)))[1]


def test_equal_text_is_equal() -> None:
    result = compare_stored_summary(canonical(summary()), summary())
    assert result.equal
    assert result.differences == ()


def test_differing_fields_are_named() -> None:
    now = summary()
    stored = now.model_copy(update={"pairs_measured": 2, "scale": 100.0})
    result = compare_stored_summary(canonical(stored), now)
    assert not result.equal
    assert result.differences == (
        "pairs_measured: 2 stored, 3 now",
        "scale: 100.0 stored, 1.0 now",
    )


def test_number_of_reported_differences_is_limited() -> None:
    result = compare_stored_summary(canonical(summary(4)), summary(3))
    assert any(difference.startswith("bursts: ") for difference in result.differences)
    rates = summary()
    other = rates.model_copy(
        update={"bursts": tuple(b.model_copy(update={"pairs": ()}) for b in rates.bursts)}
    )
    many = compare_stored_summary(canonical(other), rates)
    assert len(many.differences) <= DIFFERENCES_MAX_COUNT
    assert many.differences_count >= 3


def test_different_format_of_equal_values_is_not_equal() -> None:
    result = compare_stored_summary(canonical(summary()).replace(b":", b": ", 1), summary())
    assert not result.equal
    assert "only the format differs" in result.differences[0]
