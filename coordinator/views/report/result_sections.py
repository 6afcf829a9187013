"""Report sections with the results of the run, its bursts and its pairs. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from broadside.coordinator.core.formatting import count, instant, number, rate, ratio, time
from broadside.coordinator.core.measure.completeness import PAIR_FLOOR_RATIO
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import BurstSummary, PairSummary, SecondState
from broadside.coordinator.views.guard_tables import GUARD_COLUMNS, guard_row, impact_table
from broadside.coordinator.views.metric_rows import metric_rows
from broadside.coordinator.views.part_rows import PART_COLUMNS, PART_NUMBERS_FROM, part_rows
from broadside.coordinator.views.report.document import TEXT_ONLY, ReportTable, Section, make_table
from broadside.coordinator.views.report.stored_source import Source

_STATES: Final[Mapping[SecondState, str]] = {
    SecondState.MEASURED: "started on time, second recorded",
    SecondState.LATE: "started later than the tolerance",
    SecondState.NULL: "engine failed, or no data transferred",
    SecondState.MISSED: "no agent ran the pair",
    SecondState.REFUSED: "rejected by the agent",
    SecondState.ABANDONED: "stopped before the end",
    SecondState.LOST: "claimed, but nothing was reported",
    SecondState.PENDING: "not finished",
}
_COUNTED: Final = (SecondState.MEASURED, SecondState.PENDING)
_GUARDS_NOTE: Final = (
    'A guard stops all traffic when its value is beyond the limit. "Stops within" is the longest '
    "expected time from a breach to the last byte."
)
# Maximum number of pairs that the headline names, and rows in the list of unmeasured pairs.
_NAMED_MAX: Final = 5
_LISTED_MAX: Final = 100


def headline_section(source: Source) -> Section:
    """Return a section with the metrics at each layer. A lab run also has them at real scale."""
    summary = source.summary
    lab = summary.scale != 1
    spread = summary.received_over_bursts
    tables = [
        ReportTable(
            columns=("metric", "layer", "measured", *(("at real scale",) if lab else ())),
            rows=tuple(row.cells(lab=lab) for row in metric_rows(summary)),
            numeric_from=2,
            note="Mean over the measurement windows of all bursts. Payload is counted by the "
            "receiving application. The IP layer adds the TCP or UDP and IP headers.",
        ),
        *(_flow_table(burst) for burst in summary.bursts[:1] if burst.flows),
    ]
    if spread is not None and spread.bursts_count > 1:
        columns = {
            "bursts": str(spread.bursts_count),
            "mean": rate(spread.mean),
            "median": rate(spread.median),
            "p5": rate(spread.p5),
            "p95": rate(spread.p95),
            "CoV": ratio(spread.cov_ratio),
        }
        title = "Received payload over the bursts"
        tables.append(
            ReportTable(title=title, columns=tuple(columns), rows=(tuple(columns.values()),))
        )
    return Section(
        id="figures",
        title="Results",
        facts={
            "pairs measured in all bursts": f"{summary.pairs_measured} of {summary.pairs_planned}",
            "bursts": f"{len(summary.bursts)} of {summary.bursts_planned}",
            "bottleneck": summary.bottleneck.value,
            **_unmeasured_facts(summary.bursts),
        },
        tables=tuple(tables),
    )


def _unmeasured(bursts: Sequence[BurstSummary]) -> list[tuple[BurstSummary, PairSummary]]:
    return [(burst, pair) for burst in bursts for pair in burst.pairs if pair.state not in _COUNTED]


def _unmeasured_facts(bursts: Sequence[BurstSummary]) -> dict[str, str]:
    """Return the unmeasured pairs, grouped by whether their traffic is in the received rate."""
    groups: dict[str, list[str]] = {}
    for burst, pair in _unmeasured(bursts):
        name = f"pairs not measured, {_in_rate(pair)} the received rate"
        text = f"{pair.pair} in burst {burst.index + 1} ({_reason(pair)})"
        groups.setdefault(name, []).append(text)
    return {
        name: ", ".join(texts[:_NAMED_MAX])
        + (f" and {len(texts) - _NAMED_MAX} more, see Completeness" if texts[_NAMED_MAX:] else "")
        for name, texts in sorted(groups.items())
    }


def _in_rate(pair: PairSummary) -> str:
    """Return "in" or "not in".

    The fleet's rate contains all received traffic, also from pairs that do not count as measured.
    """
    return "in" if pair.received_bits_per_second else "not in"


def _reason(pair: PairSummary) -> str:
    is_late = pair.state is SecondState.LATE and pair.start_error_s is not None
    reason = f"start error {time(pair.start_error_s)}" if is_late else pair.reason
    return f"{pair.state.value}: {reason}" if reason else pair.state.value


def _flow_table(burst: BurstSummary) -> ReportTable:
    """Return a table with flow statistics of the first burst."""
    return make_table(
        burst.flows,
        {
            "flow": lambda flow: flow.flow.value,
            "received, payload": lambda flow: rate(flow.received_bits_per_second),
            "median of seconds": lambda flow: rate(flow.second_median_bits_per_second),
            "p5 to p95 of seconds": lambda flow: (
                f"{rate(flow.second_p5_bits_per_second)} to {rate(flow.second_p95_bits_per_second)}"
            ),
            "CoV of seconds": lambda flow: ratio(flow.second_cov_ratio),
            "CoV of pairs": lambda flow: ratio(flow.pair_cov_ratio),
            "Jain index": lambda flow: number(flow.jain_ratio),
            "TCP efficiency": lambda flow: ratio(flow.tcp_efficiency_ratio, 3),
            "buffer delay": lambda flow: ratio(flow.buffer_delay_ratio, 0),
            "transfer time ratio": lambda flow: number(flow.transfer_time_ratio),
        },
        title=f"Flows of burst {burst.index + 1} in its window",
        note="CoV: standard deviation / mean. TCP efficiency, buffer delay and transfer time "
        "ratio are defined in RFC 6349.",
    )


def bursts_section(source: Source) -> Section:
    """Return a section with one row for each burst."""
    table = make_table(
        source.summary.bursts,
        {
            "burst": lambda burst: str(burst.index + 1),
            "planned start": lambda burst: instant(burst.planned_start_at),
            "window": lambda burst: f"{burst.window.window_s} s" if burst.window else "none",
            "pairs": lambda burst: f"{burst.pairs_measured}/{burst.pairs_planned}",
            "completeness": lambda burst: ratio(burst.completeness_ratio, 1),
            "received, payload": lambda burst: rate(RECEIVED.of_burst(burst)),
            "received, IP": lambda burst: rate(burst.fleet_ip_bits_per_second),
            "device counter": lambda burst: rate(burst.firewall_bits_per_second),
            "start spread": lambda burst: time(burst.start_spread_s),
            "clock uncertainty": lambda burst: time(burst.clock_bound_max_s),
            "verdict": lambda burst: burst.verdict.value,
        },
        numeric_from=2,
    )
    return Section(id="bursts", title="Bursts", tables=(table,))


def parts_section(source: Source) -> Section | None:
    """Return a section with the metrics of each traffic of a mixed run, or None."""
    names = source.plan.spec.part_names
    if not (rows := part_rows(source.summary)):
        return None
    table = ReportTable(
        columns=PART_COLUMNS,
        rows=tuple(rows),
        title="Traffic of the pairs",
        numeric_from=PART_NUMBERS_FROM,
    )
    text = (
        "All pairs started together, and one verdict covers them. Other sections are for "
        f"{names[0]}."
    )
    return Section(id="parts", title="Mixed traffic", paragraphs=(text,), tables=(table,))


def guards_section(source: Source) -> Section | None:
    """Return a section with the guards and the impact of a stop, or None without guards."""
    guards = source.summary.guards
    if guards is None:
        return None
    rows = tuple(tuple(guard_row(record)) for record in guards.guards)
    tables = [ReportTable(columns=GUARD_COLUMNS, rows=rows, note=_GUARDS_NOTE)]
    facts: dict[str, str] = {}
    if (stop := guards.stop) is not None:
        facts = {
            "stopped": stop.reason,
            "breach": instant(stop.breached_at),
            "order to stop": instant(stop.stop_requested_at),
            "last engine ended": instant(stop.stopped_at) if stop.stopped_at else "unknown",
        }
        columns, impact = impact_table(guards)
        tables.append(
            ReportTable(
                title=f"Impact in burst {stop.burst_index + 1}",
                columns=tuple(columns),
                rows=tuple(map(tuple, impact)),
                note="Second 0 is the planned start. The values are the worst ones in each second.",
            )
        )
    return Section(id="guards", title="Guards", facts=facts, tables=tuple(tables))


def pairs_section(source: Source) -> Section:
    """Return a section with all pairs, for the run and for the bursts shown in detail."""
    bursts = source.summary.bursts
    is_many = len(bursts) > 1
    return Section(
        id="pairs",
        title="Pairs",
        paragraphs=(
            (
                f"A pair is measured if it started on time and {ratio(PAIR_FLOOR_RATIO, 0)} of its "
                "seconds are recorded. The received rate of the fleet includes late pairs. The "
                "completeness does not."
            ),
        ),
        tables=(
            *((_pairs_of_run(bursts),) if is_many else ()),
            *(_pairs_of_burst(view.summary, is_many=is_many) for view in source.views),
        ),
    )


def _pairs_of_burst(burst: BurstSummary, *, is_many: bool) -> ReportTable:
    return make_table(
        burst.pairs,
        {
            "pair": lambda pair: pair.pair,
            "client": lambda pair: pair.client_agent_id or "none",
            "server": lambda pair: pair.server_agent_id or "unknown",
            "state": lambda pair: pair.state.value + (f": {pair.reason}" if pair.reason else ""),
            "completeness": lambda pair: ratio(pair.completeness_ratio, 1),
            "start error": lambda pair: time(pair.start_error_s),
            "received, payload": lambda pair: rate(pair.received_bits_per_second),
            "share": lambda pair: ratio(pair.share_ratio, 1),
            "CoV": lambda pair: ratio(pair.cov_ratio, 1),
            "retransmissions": lambda pair: count(pair.retransmits_count),
            "RTT": lambda pair: time(pair.rtt_mean_s),
            "client CPU": lambda pair: ratio(pair.client_cpu_ratio, 0),
            "client NIC": lambda pair: ratio(pair.client_nic_ratio, 0),
            "data source": lambda pair: (
                pair.basis.value
                + (f", matched by {pair.joined_by.value}" if pair.joined_by else "")
            ),
        },
        title=f"Burst {burst.index + 1}" if is_many else "",
        numeric_from=4,
    )


def _pairs_of_run(bursts: Sequence[BurstSummary]) -> ReportTable:
    by_index: dict[int, list[PairSummary]] = {}
    for burst in bursts:
        for pair in burst.pairs:
            by_index.setdefault(pair.pair_index, []).append(pair)

    def states(pairs: Sequence[PairSummary]) -> str:
        others = Counter(p.state.value for p in pairs if p.state is not SecondState.MEASURED)
        return ", ".join(f"{n} {state}" for state, n in others.items()) or "none"

    def rates(pairs: Sequence[PairSummary]) -> list[float]:
        known = [pair.received_bits_per_second for pair in pairs]
        return [value for value in known if value is not None]

    return make_table(
        by_index.values(),
        {
            "pair": lambda pairs: pairs[0].pair,
            "bursts measured": lambda pairs: (
                f"{sum(pair.state is SecondState.MEASURED for pair in pairs)} of {len(pairs)}"
            ),
            "other states": states,
            "mean received, payload": lambda pairs: rate(
                sum(known) / len(known) if (known := rates(pairs)) else None
            ),
            "range over bursts": lambda pairs: (
                f"{rate(min(known))} to {rate(max(known))}"
                if (known := rates(pairs))
                else "unknown"
            ),
            "largest start error": lambda pairs: time(
                max(
                    (abs(p.start_error_s) for p in pairs if p.start_error_s is not None),
                    default=None,
                )
            ),
        },
        title="All bursts",
        numeric_from=3,
    )


def completeness_section(source: Source) -> Section:
    """Return a section with planned pair-seconds by state, and the unmeasured pairs."""
    totals = source.summary.completeness
    floor = source.plan.spec.objective.coverage_floor_ratio
    planned_s = totals.planned_s
    rows = [
        (state.value, text, count(seconds := totals.seconds(state)), _share(seconds, planned_s))
        for state, text in _STATES.items()
    ]
    unmeasured = _unmeasured(source.summary.bursts)
    more = len(unmeasured) - _LISTED_MAX
    tables = [
        ReportTable(
            columns=("state", "meaning", "pair-seconds", "share"),
            rows=(*rows, ("sum", "", count(planned_s), "")),
            numeric_from=2,
        )
    ]
    if unmeasured:
        tables.append(
            make_table(
                unmeasured[:_LISTED_MAX],
                {
                    "burst": lambda row: str(row[0].index + 1),
                    "pair": lambda row: row[1].pair,
                    "state": lambda row: row[1].state.value,
                    "reason": lambda row: _reason(row[1]),
                    "received rate": lambda row: _in_rate(row[1]),
                },
                title="Pairs that are not measured",
                numeric_from=TEXT_ONLY,
                note=f"{more} more in the JSON report." if more > 0 else None,
            )
        )
    return Section(
        id="completeness",
        title="Completeness",
        paragraphs=(
            (
                f"Each of the {count(planned_s)} planned pair-seconds has one state. With less "
                f"than {ratio(floor, 1)} measured, the verdict cannot be a pass."
            ),
        ),
        tables=tuple(tables),
    )


def _share(seconds: int, planned_s: int) -> str:
    return ratio(seconds / planned_s if planned_s else None)
