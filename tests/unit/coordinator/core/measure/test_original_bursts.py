"""The original's tables, read again: the truth that was worked out by hand."""

import csv
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from coordinator.core.measure.evidence import FirewallLedger
from coordinator.core.measure.original_bursts import (
    OriginalRow,
    infer_bursts,
    problems,
    summarise_original,
    throughput_ledger,
)

DATA = Path(__file__).parents[4] / "data" / "original"
NEW_YORK = ZoneInfo("America/New_York")


def number(text: str | None) -> float | None:
    return None if text in (None, "", "null") else float(str(text))


def rows(name: str) -> list[OriginalRow]:
    def read() -> Iterator[OriginalRow]:
        with (DATA / name).open(encoding="utf-8") as lines:
            for line, row in enumerate(csv.DictReader(lines), 2):
                at = datetime.strptime(row["RowKey"], "%m %d %Y %H %M %S")  # noqa: DTZ007  # zone is next
                rtt = number(row.get("mean_rtt"))
                yield OriginalRow(
                    row_number=line,
                    client=row["PartitionKey"],
                    started_at=at.replace(tzinfo=NEW_YORK).astimezone(UTC),
                    duration_s=float(row["duration"]),
                    sent_bits_per_second=number(row["sent_throughput"]),
                    received_bits_per_second=number(row["received_throughput"]),
                    rtt_mean_s=None if rtt is None else rtt / 1e6,
                )

    return list(read())


def metric() -> FirewallLedger:
    with (DATA / "seed-280s-firewall-throughput.csv").open(encoding="utf-8") as lines:
        points = list(csv.DictReader(lines))
    return throughput_ledger(
        "chart",
        [datetime.fromisoformat(point["timestamp"]) for point in points],
        [number(point["throughput_bits_per_second"]) for point in points],
        read_at=datetime(2022, 1, 4, 18, tzinfo=UTC),
    )


BURSTS_280 = rows("seed-280s-30clients.csv")


def test_thirty_clients_and_their_metric() -> None:
    found = summarise_original(BURSTS_280, metric())
    assert found.period_s == 300
    assert [burst.planned_start_at for burst in found.bursts] == [
        datetime(2022, 1, 4, 16, 25, tzinfo=UTC) + timedelta(minutes=5 * i) for i in range(6)
    ]
    assert [
        round((burst.fleet_received_bits_per_second or 0) / 1e9, 2) for burst in found.bursts
    ] == [175.50, 181.27, 181.88, 181.03, 180.29, 181.12]
    late = [
        (burst.index, pair.pair, pair.late_s) for burst in found.bursts for pair in burst.late_pairs
    ]
    assert late == [
        (0, "10.2.0.17", 36),
        (0, "10.2.0.32", 40),
        (1, "10.2.0.17", 17),
        (1, "10.2.0.32", 21),
        (2, "10.2.0.32", 3),
    ]
    assert [burst.null_pairs for burst in found.bursts] == [(), *[("10.2.0.24",)] * 5]
    assert [burst.missing_pairs for burst in found.bursts] == [("10.2.0.10",), *[()] * 5]
    assert [burst.pairs_measured for burst in found.bursts] == [29] * 6
    assert [round(burst.completeness_ratio, 3) for burst in found.bursts] == [
        0.9, 0.9, 0.933, 0.967, 0.967, 0.967,
    ]  # fmt: skip
    assert found.reconciliation is not None
    assert found.reconciliation.lag_s == pytest.approx(75, abs=15)
    flags = [flag for burst in found.bursts for flag in burst.flags]
    assert len(flags) == 11
    said = " ".join(finding.sentence for finding in found.findings)
    assert all(flag in said for flag in flags)


def test_the_metric_misses_the_client_that_has_no_row() -> None:
    first, *others = summarise_original(BURSTS_280, metric()).bursts
    assert first.reconciliation is not None
    assert first.reconciliation.residual_ratio == pytest.approx(1 / 29 + 0.008, abs=0.01)
    assert first.reconciliation.causes[0].id == "lost-reports"
    assert all(burst.reconciliation and not burst.reconciliation.causes for burst in others)


def test_the_order_of_rows_is_irrelevant() -> None:
    shuffled = BURSTS_280.copy()
    random.Random(1).shuffle(shuffled)
    assert summarise_original(shuffled, metric()) == summarise_original(BURSTS_280, metric())


def test_a_schedule_can_be_given() -> None:
    assert infer_bursts(BURSTS_280, period_s=300) == infer_bursts(BURSTS_280)
    assert summarise_original(BURSTS_280, period_s=600).period_s == 600
    assert summarise_original(BURSTS_280[:1]).period_s is None


def fired(
    at: datetime, *, clients: int, bursts: int, duration_s: float, period_s: float, seed: int = 0
) -> list[OriginalRow]:
    """A table as the original would have written it: stamps a second off, some starters late."""
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
def test_periods_are_inferred(clients: int, duration_s: float, period_s: float, seed: int) -> None:
    at = datetime(2022, 1, 4, 16, 0, tzinfo=UTC)
    table = fired(
        at, clients=clients, bursts=8, duration_s=duration_s, period_s=period_s, seed=seed
    )
    found = summarise_original(table)
    assert found.period_s == period_s
    assert [burst.planned_start_at for burst in found.bursts] == [
        at + timedelta(seconds=period_s * burst) for burst in range(8)
    ]
    assert sum(burst.pairs_measured for burst in found.bursts) == len(table)
    late = sum(len(burst.late_pairs) for burst in found.bursts)
    assert late == sum((row.started_at.timestamp() % 60) > 1 for row in table)


def test_several_series_in_one_table_keep_their_own_plans() -> None:
    """Thirty clients for 280 s, at once after it ten for 30 s, and one client a week later."""
    at = datetime(2022, 1, 4, 16, 0, tzinfo=UTC)
    table = (
        fired(at, clients=30, bursts=3, duration_s=280, period_s=300)
        + fired(at + timedelta(minutes=20), clients=10, bursts=4, duration_s=30, period_s=60)
        + fired(at + timedelta(days=7), clients=1, bursts=5, duration_s=55, period_s=60)
    )
    bursts = infer_bursts(table)
    assert [burst.pairs_planned for burst in bursts] == [30] * 3 + [10] * 4 + [1] * 5
    assert [burst.pairs_measured for burst in bursts] == [30] * 3 + [10] * 4 + [1] * 5
    assert {burst.completeness.missed_s for burst in bursts} == {0}
    assert [burst.index for burst in bursts] == list(range(12))


def test_a_burst_that_nobody_reported_leaves_a_hole_not_a_new_test() -> None:
    at = datetime(2022, 1, 4, 16, 0, tzinfo=UTC)
    table = [
        row
        for row in fired(at, clients=5, bursts=6, duration_s=280, period_s=300)
        if not 290 < (row.started_at - at).total_seconds() < 590
    ]
    bursts = infer_bursts(table)
    assert len(bursts) == 5
    assert bursts[1].planned_start_at == at + timedelta(seconds=600)


def test_planned_pairs_that_never_appear_are_missing() -> None:
    (burst, *_) = infer_bursts(BURSTS_280, pairs_planned=32)
    assert burst.pairs_planned == 32
    assert burst.completeness_ratio == pytest.approx(27 / 32)
    assert any("2 planned pairs never appear" in flag for flag in burst.flags)


def test_zero_received_and_repeated_rows_are_flagged() -> None:
    first, second = BURSTS_280[0], BURSTS_280[1]
    zero = replace(first, received_bits_per_second=0.0)
    again = replace(first, row_number=99, started_at=first.started_at + timedelta(seconds=9))
    (burst,) = infer_bursts([zero, again], period_s=300)
    assert burst.pairs_measured == 1
    assert [pair.late_s for pair in burst.late_pairs] == [9]
    assert any(flag.startswith("repeated") for flag in burst.flags)
    (burst,) = infer_bursts([zero], period_s=300)
    assert burst.null_pairs == (first.client,)
    assert burst.fleet_received_bits_per_second is None
    assert second.client == first.client


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"received_bits_per_second": -1.0}, "received_throughput"),
        ({"sent_bits_per_second": 2e13}, "sent_throughput"),
        ({"duration_s": 0.0}, "duration"),
        ({"duration_s": float("nan")}, "duration"),
        ({"rtt_mean_s": 100.0}, "mean_rtt"),
    ],
)
def test_absurd_numbers_are_named(change: dict[str, float], column: str) -> None:
    row = replace(BURSTS_280[0], **change)  # type: ignore[arg-type]  # names are in the table
    (found,) = problems([row])
    assert (found.row_number, found.column) == (2, column)


def test_duplicate_rows_are_named() -> None:
    twin = replace(BURSTS_280[0], row_number=200)
    (found,) = problems([twin, *BURSTS_280])
    assert "row 2 has the same" in str(found)


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="rows"):
        infer_bursts([])
    with pytest.raises(ValueError, match="at least 2"):
        throughput_ledger("x", [], [], read_at=datetime.now(UTC))
