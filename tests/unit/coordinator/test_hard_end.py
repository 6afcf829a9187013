"""Ends as people write them."""

from datetime import UTC, datetime

import pytest

from broadside.coordinator.cli.hard_end import read_end

NOW = datetime(2026, 11, 20, 18, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "left_s"), [("26h", 93_600), ("90m", 5400), ("45s", 45), ("2d", 172_800)]
)
def test_a_length_counts_from_the_launch(text: str, left_s: int) -> None:
    assert read_end(text, NOW) == {"unattended_s": left_s, "unattended_until_at": None}


@pytest.mark.parametrize("text", ["2026-11-20T19:00Z", "2026-11-20T20:00+01:00"])
def test_an_instant_stays_that_instant(text: str) -> None:
    end_at = datetime(2026, 11, 20, 19, tzinfo=UTC)
    assert read_end(text, NOW) == {"unattended_s": None, "unattended_until_at": end_at}


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
        read_end(text, NOW)
