"""Tests for how tables are split into bursts, using results that were calculated by hand."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.coordinator.core.summary import SecondState
from broadside.coordinator.imports.import_answers import ImportedTable
from broadside.coordinator.imports.import_requests import OriginalTable
from broadside.coordinator.imports.metric_csv import read_declared_metric
from broadside.coordinator.imports.table_bursts import OriginalRow, join_rows, problems
from broadside.coordinator.imports.table_runs import TableTests
from tests.unit.coordinator.imports.small_tables import made, parse

DATA = Path(__file__).parents[3] / "data" / "original"


def table(name: str, *, metric: bool = False) -> OriginalTable:
    read = parse((DATA / name).read_text(encoding="utf-8"), name)
    if not metric:
        return read
    points, *_ = read_declared_metric(DATA / "seed-280s-firewall-throughput.csv")
    return read.model_copy(update={"metric_source": "chart", "metric": points})


def answered(table: OriginalTable) -> ImportedTable:
    return TableTests(table).describe(made(table)[1])


SEED = table("seed-280s-30clients.csv", metric=True)


def test_reads_thirty_clients_with_their_metric() -> None:
    result = answered(SEED)
    assert result.period_s == 300
    assert [burst.planned_start_at for burst in result.bursts] == [
        datetime(2022, 1, 4, 16, 25, tzinfo=UTC) + timedelta(minutes=5 * i) for i in range(6)
    ]
    assert [
        round((burst.fleet_received_bits_per_second or 0) / 1e9, 2) for burst in result.bursts
    ] == [175.50, 181.27, 181.88, 181.03, 180.29, 181.12]
    late = [
        (burst.index, pair.pair, pair.late_s)
        for burst in result.bursts
        for pair in burst.late_pairs
    ]
    assert late == [
        (0, "10.2.0.17", 36),
        (0, "10.2.0.32", 40),
        (1, "10.2.0.17", 17),
        (1, "10.2.0.32", 21),
        (2, "10.2.0.32", 3),
    ]
    assert [burst.null_pairs for burst in result.bursts] == [(), *[("10.2.0.24",)] * 5]
    assert [burst.missing_pairs for burst in result.bursts] == [("10.2.0.10",), *[()] * 5]
    assert [burst.pairs_measured for burst in result.bursts] == [29] * 6
    assert [round(burst.completeness_ratio, 3) for burst in result.bursts] == [
        0.9, 0.9, 0.933, 0.967, 0.967, 0.967,
    ]  # fmt: skip
    assert result.reconciliation is not None
    assert result.reconciliation.lag_s == pytest.approx(75, abs=15)
    text = " ".join(finding.sentence for finding in result.findings)
    named = ("10.2.0.17", "10.2.0.32", "10.2.0.24", "10.2.0.10")
    assert all(client in text for client in named)


def test_metric_reveals_the_client_without_a_row() -> None:
    first, *others = answered(SEED).bursts
    assert first.reconciliation is not None
    # Up to 52 bytes for every two packets can be acknowledgements, so they have to be subtracted.
    missing = 1 / 29 + 0.008 - 52 / (2 * 1500)
    assert first.reconciliation.residual_ratio == pytest.approx(missing, abs=0.01)
    assert first.reconciliation.causes[0].id == "lost-reports"
    assert all(burst.reconciliation and not burst.reconciliation.causes for burst in others)


def test_metrics_that_need_seconds_are_unknown() -> None:
    """A row is a mean, and its stamp is used to get the planned start."""
    _, run = made(SEED)
    assert (run.start_spread_s, run.start_error_max_s, run.start_error_p99_s) == (None,) * 3
    first = run.bursts[0]
    errors = {pair.state: pair.start_error_s for pair in first.pairs}
    assert errors[SecondState.MEASURED] is None
    assert errors[SecondState.LATE] == pytest.approx(40, abs=4)
    (flow,) = first.flows
    assert flow.received_half_width_bits_per_second is None
    assert flow.second_cov_ratio is flow.share_movement_ratio is flow.rtt_p95_s is None
    assert first.availability is None
    assert first.client.cpu_mean_ratio is None
    assert {pair.cov_ratio for pair in first.pairs} == {None}
    assert first.window is not None
    # This is used by late pairs too.
    assert (first.window.window_s, first.window.ramp_s) == (240, 0)


def periods(rows: list[OriginalRow], **given: float) -> set[float | None]:
    return {burst.series.period_s for burst in join_rows(rows, **given)}  # type: ignore[arg-type]  # by name


def test_uses_a_given_period() -> None:
    rows = list(SEED.rows)
    assert join_rows(rows, period_s=300) == join_rows(rows)
    assert periods(rows, period_s=600) == {600}
    assert periods(rows[:1]) == {None}


def fired(
    at: datetime, *, clients: int, bursts: int, duration_s: float, period_s: float, seed: int = 0
) -> list[OriginalRow]:
    """Return a table in the original format. Some stamps are late."""
    rng = random.Random(seed)
    return [
        OriginalRow(
            row_number=2 + burst * clients + client,
            client=f"10.2.0.{client + 4}",
            started_at=at
            + timedelta(
                seconds=burst * period_s
                + (rng.uniform(3, 25) if rng.random() < 0.05 else rng.choice([0, 0, 0, 1]))
            ),
            duration_s=duration_s,
            sent_bits_per_second=6e9,
            received_bits_per_second=6e9,
        )
        for burst in range(bursts)
        for client in range(clients)
    ]


@pytest.mark.parametrize(
    ("clients", "duration_s", "period_s"),
    [(30, 30, 60), (30, 280, 300), (30, 1740, 1800), (1, 55, 60), (3, 30, 60), (12, 590, 900)],
)
@pytest.mark.parametrize("seed", range(5))
def test_infers_the_period(clients: int, duration_s: float, period_s: float, seed: int) -> None:
    at = datetime(2022, 1, 4, 16, 0, tzinfo=UTC)
    rows = fired(at, clients=clients, bursts=8, duration_s=duration_s, period_s=period_s, seed=seed)
    result = join_rows(rows)
    assert periods(rows) == {period_s}
    assert [burst.planned_start_at for burst in result] == [
        at + timedelta(seconds=period_s * burst) for burst in range(8)
    ]
    assert sum(len(burst.measured) for burst in result) == len(rows)
    late = sum(burst.late_s(row) is not None for burst in result for row in burst.measured)
    assert late == sum((row.started_at.timestamp() % 60) > 1 for row in rows)


def test_series_in_one_table_have_separate_plans() -> None:
    """Use 30 clients for 280 seconds, then 10 for 30, and then a single client a week later."""
    at = datetime(2022, 1, 4, 16, 0, tzinfo=UTC)
    bursts = join_rows(
        fired(at, clients=30, bursts=3, duration_s=280, period_s=300)
        + fired(at + timedelta(minutes=20), clients=10, bursts=4, duration_s=30, period_s=60)
        + fired(at + timedelta(days=7), clients=1, bursts=5, duration_s=55, period_s=60)
    )
    assert [burst.pairs_planned for burst in bursts] == [30] * 3 + [10] * 4 + [1] * 5
    assert [len(burst.measured) for burst in bursts] == [30] * 3 + [10] * 4 + [1] * 5
    assert not any(burst.missing for burst in bursts)
    assert [burst.index for burst in bursts] == list(range(12))


def test_unreported_burst_leaves_a_gap_in_the_series() -> None:
    at = datetime(2022, 1, 4, 16, 0, tzinfo=UTC)
    bursts = join_rows(
        [
            row
            for row in fired(at, clients=5, bursts=6, duration_s=280, period_s=300)
            if not 290 < (row.started_at - at).total_seconds() < 590
        ]
    )
    assert len(bursts) == 5
    assert bursts[1].planned_start_at == at + timedelta(seconds=600)


def test_planned_pairs_without_rows_are_missing() -> None:
    burst = answered(SEED.model_copy(update={"pairs_planned": 32})).bursts[0]
    assert burst.pairs_planned == 32
    assert burst.completeness_ratio == pytest.approx(27 / 32)


def test_flags_zero_bytes_and_repeated_rows() -> None:
    first = SEED.rows[0]
    zero = replace(first, received_bits_per_second=0.0)
    again = replace(first, row_number=99, started_at=first.started_at + timedelta(seconds=9))
    alone = SEED.model_copy(update={"rows": (zero, again), "period_s": 300.0, "metric": ()})
    (burst,) = answered(alone).bursts
    assert burst.pairs_measured == 1
    assert [pair.late_s for pair in burst.late_pairs] == [9]
    assert burst.repeated_rows == (2,)
    (burst,) = answered(alone.model_copy(update={"rows": (zero,)})).bursts
    assert burst.null_pairs == (first.client,)
    assert burst.fleet_received_bits_per_second is None


def test_reports_copied_rows() -> None:
    """A row can be copied for another client, or to replace a burst that failed."""
    model = SEED.rows[0]

    def with_rates(row: OriginalRow, sent: float | None, received: float | None) -> OriginalRow:
        return replace(row, sent_bits_per_second=sent, received_bits_per_second=received)

    for copy in (replace(SEED.rows[7], client="10.2.0.99"), SEED.rows[9]):
        twin = with_rates(copy, model.sent_bits_per_second, model.received_bits_per_second)
        (result,) = problems([model, twin])
        assert "row 2 has the same and the same sent rate" in str(result)
    assert not problems([with_rates(row, 5.12e9, 5.1e9) for row in SEED.rows[:3]])
