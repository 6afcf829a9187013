"""Tests for options to set the end of runs, tokens and join codes."""

from datetime import UTC, datetime, timedelta, tzinfo

import pytest
import typer

from broadside.coordinator.cli.options import parse_duration_s, parse_end_time
from broadside.coordinator.cli.run_commands import _unattended_fields

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("26h", 93_600), ("90m", 5400), ("45s", 45), ("2d", 172_800), ("90", None), ("-1d", None)],
)
def test_duration_has_a_number_and_a_unit(text: str, seconds: int | None) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90d", NOW + timedelta(days=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("2027-01-01", datetime(2027, 1, 1, tzinfo=UTC)),
        ("2027-01-01T00:00+02:00", datetime(2026, 12, 31, 22, tzinfo=UTC)),
    ],
)
def test_end_is_a_duration_or_a_time(text: str, at: datetime) -> None:
    assert parse_end_time("--expires", text, NOW) == at


@pytest.mark.parametrize(
    ("text", "zone", "message"),
    [
        ("", UTC, "not a duration or time"),
        ("soon", UTC, "not a duration or time"),
        ("9999999d", UTC, "not a duration or time"),
        ("2020-01-01", UTC, "in the past"),
        ("2027-01-01T00:00", None, "no offset"),
    ],
)
def test_invalid_end_error_shows_the_format(
    text: str, zone: tzinfo | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        parse_end_time("--expires", text, NOW, zone=zone)
    error = capsys.readouterr().err
    assert message in error
    assert "such as 12h" in error


def test_unattended_end_is_a_duration_or_a_time() -> None:
    assert _unattended_fields("26h") == {"unattended_s": 93_600, "unattended_until_at": None}
    at = datetime(2100, 1, 1, 6, tzinfo=UTC)
    assert _unattended_fields("2100-01-01T06:00Z") == {
        "unattended_s": None,
        "unattended_until_at": at,
    }
