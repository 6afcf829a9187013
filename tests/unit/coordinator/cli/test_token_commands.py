"""When a token ends, as an operator writes it."""

from datetime import UTC, datetime, timedelta

import pytest

from broadside.coordinator.cli.expiry import parse_expiry

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90d", NOW + timedelta(days=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("2027-01-01", datetime(2027, 1, 1, tzinfo=UTC)),
        ("2027-01-01T00:00+02:00", datetime(2026, 12, 31, 22, tzinfo=UTC)),
    ],
)
def test_an_end_to_come(text: str, at: datetime) -> None:
    assert parse_expiry(text, NOW) == at


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "2020-01-01", "soon", "9999999d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse_expiry(text, NOW)
