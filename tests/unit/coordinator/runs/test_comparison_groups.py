"""Tests to compare groups of bursts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.coordinator.request_errors import EmptyGroup
from broadside.coordinator.runs.comparison_groups import Run, compare_runs
from broadside.coordinator.runs.requests import CompareRequest, Selection
from tests.unit.coordinator.imports.small_tables import fleet, made, parse, row

DATA = Path(__file__).parents[3] / "data" / "original"
FIRST = datetime(2022, 1, 4, 16, 0, tzinfo=UTC)


def run(lines: list[str], run_id: str = "a", **labels: str) -> Run:
    table = parse(lines).model_copy(update={"labels": labels})
    plan, summary = made(table, run_id)
    return Run(plan=plan, summary=summary)


def halves() -> list[str]:
    """Return lines for four bursts, then for four bursts at half the rate."""
    return [
        line if int(line.split(" ")[4]) < 20 else line.replace(",5000000000,", ",2500000000,")
        for line in fleet(3, 8)[1:]
    ]


def split(at: datetime) -> CompareRequest:
    return CompareRequest(
        a=Selection(name="before", run_ids=("a",), before_at=at),
        b=Selection(name="after", run_ids=("a",), from_at=at),
    )


@pytest.mark.parametrize(
    ("at", "counts"),
    [
        # A burst starts at this time.
        (FIRST + timedelta(minutes=20), (4, 3)),
        (FIRST + timedelta(minutes=21), (4, 3)),
        (FIRST + timedelta(minutes=20, seconds=-1), (4, 4)),
        # A burst ends at this time.
        (FIRST + timedelta(minutes=24, seconds=40), (5, 3)),
    ],
)
def test_burst_that_spans_the_split_is_excluded(at: datetime, counts: tuple[int, int]) -> None:
    runs = [run([fleet(1, 1)[0], *halves()])]
    result = compare_runs(split(at), runs, runs)
    assert (result.metrics[0].a_count, result.metrics[0].b_count) == counts


def test_idps_on_and_off_differ_in_the_original_table() -> None:
    table = (DATA / "seed-idps-on-off-1client.csv").read_text()
    runs = [run(table.splitlines())]
    result = compare_runs(split(datetime(2022, 1, 13, 15, 49, tzinfo=UTC)), runs, runs)
    metrics = {metric.name: metric for metric in result.metrics}
    received, rtt = metrics["received_bits_per_second"], metrics["rtt_s"]
    assert (received.a_count, received.b_count) == (35, 10)
    assert (round(received.a_mean / 1e9, 2), round(received.b_mean / 1e9, 2)) == (5.27, 9.21)
    assert (round(rtt.a_mean * 1e3), round(rtt.b_mean * 1e3, 1)) == (109, 7.9)
    assert received.significant and rtt.significant


def test_reports_a_changed_rate() -> None:
    runs = [run([fleet(1, 1)[0], *halves()])]
    result = compare_runs(split(FIRST + timedelta(minutes=20)), runs, runs)
    received = result.metrics[0]
    assert received.ratio == pytest.approx(0.5)
    assert received.significant
    assert not result.few_bursts
    assert result.conditions_differ == ()


def test_difference_of_a_run_from_itself_is_zero() -> None:
    runs = [run(fleet(3, 4))]
    request = CompareRequest(a=Selection(run_ids=("a",)), b=Selection(run_ids=("a",)))
    assert {metric.difference for metric in compare_runs(request, runs, runs).metrics} == {0}


def test_reports_other_differing_conditions() -> None:
    request = CompareRequest(a=Selection(run_ids=("a",)), b=Selection(run_ids=("b",)))
    off = [run(fleet(3, 4), idps="off")]
    result = compare_runs(request, off, [run(fleet(3, 4), "b", idps="deny")])
    assert result.conditions_differ == ()
    assert (result.a, result.b) == ("a (idps=off)", "b (idps=deny)")
    other = [run(fleet(2, 4), "b", idps="deny", mtu="9000")]
    result = compare_runs(request, off, other)
    assert result.conditions_differ == (
        "label idps: off and deny",
        "label mtu: unknown and 9000",
        "pairs_count: 3 and 2",
    )
    named = request.model_copy(update={"label": "idps"})
    assert compare_runs(named, off, other).conditions_differ == (
        "label mtu: unknown and 9000",
        "pairs_count: 3 and 2",
    )
    assert "conditions differ" in result.sentence


def test_reports_too_few_bursts() -> None:
    request = CompareRequest(a=Selection(run_ids=("a",)), b=Selection(run_ids=("b",)))
    result = compare_runs(request, [run(fleet(3, 2))], [run(fleet(3, 4), "b")])
    assert result.few_bursts
    assert "too few bursts" in result.sentence


def test_empty_group_error_has_the_time_range() -> None:
    runs = [run([*fleet(1, 2), row(1, 10)])]
    with pytest.raises(EmptyGroup, match=r"before: no burst; bursts start from 2022-01-04T16:00"):
        compare_runs(split(FIRST), runs, runs)
