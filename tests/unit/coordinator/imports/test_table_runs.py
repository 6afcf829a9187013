"""Tests to import a table as a run."""

from datetime import UTC, datetime, timedelta

import pytest

from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import Verdict, canonical
from broadside.coordinator.imports.import_requests import MetricPoint, OriginalTable
from broadside.coordinator.imports.import_runs import run_status
from broadside.coordinator.imports.stored_imports import open_import, summarise
from broadside.coordinator.imports.table_runs import TableTests
from broadside.coordinator.scenarios import BadScenario
from broadside.exchange.messages import Outcome
from tests.unit.coordinator.imports.small_tables import NOW, fleet, made, parse, row


def test_complete_table_becomes_a_complete_run() -> None:
    plan, summary = made(parse(fleet(3, 4)))
    assert (len(plan.pairs), len(plan.bursts), plan.spec.period_s) == (3, 4, 300)
    assert plan.bursts[1].planned_start_at == datetime(2022, 1, 4, 16, 5, tzinfo=UTC)
    assert summary.verdict is Verdict.MEASURED
    assert summary.completeness_ratio == 1
    assert summary.fleet_received_bits_per_second == 15e9
    assert summary.fleet_sent_bits_per_second == 15.3e9
    assert (summary.pairs_measured, summary.pairs_planned) == (3, 3)
    assert plan.spec.labels["timezone"] == "America/New_York"


def test_late_null_and_missing_pairs_have_their_states() -> None:
    lines = fleet(9, 4)
    lines[1] = row(1, 0, second=36)
    lines[2] = row(2, 0, "null")
    # Remove client 3 from the first burst.
    del lines[3]
    lines += [row(10, 15, "0")]
    table = parse(lines, pairs_planned=11)
    plan, summary = made(table)
    first, last = summary.bursts[0], summary.bursts[-1]
    states = {pair.pair: pair.state.value for pair in first.pairs}
    assert states["10.2.0.1"] == "late"
    assert states["10.2.0.2"] == "null"
    assert states["10.2.0.3"] == states["10.2.0.10"] == "lost"
    assert states["unseen-001"] == "missed"
    assert sum(state == "measured" for state in states.values()) == 6
    assert first.completeness.planned_s == 11 * 280
    assert (first.completeness.lost_s, first.completeness.missed_s) == (2 * 280, 280)
    # Late pairs are used for the rate, but not for the completeness.
    assert first.fleet_received_bits_per_second == 7 * 5e9
    assert first.completeness_ratio == pytest.approx(6 / 11)
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert {pair.pair: pair.reason for pair in last.pairs}["10.2.0.10"] == "received 0 bit/s"
    status = run_status(plan, open_import(table).states())
    assert status.bursts[0].outcomes == {
        Outcome.MEASURED: 6,
        Outcome.LATE: 1,
        Outcome.FAILED: 1,
    }
    assert (status.bursts[0].reported_count, status.bursts[0].pairs_planned) == (8, 11)


def test_stored_values_recompute_identically() -> None:
    metric = tuple(
        MetricPoint(at=datetime(2022, 1, 4, 16, minute, tzinfo=UTC), bits_per_second=15e9)
        for minute in range(25)
    )
    table = parse(fleet(3, 4)).model_copy(update={"metric": metric, "metric_source": "m.csv"})
    plan, summary = made(table)
    stored_plan = Plan.model_validate_json(plan.model_dump_json())
    stored = OriginalTable.model_validate_json(table.model_dump_json())
    again = summarise(stored_plan, open_import(stored).measure(stored_plan), NOW)
    assert canonical(again) == canonical(summary)
    assert summary.reconciliation is not None
    assert summary.bursts[0].firewall_bits_per_second is not None


def test_order_of_rows_is_irrelevant() -> None:
    lines = fleet(3, 4)
    table = parse([lines[0], *reversed(lines[1:])])
    assert made(table)[1] == made(parse(lines))[1]


def test_start_time_without_rows_prevents_a_pass() -> None:
    lines = [line for line in fleet(3, 4) if " 11 05 00" not in line]
    _, summary = made(parse(lines, period_s=300))
    assert summary.verdict is Verdict.INCONCLUSIVE
    finding = next(finding for finding in summary.findings if finding.id == "import-open")
    assert "1 planned start times" in finding.sentence
    assert "2022-01-04 16:05:00" in finding.sentence


def test_removed_rows_never_cause_a_pass_if_pairs_are_given() -> None:
    lines = fleet(4, 3)
    # This is below the limit because 1 in 12 is missing.
    lines[5] = row(1, 5, "null")
    assert made(parse(lines, pairs_planned=4))[1].verdict is Verdict.INCONCLUSIVE
    for number in range(1, len(lines)):
        fewer = [line for other, line in enumerate(lines) if other != number]
        assert made(parse(fewer, pairs_planned=4))[1].verdict is Verdict.INCONCLUSIVE
    without = [line for line in lines if not line.startswith("10.2.0.1,")]
    assert made(parse(without, pairs_planned=4))[1].verdict is Verdict.INCONCLUSIVE


def test_table_without_durations_has_rates_and_no_bytes() -> None:
    lines = [line.rpartition(",")[0] for line in fleet(3, 4)]
    table = parse(lines)
    _, summary = made(table)
    assert {burst.duration_s for burst in TableTests(table).describe(summary).bursts} == {None}
    assert summary.bursts[0].fleet_received_bits_per_second == 15e9
    assert summary.verdict is Verdict.INCONCLUSIVE
    finding = next(finding for finding in summary.findings if finding.id == "import-open")
    assert "does not contain the duration" in finding.sentence


def test_objective_can_be_set_and_decides_the_verdict() -> None:
    target = {"objective.target_bits_per_second": 15e9, "device.sku": "premium"}
    table = parse(fleet(3, 4)).model_copy(update={"overrides": target})
    plan, summary = made(table)
    assert summary.verdict is Verdict.PASS
    assert summary.target_bits_per_second == 15e9
    assert plan.spec.device == {"sku": "premium"}
    high = {"objective.target_bits_per_second": 30e9}
    assert made(table.model_copy(update={"overrides": high}))[1].verdict is Verdict.FAIL


def test_rejects_settings_that_follow_from_the_table() -> None:
    with pytest.raises(BadScenario, match="pairs_count: follows from the import"):
        made(parse(fleet(3, 2)).model_copy(update={"overrides": {"pairs_count": 5}}))


def test_rejects_invalid_stored_tables() -> None:
    stored = parse(fleet(2, 2)).model_dump(mode="json")
    for change, parts in (
        ({"rows": []}, "at least 1"),
        ({"rows": [stored["rows"][0]] * 2}, "has the same"),
        ({"rows": [{**stored["rows"][0], "started_at": "2022-01-04T16:00:00"}]}, "timezone"),
        ({"rows": [{**stored["rows"][0], "started_at": "1969-01-04T16:00:00Z"}]}, "from 1970"),
        ({"rows": [{**stored["rows"][0], "duration_s": True}]}, "valid number"),
        ({"rows": [{**stored["rows"][0], "duration_s": "30"}]}, "valid number"),
        ({"rows": [{**stored["rows"][0], "duration_s": float("nan")}]}, "duration_s: nan: must be"),
        ({"period_s": False}, "valid number"),
        ({"skipped_rows": {"x": "1"}}, "valid integer"),
        ({"metric": [{"at": "2022-01-04T16:00:00Z"}]}, "at least two points"),
        ({"labels": {"": "x"}}, "pattern"),
    ):
        with pytest.raises(ValueError, match=parts):
            OriginalTable.model_validate(stored | change)


def test_two_series_of_different_fleets_become_one_run() -> None:
    second = [line.replace(" 2022 11 ", " 2022 15 ") for line in fleet(2, 3)[1:]]
    renamed = [line.replace("10.2.0.", "10.3.0.") for line in second]
    plan, summary = made(parse([*fleet(3, 3), *renamed]))
    assert [burst.pairs_planned for burst in summary.bursts] == [3, 3, 3, 2, 2, 2]
    assert len(plan.pairs) == 3
    assert summary.bursts[-1].planned_start_at - summary.bursts[2].planned_start_at == timedelta(
        hours=4
    )
    assert summary.completeness_ratio == 1
