"""Tests for the table format selected by the Accept header."""

import pytest

from broadside.coordinator.views.tables.formats import (
    ARROW,
    CSV,
    JSON,
    PARQUET,
    NotAcceptable,
    chosen_format,
)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("text/csv", CSV),
        ("text/*", CSV),
        ("application/*", JSON),
        ("application/json;q=0.1, text/csv;q=0.9", CSV),
        ("application/json;q=0, */*", CSV),
        (f"{ARROW}, */*;q=0.5", ARROW),
        (f"image/png, {PARQUET};q=0.2", PARQUET),
        ("TEXT/CSV", CSV),
    ],
)
def test_chooses_preferred_format(accept: str | None, chosen: str) -> None:
    assert chosen_format(accept) == chosen


@pytest.mark.parametrize("accept", ["image/png", "text/csv;q=0", "text/csv;q=x", "json"])
def test_rejects_unsupported_accept_header(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="text/csv"):
        chosen_format(accept)
