"""Runs from original tables, with the rows as evidence for planned bursts. Pure.

A table has one mean rate for each row and no seconds. The record of a row is therefore one interval
with the same length as the test, at the receiver and at the sender. The run is then measured and
judged like any other run. Results that need seconds are unknown. The start errors are unknown too,
because the planned times are inferred from the starts.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import Burst, LedgerPromise, Pair, Plan, due_at
from broadside.coordinator.core.summary import BurstSummary, RunSummary
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_answers import ImportedTable, LatePair, OriginalBurst
from broadside.coordinator.imports.import_requests import TABLES_SCENARIO, OriginalTable
from broadside.coordinator.imports.import_runs import (
    ImportedState,
    Measured,
    build_spec,
    endpoint,
    identifier,
    note_findings,
)
from broadside.coordinator.imports.metric_csv import throughput_ledger
from broadside.coordinator.imports.table_bursts import (
    LATE_AFTER_S,
    OriginalRow,
    TableBurst,
    client_names,
    holds,
    join_rows,
)
from broadside.exchange.messages import (
    EngineReport,
    Flow,
    FlowTotals,
    JobReport,
    Outcome,
    ServerTest,
    Side,
)

# Maximum number of bursts in a run specification.
BURSTS_MAX_COUNT: Final = 10_000
PAIRS_MAX_COUNT: Final = 2000
# Burst length if the duration is unknown and there is only one start time.
_UNTIMED_S: Final = 60


def _join(table: OriginalTable) -> list[TableBurst]:
    return join_rows(table.rows, period_s=table.period_s, pairs_planned=table.pairs_planned)


def plan_table(table: OriginalTable, run_id: str, now: datetime) -> Plan:
    """Build the plan that the rows imply.

    Args:
        table: Table to import.
        run_id: The new run's id.
        now: Current time.

    Raises:
        BadFile: The table has too many bursts or pairs.
        BadScenario: A field cannot be set, or its value is not valid.
    """
    bursts, clients = _join(table), client_names(table.rows)
    pairs_count = max(burst.pairs_planned for burst in bursts)
    if len(bursts) > BURSTS_MAX_COUNT or pairs_count > PAIRS_MAX_COUNT:
        raise BadFile(
            f"rows of {table.source}: {len(bursts)} bursts of {pairs_count} pairs, and at "
            f"most {BURSTS_MAX_COUNT} of {PAIRS_MAX_COUNT} make a run; import slices of it with "
            "--from and --before"
        )
    servers: dict[str, str] = {}
    for row in sorted(table.rows, key=lambda row: row.started_at):
        if row.server is not None:
            servers.setdefault(row.client, row.server)
    lengths = [_length_s(burst) for burst in bursts]
    periods = [burst.series.period_s for burst in bursts if burst.series.period_s is not None]
    spec = build_spec(
        {
            "scenario": TABLES_SCENARIO,
            "description": f"imported from {table.source}",
            "pairs_count": pairs_count,
            "bursts_count": len(bursts),
            "late_after_s": LATE_AFTER_S,
            "labels": {"timezone": table.timezone, **table.labels},
        },
        table.overrides,
        burst_s=round(float(np.median(lengths))),
        period_s=max(periods, default=0.0),
    )
    return Plan(
        run_id=run_id,
        created_at=now,
        spec=spec,
        clocks_promised=False,
        ledger=LedgerPromise(source=table.metric_source)
        if table.metric and table.metric_source is not None
        else None,
        pairs=tuple(
            Pair(
                index=index,
                endpoint=endpoint(servers.get(clients[index]) if index < len(clients) else None),
            )
            for index in range(pairs_count)
        ),
        bursts=tuple(
            Burst(
                index=burst.index,
                planned_start_at=burst.planned_start_at,
                duration_s=length_s,
            )
            for burst, length_s in zip(bursts, lengths, strict=True)
        ),
    )


def _length_s(burst: TableBurst) -> int:
    """Return the burst length in whole seconds. If it is unknown, return the period."""
    return max(1, round(burst.duration_s or burst.series.period_s or _UNTIMED_S))


def stand_table(table: OriginalTable) -> Sequence[ImportedState]:
    """Return the state of each burst."""
    return [
        ImportedState(
            pairs_planned=burst.pairs_planned,
            outcomes=Counter(_outcome(row, burst) for row in burst.rows),
        )
        for burst in _join(table)
    ]


def measure_table(plan: Plan, table: OriginalTable) -> Measured:
    """Return bursts and firewall data for ``summarise_run``.

    Args:
        plan: The run's plan.
        table: Table to import.
    """
    bursts = _join(table)
    untimed = _untimed(bursts)
    reasons = [reason for reason in (_skipped(bursts), untimed) if reason is not None]
    index_of = {client: index for index, client in enumerate(client_names(table.rows))}
    return Measured(
        bursts=tuple(
            measure_burst(plan.spec, _evidence(plan, planned, burst, index_of), due_at(planned))
            for planned, burst in zip(plan.bursts, bursts, strict=True)
        ),
        ledger=throughput_ledger(table.metric_source, table.metric, table.metric_declaration)
        if untimed is None and table.metric and table.metric_source is not None
        else None,
        findings=note_findings(table.notes),
        open_reason="; ".join(reasons) or None,
    )


def _outcome(row: OriginalRow, burst: TableBurst) -> Outcome:
    if not holds(row):
        return Outcome.FAILED
    return Outcome.MEASURED if burst.late_s(row) is None else Outcome.LATE


def _untimed(bursts: Sequence[TableBurst]) -> str | None:
    if all(burst.duration_s is not None for burst in bursts):
        return None
    return (
        "the table does not say how long its bursts lasted, so bytes, and what a firewall's metric "
        "says of them, are unknown"
    )


def _skipped(bursts: Sequence[TableBurst]) -> str | None:
    """Return a text about planned times between bursts that have no row, or None."""
    count = 0
    first_at: datetime | None = None
    for one, other in pairwise(bursts):
        period_s = one.series.period_s
        if period_s is None or other.series is not one.series:
            continue
        apart_s = (other.planned_start_at - one.planned_start_at).total_seconds()
        between = round(apart_s / period_s) - 1
        if between and first_at is None:
            first_at = one.planned_start_at + timedelta(seconds=period_s)
        count += between
    if first_at is None:
        return None
    return (
        f"{count} planned instants have no row at all, the first {first_at:%Y-%m-%d %H:%M:%S} UTC: "
        "bursts were not run, or all their rows are lost"
    )


def _evidence(
    plan: Plan, planned: Burst, burst: TableBurst, index_of: Mapping[str, int]
) -> BurstEvidence:
    rows = {row.client: row for row in burst.rows}
    clients = sorted({*rows, *burst.missing}, key=lambda client: index_of[client])
    unseen = range(burst.pairs_planned - len(clients))
    return BurstEvidence(
        burst=planned,
        pairs=(
            *(_pair(plan, planned, index_of[name], name, rows.get(name)) for name in clients),
            *(
                PairEvidence(pair_index=len(index_of) + number, name=f"unseen-{number + 1:03d}")
                for number in unseen
            ),
        ),
        start_known=False,
    )


def _pair(
    plan: Plan, planned: Burst, pair_index: int, client: str, row: OriginalRow | None
) -> PairEvidence:
    if row is None:
        # The pair sent in other bursts, so it may have sent in this one too.
        return PairEvidence(
            pair_index=pair_index, name=client, missing_reason="no row in this burst"
        )
    length_s, held = row.duration_s or float(planned.duration_s), holds(row)
    received, sent = row.received_bits_per_second, row.sent_bits_per_second
    engine = EngineReport(
        engine="iperf3",
        totals=(
            FlowTotals(
                flow=Flow.UP,
                rtt_min_s=row.rtt_min_s,
                rtt_mean_s=row.rtt_mean_s,
                rtt_max_s=row.rtt_max_s,
            ),
        ),
    )
    reason = None
    if not held:
        reason = "no rates" if received is None else "received 0 bit/s"
    return PairEvidence(
        pair_index=pair_index,
        name=client,
        report=JobReport(
            job_id=f"{plan.run_id}.{planned.index:05d}.{pair_index:05d}",
            run_id=plan.run_id,
            burst_index=planned.index,
            pair_index=pair_index,
            agent_id=identifier(client),
            outcome=Outcome.MEASURED if held else Outcome.FAILED,
            reason=reason,
            planned_start_at=planned.planned_start_at,
            first_data_at=row.started_at,
            engine=engine,
            reported_at=planned.planned_end_at,
        ),
        client_tracks=()
        if sent is None or not held
        else (_track(Side.CLIENT, row, sent, length_s, rtt_s=row.rtt_mean_s),),
        server_test=None
        if row.server is None
        else ServerTest(
            agent_id=endpoint(row.server).agent_id,
            endpoint=endpoint(row.server),
            started_at=row.started_at,
            engine=EngineReport(engine="iperf3"),
        ),
        server_tracks=(_track(Side.SERVER, row, received, length_s),) if received else (),
    )


def _track(
    side: Side,
    row: OriginalRow,
    bits_per_second: float,
    length_s: float,
    *,
    rtt_s: float | None = None,
) -> IntervalColumns:
    """Return the mean rate of a row as one interval."""
    unknown = np.full(1, np.nan, np.float32)
    return IntervalColumns(
        side=side,
        flow=Flow.UP,
        first_data_at_s=row.started_at.timestamp(),
        start_s=np.zeros(1),
        end_s=np.array([length_s]),
        transferred_bytes=np.array([bits_per_second / 8 * length_s]),
        omitted=np.zeros(1, np.bool_),
        retransmits_count=unknown,
        rtt_s=unknown if rtt_s is None else np.array([rtt_s], np.float32),
        cwnd_bytes=unknown,
        packets_count=unknown,
        lost_count=unknown,
    )


def describe_table(table: OriginalTable, summary: RunSummary) -> ImportedTable:
    """Return the import response, with unusual rows for each burst.

    Args:
        table: Table to import.
        summary: The new run's summary.
    """
    joined = _join(table)
    periods = {burst.series.period_s for burst in joined}
    return ImportedTable(
        run_id=summary.run_id,
        verdict=summary.verdict,
        source=table.source,
        timezone=table.timezone,
        labels=table.labels,
        rows_count=len(table.rows),
        set_apart=table.set_apart,
        period_s=periods.pop() if len(periods) == 1 else None,
        pairs_planned=summary.pairs_planned,
        completeness_ratio=summary.completeness_ratio,
        fleet_sent_bits_per_second=summary.fleet_sent_bits_per_second,
        fleet_received_bits_per_second=summary.fleet_received_bits_per_second,
        firewall_bits_per_second=summary.firewall_bits_per_second,
        reconciliation=summary.reconciliation,
        bursts=tuple(
            _describe(burst, part) for burst, part in zip(joined, summary.bursts, strict=True)
        ),
        findings=summary.findings,
    )


def _describe(burst: TableBurst, summary: BurstSummary) -> OriginalBurst:
    return OriginalBurst(
        index=burst.index,
        planned_start_at=burst.planned_start_at,
        duration_s=burst.duration_s,
        pairs_planned=burst.pairs_planned,
        pairs_measured=len(burst.held),
        null_pairs=summary.null_pairs,
        late_pairs=tuple(
            LatePair(pair=row.client, late_s=late_s)
            for row in burst.held
            if (late_s := burst.late_s(row)) is not None
        ),
        missing_pairs=tuple(burst.missing),
        fleet_sent_bits_per_second=summary.fleet_sent_bits_per_second,
        fleet_received_bits_per_second=summary.fleet_received_bits_per_second,
        rtt_mean_s=summary.flows[0].rtt_mean_s if summary.flows else None,
        completeness_ratio=summary.completeness_ratio,
        completeness=summary.completeness,
        flags=tuple(_flags(burst)),
        reconciliation=summary.reconciliation,
    )


def _flags(burst: TableBurst) -> Iterator[str]:
    """Yield one line for each unusual row of a burst."""
    for row in burst.held:
        late_s = burst.late_s(row)
        if late_s is not None:
            yield f"late: {row.client} started {late_s:g} s after the burst"
    for row in burst.rows:
        if not holds(row):
            said = "has no rates" if row.received_bits_per_second is None else "received 0 bit/s"
            yield f"null: {row.client} {said}"
    for client in burst.missing:
        yield f"missing: {client} has no row"
    unnamed = burst.pairs_planned - len(burst.series.clients)
    if unnamed:
        yield f"missing: {unnamed} planned pairs never appear in the file"
    for row in burst.repeated:
        yield f"repeated: {row.client} has another row, {row.row_number}, in this burst; left out"
    if any(row.duration_s != burst.rows[0].duration_s for row in burst.rows):
        yield "durations differ: rates are means over each row's own duration"
