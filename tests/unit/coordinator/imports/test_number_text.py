"""Figures as tables spell them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.imports.number_text import parse_number


@given(st.integers(0, 10**15), st.sampled_from([",", " ", "'", "\u00a0", "\u202f"]))
def test_thousands_separators_change_nothing(number: int, separator: str) -> None:
    assert parse_number(f"{number:,}".replace(",", separator)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_plain_number_is_itself(number: float) -> None:
    assert parse_number(repr(number)) == number


@pytest.mark.parametrize("text", ["", "null", "NULL", "None"])
def test_unknown_is_none(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-inf", "1_000", "1,00", "12,34,567", "0x10", "5e", "five", "1.2.3", "٣"]
)
def test_nothing_else_is_a_number(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_number(text)
