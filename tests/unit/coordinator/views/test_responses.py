"""A recomputed verdict held against the stored one."""

from broadside.coordinator.core.summary import RunSummary, canonical
from broadside.coordinator.views.responses import DIFFERENCES_MAX_COUNT, compare_stored_summary
from tests.unit.coordinator.imports.small_tables import fleet, made, parse


def summary(bursts: int = 3) -> RunSummary:
    return made(parse(fleet(3, bursts)))[1]


def test_the_same_text_is_equal() -> None:
    stored = compare_stored_summary(canonical(summary()), summary())
    assert stored.equal
    assert stored.differences == ()


def test_each_field_that_differs_is_named() -> None:
    now = summary()
    stored = now.model_copy(update={"pairs_measured": 2, "scale": 100.0})
    current = compare_stored_summary(canonical(stored), now)
    assert not current.equal
    assert current.differences == (
        "pairs_measured: 2 stored, 3 now",
        "scale: 100.0 stored, 1.0 now",
    )


def test_lists_of_other_lengths_and_many_differences_stay_short() -> None:
    stored = compare_stored_summary(canonical(summary(4)), summary(3))
    assert any(difference.startswith("bursts: ") for difference in stored.differences)
    rates = summary()
    other = rates.model_copy(
        update={"bursts": tuple(b.model_copy(update={"pairs": ()}) for b in rates.bursts)}
    )
    many = compare_stored_summary(canonical(other), rates)
    assert len(many.differences) <= DIFFERENCES_MAX_COUNT
    assert many.differences_count >= 3


def test_another_form_of_the_same_values_is_not_equal() -> None:
    stored = compare_stored_summary(canonical(summary()).replace(b":", b": ", 1), summary())
    assert not stored.equal
    assert "only the format differs" in stored.differences[0]
