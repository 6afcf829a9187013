"""A run of one of the original's tables: its rows joined to planned bursts. Pure.

A table has a mean rate a row and no seconds, so a burst's rates are sums of means over each
pair's own duration, late members included, and the window is the burst. The receivers' own totals
are what those means rest on.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np

from coordinator.core.judge.judge import Finding, Verdict
from coordinator.core.judge.summary import BurstSummary, MeasuredBurst
from coordinator.core.measure.aggregate import FlowSummary, PairSummary, Window, figure, jain
from coordinator.core.measure.align import Basis
from coordinator.core.measure.completeness import Completeness, State
from coordinator.core.measure.evidence import FirewallLedger
from coordinator.core.measure.headers import Headers, headers
from coordinator.core.measure.original_bursts import (
    LATE_AFTER_S,
    OriginalBurst,
    OriginalRow,
    OriginalSummary,
    Series,
    burst_series,
    client_names,
    infer_schedule,
    join_rows,
    summarise_original,
    throughput_ledger,
)
from coordinator.core.plan.spec import Burst, Pair, Plan
from coordinator.imports import BadFile
from coordinator.imports.import_requests import OriginalTable
from coordinator.imports.import_runs import (
    ImportedState,
    Measured,
    build_spec,
    endpoint,
    identifier,
    note_findings,
)
from exchange.messages import Flow, Outcome, Protocol, RunId

SCENARIO: Final = "original"
BURSTS_MAX_COUNT: Final = 10_000  # as many as a specification may have
PAIRS_MAX_COUNT: Final = 2000
_SUSTAIN_S: Final = 300  # RFC 9411: shorter bursts are labelled so
_UNTIMED_S: Final = 60  # s taken for bursts of a single instant whose duration nobody said


class ImportedTable(OriginalSummary):
    """What an import of a table answers: the table as planned bursts, and the run it became."""

    run_id: RunId
    verdict: Verdict
    source: str
    timezone: str
    labels: Mapping[str, str] = {}
    rows_count: int  # results that were read
    set_apart: Mapping[str, int] = {}  # other rows, by what they are


def summarise_table(table: OriginalTable) -> OriginalSummary:
    """The table by itself, as the import prints it."""
    said = summarise_original(
        table.rows,
        ledger_of(table),
        period_s=table.period_s,
        pairs_planned=table.pairs_planned,
    )
    skipped = _skipped(_join(table))
    notes = note_findings(table.notes)
    if skipped is not None:
        notes = (
            Finding(
                id="bursts-skipped", kind="context", severity="warning", weight=68, sentence=skipped
            ),
            *notes,
        )
    return said.model_copy(update={"findings": (*said.findings, *notes)})


def ledger_of(table: OriginalTable) -> FirewallLedger | None:
    """The firewall's metric that came with the table."""
    if not table.metric or table.metric_source is None:
        return None
    return throughput_ledger(
        table.metric_source,
        [point.at for point in table.metric],
        [point.bits_per_second for point in table.metric],
        read_at=max(point.at for point in table.metric),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """A table's bursts, with the rows and the period of each."""

    bursts: tuple[OriginalBurst, ...]
    rows: Sequence[Sequence[OriginalRow]]
    series: Sequence[Series]
    clients: Sequence[str]

    @property
    def pairs_planned(self) -> int:
        return max(burst.pairs_planned for burst in self.bursts)


def _join(table: OriginalTable) -> _Joined:
    schedule = infer_schedule(table.rows, table.period_s)
    bursts, rows = join_rows(table.rows, schedule, table.pairs_planned)
    return _Joined(
        bursts=bursts,
        rows=rows,
        series=[schedule.of(members[0].started_at) for members in rows],
        clients=client_names(table.rows),
    )


def plan_table(table: OriginalTable, run_id: str, now: datetime) -> Plan:
    """The plan that the rows imply. Raises :class:`BadFile`, ``BadScenario``."""
    joined = _join(table)
    if len(joined.bursts) > BURSTS_MAX_COUNT or joined.pairs_planned > PAIRS_MAX_COUNT:
        raise BadFile(
            f"{table.source}: {len(joined.bursts)} bursts of {joined.pairs_planned} pairs, and at "
            f"most {BURSTS_MAX_COUNT} of {PAIRS_MAX_COUNT} make a run; import slices of it with "
            "--from and --before"
        )
    servers: dict[str, str] = {}
    for row in sorted(table.rows, key=lambda row: row.started_at):
        if row.server is not None:
            servers.setdefault(row.client, row.server)
    lengths = [
        _length_s(burst, series) for burst, series in zip(joined.bursts, joined.series, strict=True)
    ]
    periods = [series.period_s for series in joined.series if series.period_s is not None]
    spec = build_spec(
        {
            "scenario": SCENARIO,
            "description": f"imported from {table.source}",
            "pairs_count": joined.pairs_planned,
            "bursts_count": len(joined.bursts),
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
        pairs=tuple(
            Pair(
                index=index,
                endpoint=endpoint(
                    servers.get(joined.clients[index]) if index < len(joined.clients) else None
                ),
            )
            for index in range(joined.pairs_planned)
        ),
        bursts=tuple(
            Burst(
                index=burst.index,
                planned_start_at=burst.planned_start_at,
                duration_s=length_s,
            )
            for burst, length_s in zip(joined.bursts, lengths, strict=True)
        ),
    )


def _length_s(burst: OriginalBurst, series: Series) -> int:
    """A burst's whole seconds; where nobody says, the most that fits its period."""
    return max(1, round(burst.duration_s or series.period_s or _UNTIMED_S))


def stand_table(table: OriginalTable) -> Sequence[ImportedState]:
    """What there is of each burst."""
    joined = _join(table)
    return [
        ImportedState(
            pairs_planned=burst.pairs_planned,
            outcomes=Counter(_outcome(row, burst) for row in rows),
        )
        for burst, rows in zip(joined.bursts, joined.rows, strict=True)
    ]


def measure_table(plan: Plan, table: OriginalTable) -> Measured:
    """Bursts and ledger, as :func:`~coordinator.core.judge.summary.summarise_run` takes them."""
    joined = _join(table)
    overhead = headers(Protocol.TCP, [])
    timed = all(burst.duration_s is not None for burst in joined.bursts)
    findings = list(note_findings(table.notes))
    if not timed:
        findings += [f for f in summarise_table(table).findings if f.id == "duration-unknown"]
    index_of = {client: index for index, client in enumerate(joined.clients)}
    return Measured(
        bursts=tuple(
            _measure(planned, burst, rows, index_of, overhead)
            for planned, burst, rows in zip(plan.bursts, joined.bursts, joined.rows, strict=True)
        ),
        ledger=ledger_of(table) if timed else None,
        findings=tuple(findings),
        open_reason=_skipped(joined),
    )


def _outcome(row: OriginalRow, burst: OriginalBurst) -> Outcome:
    if not row.received_bits_per_second:
        return Outcome.FAILED
    late_s = (row.started_at - burst.planned_start_at).total_seconds()
    return Outcome.LATE if late_s > LATE_AFTER_S else Outcome.MEASURED


def _skipped(joined: _Joined) -> str | None:
    """Instants between two bursts of one series at which nobody has a row."""
    count = 0
    first_at: datetime | None = None
    for (one, series), (other, after) in pairwise(zip(joined.bursts, joined.series, strict=True)):
        if series.period_s is None or after is not series:
            continue
        apart_s = (other.planned_start_at - one.planned_start_at).total_seconds()
        between = round(apart_s / series.period_s) - 1
        if between and first_at is None:
            first_at = one.planned_start_at + timedelta(seconds=series.period_s)
        count += between
    if first_at is None:
        return None
    return (
        f"{count} planned instants have no row at all, the first {first_at:%Y-%m-%d %H:%M:%S} UTC: "
        "bursts were not run, or all their rows are lost"
    )


def _measure(
    planned: Burst,
    burst: OriginalBurst,
    rows: Sequence[OriginalRow],
    index_of: Mapping[str, int],
    overhead: Headers,
) -> MeasuredBurst:
    by_client = {row.client: row for row in rows}
    named = sorted({*by_client, *burst.missing_pairs}, key=lambda client: index_of[client])
    pairs = (
        *(
            _pair(index_of[name], row, burst)
            if (row := by_client.get(name))
            else _absent(index_of[name], name, State.LOST)
            for name in named
        ),
        *(
            _absent(len(index_of) + number, f"unseen-{number + 1:03d}", State.MISSED)
            for number in range(burst.pairs_planned - len(named))
        ),
    )
    held = [pair for pair in pairs if pair.received_bits_per_second]
    on_time = [pair for pair in held if pair.state is State.MEASURED]
    errors = sorted(pair.start_error_s or 0.0 for pair in on_time)
    received = burst.fleet_received_bits_per_second
    flow = _flow(burst, rows, pairs, overhead)
    window = None
    if burst.duration_s is not None and held:
        latest_s = max([pair.late_s for pair in burst.late_pairs], default=0.0)
        window = Window(
            start_at=planned.planned_start_at,
            end_at=planned.planned_end_at,
            window_s=planned.duration_s,
            common_s=max(0, math.floor(burst.duration_s - latest_s)),
            ramp_s=0,
            short=planned.duration_s < _SUSTAIN_S,
        )
    completeness = _with_lost(burst)
    timed = burst.model_copy(update={"duration_s": burst.duration_s or float(planned.duration_s)})
    summary = BurstSummary(
        index=burst.index,
        planned_start_at=planned.planned_start_at,
        planned_end_at=planned.planned_end_at,
        duration_s=planned.duration_s,
        pairs_planned=burst.pairs_planned,
        pairs_measured=len(on_time),
        completeness_ratio=completeness.completeness_ratio,
        completeness=completeness,
        proven_ratio=completeness.completeness_ratio,  # every rate is its receiver's own total
        null_pairs=burst.null_pairs,
        late_pairs=tuple(pair.pair for pair in burst.late_pairs),
        missing_pairs=tuple(
            pair.pair for pair in pairs if pair.state in (State.LOST, State.MISSED)
        ),
        window=window,
        fleet_received_bits_per_second=received,
        fleet_sent_bits_per_second=burst.fleet_sent_bits_per_second,
        fleet_ip_bits_per_second=flow.ip_bits_per_second,
        header_ratio=figure(overhead.ip_ratio) or 1.0,
        header_how=overhead.how,
        wire_ratio=figure(overhead.wire_ratio) or 1.0,
        headers_assumed=overhead.assumed,
        start_spread_s=errors[-1] - errors[0] if errors else None,
        start_error_max_s=errors[-1] if errors else None,
        worst_bits_per_second=figure(sum(p.received_bits_per_second or 0.0 for p in on_time)),
        peak_pair_bits_per_second=max((p.received_bits_per_second or 0.0 for p in held), default=0),
        flows=(flow,),
        pairs=pairs,
    )
    return MeasuredBurst(summary=summary, series=burst_series(timed, rows))


def _with_lost(burst: OriginalBurst) -> Completeness:
    """The burst's pair-seconds; those of clients without a row here are lost, not missed: they
    may have sent, and only their report be gone."""
    seconds = {state: burst.completeness.seconds(state) for state in State}
    lost_s = len(burst.missing_pairs) * max(1, round(burst.duration_s or 0))
    seconds[State.MISSED] -= lost_s
    seconds[State.LOST] += lost_s
    return Completeness.of(seconds)


def _absent(index: int, name: str, state: State) -> PairSummary:
    return PairSummary(
        pair=name,
        pair_index=index,
        state=state,
        reason="no row in this burst" if state is State.LOST else "no row at all",
        completeness_ratio=0.0,
        basis=Basis.NONE,
    )


def _pair(index: int, row: OriginalRow, burst: OriginalBurst) -> PairSummary:
    late_s = (row.started_at - burst.planned_start_at).total_seconds()
    state, reason = State.MEASURED, None
    if not row.received_bits_per_second:
        state = State.NULL
        reason = "no rates" if row.received_bits_per_second is None else "received 0 bit/s"
    elif late_s > LATE_AFTER_S:
        state, reason = State.LATE, f"started {late_s:g} s after the burst"
    fleet = burst.fleet_received_bits_per_second
    received = row.received_bits_per_second or None
    return PairSummary(
        pair=row.client,
        pair_index=index,
        client_agent_id=identifier(row.client),
        server_agent_id=None if row.server is None else endpoint(row.server).agent_id,
        state=state,
        reason=reason,
        completeness_ratio=1.0 if state is State.MEASURED else 0.0,
        start_error_s=late_s,
        basis=Basis.NONE if received is None else Basis.TOTALS,
        received_bits_per_second=figure(received),
        sent_bits_per_second=figure(row.sent_bits_per_second),
        share_ratio=figure(received / fleet) if received and fleet else None,
        rtt_mean_s=figure(row.rtt_mean_s),
        rtt_min_s=figure(row.rtt_min_s),
    )


def _flow(
    burst: OriginalBurst,
    rows: Sequence[OriginalRow],
    pairs: Sequence[PairSummary],
    overhead: Headers,
) -> FlowSummary:
    received = burst.fleet_received_bits_per_second
    held = [row for row in rows if row.received_bits_per_second]
    rates = np.array([row.received_bits_per_second for row in held], dtype=np.float64)
    late = [p.received_bits_per_second or 0.0 for p in pairs if p.state is State.LATE]
    least = [row.rtt_min_s for row in held if row.rtt_min_s is not None]
    most = [row.rtt_max_s for row in held if row.rtt_max_s is not None]
    return FlowSummary(
        flow=Flow.UP,
        received_bits_per_second=received,
        ip_bits_per_second=None if received is None else figure(received * overhead.ip_ratio),
        sent_bits_per_second=burst.fleet_sent_bits_per_second,
        sent_pairs_count=sum(row.sent_bits_per_second is not None for row in held),
        late_bits_per_second=figure(sum(late)) if late else None,
        proven_ratio=None if received is None else 1.0,
        pair_mean_bits_per_second=figure(float(rates.mean())) if held else None,
        pair_median_bits_per_second=figure(float(np.median(rates))) if held else None,
        pair_p5_bits_per_second=figure(float(np.quantile(rates, 0.05))) if held else None,
        pair_p95_bits_per_second=figure(float(np.quantile(rates, 0.95))) if held else None,
        pair_cov_ratio=(
            figure(float(rates.std(ddof=1) / rates.mean())) if len(rates) > 1 else None
        ),
        jain_ratio=figure(jain(rates)) if held else None,
        rtt_mean_s=burst.rtt_mean_s,
        rtt_max_s=figure(max(most)) if most else None,
        rtt_baseline_s=figure(min(least)) if least else None,
        rtt_pairs_count=sum(row.rtt_mean_s is not None for row in held),
    )
