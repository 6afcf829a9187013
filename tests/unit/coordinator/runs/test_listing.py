"""Tests for the filters of the run list."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broadside.coordinator.request_errors import BadGrouping
from broadside.coordinator.runs.listing import RunFilter, labels_of
from broadside.exchange.records import RunHeader

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
HEADER = RunHeader(
    run_id="r", created_at=AT, scenario="smoke", created_by="me", labels={"site": "a", "hop": "1"}
)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({}, True),
        ({"scenario": "smoke", "by": "me"}, True),
        ({"scenario": "other"}, False),
        ({"by": "other"}, False),
        ({"labels": {"site": "a"}}, True),
        ({"labels": {"site": "b"}}, False),
        ({"state": "open"}, True),
        ({"state": "finished"}, False),
        ({"verdict": "pass"}, False),
        ({"from_at": AT}, True),
        ({"before_at": AT}, False),
    ],
)
def test_filter_needs_all_given_values(fields: dict[str, Any], fits: bool) -> None:
    assert bool(RunFilter(**fields).fits(HEADER)) is fits


def test_imported_run_is_listed_at_the_time_of_its_traffic() -> None:
    imported = HEADER.model_copy(update={"traffic_from_at": AT - timedelta(days=30)})
    assert not RunFilter(from_at=AT).fits(imported)


def test_label_needs_an_equals_sign() -> None:
    assert labels_of(["site=a", "url=b=c"]) == {"site": "a", "url": "b=c"}
    with pytest.raises(BadGrouping):
        labels_of(["site"])
