"""A stored plan that a later version wrote is refused by name, and costs no other run."""

from datetime import UTC, datetime

import pytest

from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.runs.stored_runs import parse_plan
from broadside.exchange.ports import RecordUnreadable

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
PLAN = Plan(run_id="r", created_at=AT, spec=RunSpec(scenario="smoke"), pairs=(), bursts=()).sealed()


def test_a_plan_reads_back() -> None:
    assert parse_plan("r", PLAN.document).is_intact


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b'"burst_s":30', b'"burst_s":30,"colour":"red"', "spec.colour: Extra inputs"),
        (b'"run_id":"r"', b'"run_id":"r","shade":1', "shade: Extra inputs"),
        (b'"run_id":"r",', b"", "run_id: Field required"),
        (b"{", b"", "plan: Invalid JSON"),
    ],
)
def test_what_cannot_be_read_is_named(before: bytes, after: bytes, said: str) -> None:
    document = PLAN.document.replace(before, after, 1)
    with pytest.raises(RecordUnreadable, match=r"run r: its plan cannot be read") as refused:
        parse_plan("r", document)
    assert said in str(refused.value)
    assert "read it with that version" in str(refused.value)
