"""Runs from tables, with the rows as evidence for planned bursts. Pure.

A table has one mean rate for each row and no seconds. The record of a row is therefore one interval
with the same length as the test, at the receiver and at the sender. The run is then measured and
judged like any other run. Results that need seconds are unknown. The start errors are unknown too,
because the planned times are inferred from the starts.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, PairEvidence
from broadside.coordinator.core.run_spec import (
    Burst,
    CounterRequirement,
    Pair,
    Plan,
    RunSpec,
    due_at,
)
from broadside.coordinator.core.summary import BurstSummary, RunSummary
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_answers import (
    ImportedTable,
    LatePair,
    OriginalBurst,
    shared,
)
from broadside.coordinator.imports.import_requests import TABLES_SCENARIO, OriginalTable
from broadside.coordinator.imports.import_runs import (
    ImportedState,
    Measured,
    build_spec,
    endpoint,
    identifier,
    job_report,
    note_findings,
)
from broadside.coordinator.imports.metric_csv import throughput_counter
from broadside.coordinator.imports.table_bursts import (
    LATE_AFTER_S,
    OriginalRow,
    TableBurst,
    client_names,
    has_result,
    join_rows,
)
from broadside.exchange.messages import (
    Aggregation,
    EngineReport,
    Flow,
    FlowTotals,
    Measure,
    Outcome,
    ServerTest,
    Side,
)

# Maximum number of bursts in a run specification.
BURSTS_MAX_COUNT: Final = 10_000
PAIRS_MAX_COUNT: Final = 2000
# Burst length if the duration is unknown and there is only one start time.
_UNTIMED_S: Final = 60


class TableTests:
    """Planned bursts of a table."""

    def __init__(self, table: OriginalTable) -> None:
        self._table = table
        self._bursts = join_rows(
            table.rows, period_s=table.period_s, pairs_planned=table.pairs_planned
        )
        self._clients = client_names(table.rows)

    def plan(self, run_id: str, now: datetime) -> Plan:
        """Build the plan that the rows imply.

        Args:
            run_id: The new run's id.
            now: Current time.

        Returns:
            A plan with ``clocks_promised`` false: its start times are those of the rows.

        Raises:
            BadFile: The table has too many bursts or pairs.
            BadScenario: A field cannot be set, or its value is not valid.
        """
        table, bursts = self._table, self._bursts
        pairs_count = max(burst.pairs_planned for burst in bursts)
        if len(bursts) > BURSTS_MAX_COUNT or pairs_count > PAIRS_MAX_COUNT:
            raise BadFile(
                f"rows of {table.source}: {len(bursts)} bursts of {pairs_count} pairs, and a run "
                f"has at most {BURSTS_MAX_COUNT} of {PAIRS_MAX_COUNT}; import slices of the table "
                "with --since and --until"
            )
        lengths = [_length_s(burst) for burst in bursts]
        return Plan(
            run_id=run_id,
            created_at=now,
            spec=self._spec(pairs_count, lengths),
            clocks_promised=False,
            ledger=None
            if not table.metric or table.metric_source is None
            else CounterRequirement(source=table.metric_source),
            pairs=self._pairs(pairs_count),
            bursts=tuple(
                Burst(
                    index=burst.index,
                    planned_start_at=burst.planned_start_at,
                    duration_s=length_s,
                )
                for burst, length_s in zip(bursts, lengths, strict=True)
            ),
        )

    def _spec(self, pairs_count: int, lengths: Sequence[int]) -> RunSpec:
        table = self._table
        periods = [b.series.period_s for b in self._bursts if b.series.period_s is not None]
        values = {
            "scenario": TABLES_SCENARIO,
            "description": f"imported from {table.source}",
            "pairs_count": pairs_count,
            "bursts_count": len(self._bursts),
            "late_after_s": LATE_AFTER_S,
            "labels": {"timezone": table.timezone, **table.labels},
        }
        if table.engine != "iperf3":
            values["traffic"] = {"engine": table.engine, "direction": "reverse"}
        return build_spec(
            values,
            table.overrides,
            burst_s=round(float(np.median(lengths))),
            period_s=max(periods, default=0.0),
        )

    def _pairs(self, count: int) -> tuple[Pair, ...]:
        servers: dict[str, str] = {}
        for row in sorted(self._table.rows, key=lambda row: row.started_at):
            if row.server is not None:
                servers.setdefault(row.client, row.server)
        names = [*self._clients, *[""] * count]
        return tuple(
            Pair(index=index, endpoint=endpoint(servers.get(names[index])))
            for index in range(count)
        )

    def states(self) -> Sequence[ImportedState]:
        """Return the state of each burst."""
        return [
            ImportedState(
                pairs_planned=burst.pairs_planned,
                outcomes=Counter(_outcome(row, burst) for row in burst.rows),
            )
            for burst in self._bursts
        ]

    def measure(self, plan: Plan) -> Measured:
        """Return bursts and firewall data for ``summarise_run``.

        Args:
            plan: The run's plan.
        """
        table, untimed = self._table, _untimed(self._bursts)
        reasons = [reason for reason in (_skipped(self._bursts), untimed) if reason is not None]
        return Measured(
            bursts=tuple(
                measure_burst(plan.spec, self._evidence(plan, planned, burst), due_at(planned))
                for planned, burst in zip(plan.bursts, self._bursts, strict=True)
            ),
            device_counter=throughput_counter(
                table.metric_source, table.metric, table.metric_declaration, table.metric_problem
            )
            if untimed is None and table.metric and table.metric_source is not None
            else None,
            findings=note_findings(table.notes),
            open_reason="; ".join(reasons) or None,
        )

    def _evidence(self, plan: Plan, planned: Burst, burst: TableBurst) -> BurstEvidence:
        rows = {row.client: row for row in burst.rows}
        expected = {*rows, *burst.missing}
        pairs = [
            _missing_pair(index, client)
            if client not in rows
            else _pair(plan, planned, index, rows[client], self._table.engine)
            for index, client in enumerate(self._clients)
            if client in expected
        ]
        pairs += [
            PairEvidence(pair_index=len(self._clients) + number, name=f"unseen-{number + 1:03d}")
            for number in range(burst.pairs_planned - len(pairs))
        ]
        return BurstEvidence(burst=planned, pairs=tuple(pairs), start_known=False)

    def describe(self, summary: RunSummary) -> ImportedTable:
        """Return the import response, with unusual rows for each burst.

        Args:
            summary: The new run's summary.
        """
        table = self._table
        periods = {burst.series.period_s for burst in self._bursts}
        return ImportedTable.model_validate(
            shared(ImportedTable, summary)
            | shared(ImportedTable, table)
            | {
                "pairs_planned": summary.pairs_planned,
                "rows_count": len(table.rows),
                "period_s": periods.pop() if len(periods) == 1 else None,
                "bursts": [
                    _describe(burst, part)
                    for burst, part in zip(self._bursts, summary.bursts, strict=True)
                ],
            }
        )


def _length_s(burst: TableBurst) -> int:
    """Return the burst length in whole seconds. If it is unknown, return the period."""
    return max(1, round(burst.duration_s or burst.series.period_s or _UNTIMED_S))


def _outcome(row: OriginalRow, burst: TableBurst) -> Outcome:
    if not has_result(row):
        return Outcome.FAILED
    return Outcome.MEASURED if burst.late_s(row) is None else Outcome.LATE


def _untimed(bursts: Sequence[TableBurst]) -> str | None:
    if all(burst.duration_s is not None for burst in bursts):
        return None
    return (
        "the table does not contain the duration of its bursts, so that bytes are unknown and the "
        "firewall's metric cannot be compared"
    )


def _skipped(bursts: Sequence[TableBurst]) -> str | None:
    """Return a text about planned times between bursts that have no row, or None."""
    count = 0
    first_at: datetime | None = None
    for burst, following in pairwise(bursts):
        period_s = burst.series.period_s
        if period_s is None or following.series is not burst.series:
            continue
        gap_s = (following.planned_start_at - burst.planned_start_at).total_seconds()
        between = round(gap_s / period_s) - 1
        if between and first_at is None:
            first_at = burst.planned_start_at + timedelta(seconds=period_s)
        count += between
    if first_at is None:
        return None
    return (
        f"{count} planned start times have no row, the first {first_at:%Y-%m-%d %H:%M:%S} UTC: "
        "bursts were not run, or all their rows are lost"
    )


def _missing_pair(pair_index: int, client: str) -> PairEvidence:
    """Return a pair that sent in other bursts, so that it may have sent in this one too."""
    return PairEvidence(pair_index=pair_index, name=client, missing_reason="no row in this burst")


def _pair(
    plan: Plan, planned: Burst, pair_index: int, row: OriginalRow, engine: str
) -> PairEvidence:
    length_s, measured = row.duration_s or float(planned.duration_s), has_result(row)
    received, sent = row.received_bits_per_second, row.sent_bits_per_second
    outcome = Outcome.MEASURED if measured else Outcome.FAILED
    report = _engine_report(row, engine)
    is_reverse = engine != "iperf3"
    flow = Flow.DOWN if is_reverse else Flow.UP
    receiving, sending = (Side.CLIENT, Side.SERVER) if is_reverse else (Side.SERVER, Side.CLIENT)
    tracks: dict[Side, tuple[IntervalColumns, ...]] = {Side.CLIENT: (), Side.SERVER: ()}
    if received:
        tracks[receiving] = (_track(receiving, flow, row, received, length_s),)
    if sent is not None and measured:
        tracks[sending] = (_track(sending, flow, row, sent, length_s),)
    return PairEvidence(
        pair_index=pair_index,
        name=row.client,
        report=job_report(plan, planned, pair_index, identifier(row.client), outcome).model_copy(
            update={
                "reason": None if measured else _no_result(row),
                "first_data_at": row.started_at,
                "engine": report,
            }
        ),
        client_tracks=tracks[Side.CLIENT],
        server_test=None
        if row.server is None
        else ServerTest(
            agent_id=endpoint(row.server).agent_id,
            endpoint=endpoint(row.server),
            started_at=row.started_at,
            engine=EngineReport(engine=engine),
        ),
        server_tracks=tracks[Side.SERVER],
    )


def _no_result(row: OriginalRow) -> str:
    return "no rates" if row.received_bits_per_second is None else "received 0 bit/s"


def _engine_report(row: OriginalRow, engine: str) -> EngineReport:
    measures = []
    if row.requests_count:
        count = row.requests_count
        measures.append(Measure(name="requests_count", value=count, unit="count"))
        for name, unit, value in (
            ("success_ratio", "ratio", row.success_ratio),
            ("latency_mean_s", "s", row.latency_mean_s),
        ):
            if value is not None:
                mean = Aggregation.MEAN
                measures.append(
                    Measure(name=name, value=value, unit=unit, combine=mean, weight=count)
                )
    totals = FlowTotals(
        flow=Flow.UP,
        rtt_min_s=row.rtt_min_s,
        rtt_mean_s=row.rtt_mean_s,
        rtt_max_s=row.rtt_max_s,
    )
    return EngineReport(
        engine=engine,
        totals=(totals,) if engine == "iperf3" else (),
        measures=tuple(measures),
    )


def _track(
    side: Side, flow: Flow, row: OriginalRow, bits_per_second: float, length_s: float
) -> IntervalColumns:
    """Return the mean rate of a row as one interval. The sender knows the RTT."""
    unknown = np.full(1, np.nan, np.float32)
    rtt_s = row.rtt_mean_s if side is Side.CLIENT and flow is Flow.UP else None
    return IntervalColumns(
        side=side,
        flow=flow,
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


def _describe(burst: TableBurst, summary: BurstSummary) -> OriginalBurst:
    return OriginalBurst.model_validate(
        shared(OriginalBurst, summary)
        | {
            "duration_s": burst.duration_s,
            "pairs_planned": burst.pairs_planned,
            "pairs_measured": len(burst.measured),
            "late_pairs": [
                LatePair(pair=row.client, late_s=late_s)
                for row in burst.measured
                if (late_s := burst.late_s(row)) is not None
            ],
            "missing_pairs": burst.missing,
            "repeated_rows": [row.row_number for row in burst.repeated],
            "rtt_mean_s": summary.flows[0].rtt_mean_s if summary.flows else None,
        }
    )
