"""Tests to read times and numbers that are given as text."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.imports.time_text import parse_number, parse_time, parse_zone, to_utc

NEW_YORK = ZoneInfo("America/New_York")


def test_parses_zones_by_name_or_offset() -> None:
    assert parse_zone("UTC") is UTC
    assert parse_zone("America/New_York") == NEW_YORK
    assert parse_zone("UTC-05:00") == timezone(timedelta(hours=-5))
    assert parse_zone("utc+0530") == timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize("text", ["America/NewYork", "Mars", "", "../etc/passwd", "/etc", "UTC+99"])
def test_rejects_unknown_zones(text: str) -> None:
    with pytest.raises(ValueError, match="no such time zone"):
        parse_zone(text)


@given(st.datetimes(datetime(2000, 1, 2), datetime(2099, 1, 1)))  # noqa: DTZ001 - UTC is next
def test_converts_local_times_or_rejects_ambiguous_ones(naive: datetime) -> None:
    at = naive.replace(microsecond=0, tzinfo=UTC)
    local = at.astimezone(NEW_YORK).replace(tzinfo=None)
    time = parse_time(f"{local:%m %d %Y %H %M %S}", "%m %d %Y %H %M %S")
    try:
        assert to_utc(time, NEW_YORK) == at
    except ValueError as error:
        assert "twice" in str(error)


def test_time_with_a_zone_ignores_the_default_zone() -> None:
    assert to_utc(parse_time("2022-01-04T16:25:00Z"), NEW_YORK) == datetime(
        2022, 1, 4, 16, 25, tzinfo=UTC
    )


@given(st.integers(0, 10**15), st.sampled_from([",", " ", "'", "\u00a0", "\u202f"]))
def test_ignores_thousands_separators(number: int, separator: str) -> None:
    assert parse_number(f"{number:,}".replace(",", separator)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_parses_plain_numbers(number: float) -> None:
    assert parse_number(repr(number)) == number


@pytest.mark.parametrize("text", ["", "null", "NULL", "None"])
def test_null_texts_are_unknown(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-inf", "1_000", "1,00", "12,34,567", "0x10", "5e", "five", "1.2.3", "٣"]
)
def test_rejects_other_texts_as_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_number(text)
