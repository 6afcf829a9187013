"""Report sections with metrics of the run, bursts and pairs, and completeness. Pure."""

from collections import Counter
from collections.abc import Sequence

from broadside.coordinator.core.formatting import count, instant, number, rate, ratio, time
from broadside.coordinator.core.measure.completeness import PAIR_FLOOR_RATIO
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import BurstSummary, PairSummary, State
from broadside.coordinator.views.figure_rows import figure_rows
from broadside.coordinator.views.report.document import Section, Table, tabled
from broadside.coordinator.views.report.stored_source import Source

STATES = {
    State.MEASURED: "ran on time, and its second is on record",
    State.LATE: "ran, but off the planned instant by more than the tolerance",
    State.NULL: "the engine failed, or ended without a byte",
    State.MISSED: "nobody ran it",
    State.REFUSED: "the agent stood down on purpose",
    State.ABANDONED: "begun, then cut",
    State.LOST: "taken, and no word or second ever came",
    State.PENDING: "not over yet",
}

COUNTED = (State.MEASURED, State.PENDING)
# Maximum number of pairs that the headline names.
NAMED_MAX = 5


def headline_section(source: Source) -> Section:
    """Return a section with the metrics at each layer. A lab run also has them at real scale."""
    summary = source.summary
    lab = summary.scale != 1
    facts = {
        "pairs measured in every burst": f"{summary.pairs_measured} of {summary.pairs_planned}",
        "bursts": f"{len(summary.bursts)} of {summary.bursts_planned}",
        "limiter": summary.limiter.value,
        **_left_out(summary.bursts),
    }
    columns = ("", "layer", "as measured", *(("stands for",) if lab else ()))
    return Section(
        id="figures",
        title="Headline figures",
        facts=facts,
        tables=(
            Table(
                columns=columns,
                rows=tuple(row.cells(lab=lab) for row in figure_rows(summary)),
                numeric_from=2,
                note="Rates are decimal. Received payload is what the receiving applications "
                "counted; the IP layer adds TCP or UDP and IP headers; the mean over bursts of "
                "each burst's window.",
            ),
            *(_flow_table(burst) for burst in summary.bursts[:1] if burst.flows),
            *_spread(source),
        ),
    )


def _left_out(bursts: Sequence[BurstSummary]) -> dict[str, str]:
    """Return the unmeasured pairs, grouped by whether their traffic is in the headline rate."""
    held: dict[str, list[str]] = {}
    for burst, pair in _excluded(bursts):
        held.setdefault(_in_rate(pair), []).append(
            f"{pair.pair} in burst {burst.index + 1} ({_why(pair)})"
        )
    return {
        f"pairs not measured, {where} the headline rate": ", ".join(named[:NAMED_MAX])
        + (f" and {len(named) - NAMED_MAX} more, see Completeness" if named[NAMED_MAX:] else "")
        for where, named in sorted(held.items())
    }


def _excluded(bursts: Sequence[BurstSummary]) -> list[tuple[BurstSummary, PairSummary]]:
    return [(burst, pair) for burst in bursts for pair in burst.pairs if pair.state not in COUNTED]


def _in_rate(pair: PairSummary) -> str:
    """Return "in" or "not in".

    The fleet's rate contains all received traffic, also from pairs that do not count as measured.
    """
    return "in" if pair.received_bits_per_second else "not in"


def _why(pair: PairSummary) -> str:
    late = pair.state is State.LATE and pair.start_error_s is not None
    said = f"{time(pair.start_error_s)} off the instant" if late else pair.reason
    return f"{pair.state.value}: {said}" if said else pair.state.value


def _flow_table(burst: BurstSummary) -> Table:
    """Return a table with flow statistics of the first burst."""
    return tabled(
        burst.flows,
        {
            "flow": lambda flow: flow.flow.value,
            "received, payload": lambda flow: rate(flow.received_bits_per_second),
            "median second": lambda flow: rate(flow.second_median_bits_per_second),
            "p5 to p95 second": lambda flow: (
                f"{rate(flow.second_p5_bits_per_second)} to {rate(flow.second_p95_bits_per_second)}"
            ),
            "CoV, seconds": lambda flow: ratio(flow.second_cov_ratio),
            "CoV, pairs": lambda flow: ratio(flow.pair_cov_ratio),
            "Jain index": lambda flow: number(flow.jain_ratio),
            "TCP efficiency": lambda flow: ratio(flow.tcp_efficiency_ratio, 3),
            "buffer delay": lambda flow: ratio(flow.buffer_delay_ratio, 0),
            "transfer time ratio": lambda flow: number(flow.transfer_time_ratio),
        },
        title=f"Flows of burst {burst.index + 1} over its window",
        note="CoV: standard deviation over mean. TCP efficiency, buffer delay and transfer time "
        "ratio are those of RFC 6349.",
    )


def _spread(source: Source) -> tuple[Table, ...]:
    spread = source.summary.received_over_bursts
    if spread is None or spread.bursts_count < 2:
        return ()
    table = tabled(
        [spread],
        {
            "bursts (n)": lambda spread: str(spread.bursts_count),
            "mean": lambda spread: rate(spread.mean),
            "median": lambda spread: rate(spread.median),
            "p5": lambda spread: rate(spread.p5),
            "p95": lambda spread: rate(spread.p95),
            "CoV": lambda spread: ratio(spread.cov_ratio),
        },
        title="Received payload over the bursts",
    )
    return (table,)


def bursts_section(source: Source) -> Section:
    """Return a section with one row for each burst."""
    table = tabled(
        source.summary.bursts,
        {
            "burst": lambda burst: str(burst.index + 1),
            "planned start": lambda burst: instant(burst.planned_start_at),
            "window": lambda burst: f"{burst.window.window_s} s" if burst.window else "none",
            "pairs": lambda burst: f"{burst.pairs_measured}/{burst.pairs_planned}",
            "complete": lambda burst: ratio(burst.completeness_ratio, 1),
            "received, payload": lambda burst: rate(RECEIVED.of_burst(burst)),
            "received, ip": lambda burst: rate(burst.fleet_ip_bits_per_second),
            "firewall": lambda burst: rate(burst.firewall_bits_per_second),
            "start spread": lambda burst: time(burst.start_spread_s),
            "clock bound": lambda burst: time(burst.clock_bound_max_s),
            "verdict": lambda burst: burst.verdict.value,
        },
        numeric_from=2,
    )
    return Section(id="bursts", title="Bursts", tables=(table,))


def pairs_section(source: Source) -> Section:
    """Return a section with all pairs, for the run and for the bursts shown in detail."""
    tables = []
    bursts = source.summary.bursts
    if len(bursts) > 1:
        tables.append(_pairs_over_run(bursts))
    tables += [_pairs_of(view.summary, many=len(bursts) > 1) for view in source.views]
    return Section(
        id="pairs",
        title="Pairs",
        paragraphs=(
            (
                "A pair counts as measured when it ran on time and at least "
                f"{ratio(PAIR_FLOOR_RATIO, 0)} of its seconds are on record. Pairs that do not "
                "count are listed with the reason; those that ran late are in the fleet's rate and "
                "not in its coverage."
            ),
        ),
        tables=tuple(tables),
    )


def _pairs_of(burst: BurstSummary, *, many: bool) -> Table:
    return tabled(
        burst.pairs,
        {
            "pair": lambda pair: pair.pair,
            "client": lambda pair: pair.client_agent_id or "nobody",
            "server": lambda pair: pair.server_agent_id or "unknown",
            "state": lambda pair: pair.state.value + (f": {pair.reason}" if pair.reason else ""),
            "complete": lambda pair: ratio(pair.completeness_ratio, 1),
            "first data after start": lambda pair: time(pair.start_error_s),
            "received, payload": lambda pair: rate(pair.received_bits_per_second),
            "share": lambda pair: ratio(pair.share_ratio, 1),
            "CoV": lambda pair: ratio(pair.cov_ratio, 1),
            "sent again": lambda pair: count(pair.retransmits_count),
            "round trip": lambda pair: time(pair.rtt_mean_s),
            "client CPU": lambda pair: ratio(pair.client_cpu_ratio, 0),
            "client NIC": lambda pair: ratio(pair.client_nic_ratio, 0),
            "seen by": lambda pair: (
                pair.basis.value + (f", joined by {pair.joined_by.value}" if pair.joined_by else "")
            ),
        },
        title=f"Burst {burst.index + 1}" if many else "",
        numeric_from=4,
    )


def _pairs_over_run(bursts: Sequence[BurstSummary]) -> Table:
    rows = []
    by_index: dict[int, list[PairSummary]] = {}
    for burst in bursts:
        for pair in burst.pairs:
            by_index.setdefault(pair.pair_index, []).append(pair)
    for pairs in by_index.values():
        states = Counter(pair.state for pair in pairs)
        rates = [
            p.received_bits_per_second for p in pairs if p.received_bits_per_second is not None
        ]
        worst = max(
            (abs(p.start_error_s) for p in pairs if p.start_error_s is not None), default=None
        )
        other = ", ".join(
            f"{n} {state.value}" for state, n in states.items() if state is not State.MEASURED
        )
        rows.append(
            (
                pairs[0].pair,
                f"{states[State.MEASURED]} of {len(pairs)}",
                other or "none",
                rate(sum(rates) / len(rates)) if rates else "unknown",
                f"{rate(min(rates))} to {rate(max(rates))}" if rates else "unknown",
                time(worst),
            )
        )
    return Table(
        title="Over the run",
        columns=(
            "pair",
            "bursts measured",
            "other states",
            "mean received, payload",
            "range over bursts",
            "largest start error",
        ),
        rows=tuple(rows),
        numeric_from=3,
    )


def completeness_section(source: Source) -> Section:
    """Return a section with planned pair-seconds by state, and the incomplete pairs."""
    seen = source.summary.completeness
    floor = source.plan.spec.objective.coverage_floor_ratio
    rows = tuple(
        (
            state.value,
            STATES[state],
            count(seen.seconds(state)),
            ratio(seen.seconds(state) / seen.planned_s if seen.planned_s else None),
        )
        for state in State
    )
    excluded = [
        (f"{burst.index + 1}", pair.pair, pair.state.value, _why(pair), _in_rate(pair))
        for burst, pair in _excluded(source.summary.bursts)
    ]
    shown = excluded[:100]
    more = len(excluded) - len(shown)
    return Section(
        id="completeness",
        title="Completeness",
        paragraphs=(
            (
                f"Every one of the {count(seen.planned_s)} planned pair-seconds has one state; "
                f"they sum to all. Below a coverage of {ratio(floor, 1)} no verdict is a pass."
            ),
        ),
        tables=(
            Table(
                columns=("state", "meaning", "pair-seconds", "share"),
                rows=(*rows, ("sum", "", count(seen.planned_s), "")),
                numeric_from=2,
            ),
            *(
                (
                    Table(
                        title="Pairs that do not count as measured",
                        columns=("burst", "pair", "state", "reason", "headline rate"),
                        rows=tuple(shown),
                        numeric_from=9,
                        note=f"{more} more are in the JSON report." if more else None,
                    ),
                )
                if excluded
                else ()
            ),
        ),
    )
