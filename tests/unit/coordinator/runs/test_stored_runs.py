"""Tests for a stored plan that cannot be read because it is from a later version."""

from datetime import UTC, datetime

import pytest

from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.runs.stored_runs import parse_plan
from broadside.exchange.ports import RecordUnreadable

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
PLAN = Plan(run_id="r", created_at=AT, spec=RunSpec(scenario="smoke"), pairs=(), bursts=()).sealed()


def test_stores_and_reads_a_plan() -> None:
    assert parse_plan("r", PLAN.document).is_intact


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (b'"burst_s":30', b'"burst_s":30,"colour":"red"', "spec.colour: Extra inputs"),
        (b'"run_id":"r"', b'"run_id":"r","shade":1', "shade: Extra inputs"),
        (b'"run_id":"r",', b"", "run_id: Field required"),
        (b"{", b"", "plan: Invalid JSON"),
    ],
)
def test_unreadable_plan_error_contains_the_field(
    before: bytes, after: bytes, expected: str
) -> None:
    document = PLAN.document.replace(before, after, 1)
    with pytest.raises(RecordUnreadable, match=r"run r: its plan cannot be read") as refused:
        parse_plan("r", document)
    assert expected in str(refused.value)
    assert "use that version" in str(refused.value)
