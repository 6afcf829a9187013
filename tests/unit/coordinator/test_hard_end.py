"""Ends as people write them."""

from datetime import UTC, datetime

import pytest

from coordinator.cli.hard_end import seconds_until

NOW = datetime(2026, 11, 20, 18, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "left_s"),
    [
        ("26h", 93_600),
        ("90m", 5400),
        ("45s", 45),
        ("2d", 172_800),
        ("2026-11-20T19:00Z", 3600),
        ("2026-11-20T20:00+01:00", 3600),
    ],
)
def test_an_end_in_seconds(text: str, left_s: int) -> None:
    assert seconds_until(text, NOW) == left_s


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("for ever", "'for ever' is no end"),
        ("2026-11-20T19:00", "an instant with its zone"),
        ("2026-11-20T17:00Z", "is past"),
        ("", "is no end"),
    ],
)
def test_no_end_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        seconds_until(text, NOW)
