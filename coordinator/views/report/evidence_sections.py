"""Report sections about latency, reconciliation, trends, disruptions and cost. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from broadside.coordinator.core.formatting import (
    count,
    dollars,
    instant,
    number,
    quantity,
    rate,
    ratio,
    signed,
    signed_ratio,
    size,
    time,
    unit_price,
)
from broadside.coordinator.core.judge.reconciliation.residual_causes import UNSEEN_BY_BYTES
from broadside.coordinator.core.metrics import layer_label
from broadside.coordinator.core.run_trends import bursts_of
from broadside.coordinator.core.summary import (
    CanaryStep,
    Latency,
    Reconciliation,
    RunTrends,
    Spike,
    Trend,
    describe_flows,
    describe_leaks,
    describe_units,
    unit_notes,
)
from broadside.coordinator.views.report.document import TEXT_ONLY, ReportTable, Section, make_table
from broadside.coordinator.views.report.stored_source import Source

# We need to limit the rows, because a long run can have thousands of spikes.
SPIKES_MAX: Final = 100
# A long run with many units has thousands of rows.
UNITS_MAX: Final = 200
_UNITS: Final = (
    "A device that translates source addresses per unit shows the address of the unit to the "
    "server. Each address that clients share counts as one unit."
)
# A burst has up to 120 steps.
LEAK_STEPS_MAX: Final = 40
_CANARY: Final = (
    "Each pair sends safe but forbidden requests, which the policy must block, each with a twin of "
    "the same form that is allowed, at the same time. A forbidden request counts only if its twin "
    "arrived. It has leaked if the server received it. The interval is exact (Clopper-Pearson)."
)
_LATENCY: Final = (
    "Each pair sends small UDP probes beside its traffic, before, during and after the load. The "
    "server's agent returns them. A probe without an answer within one second is lost. Buffer "
    "delay (RFC 6349, section 4.3) is the relative increase of the mean round-trip time under "
    "load. Round-trip times include the scheduling delay of both agents' hosts."
)
_BYPASS: Final = (
    "The traffic was expected to bypass the firewall (device.path=bypass). The residual is the "
    "traffic that the device counter shows above its idle level, relative to the traffic that it "
    "would show if the run crossed the firewall."
)
_METHOD: Final = (
    "The samples of the device counter are shifted by the lag that fits the fleet's bytes best. "
    "The idle level, which is the rate without planned traffic, is subtracted. Both sides are "
    "compared at the counter's layer: residual = counter / expected - 1. A cause is identified "
    "only for a residual above its own uncertainty."
)
_HEADER_SOURCES: Final = {
    "recorded": "from the segment sizes that the engines recorded",
    "assumed": "for packets of 1500 bytes, because no segment size was recorded",
    "fitted": "from the median burst, because the layer of the counter is unknown",
}
_IDLE_SOURCES: Final = {
    "quiet": "measured without planned traffic",
    "fitted": "fitted together with the fleet's bytes",
    "bounded": "assumed to be zero; the uncertainty is the smallest sample",
}


def latency_section(source: Source) -> Section | None:
    """Return a section with the probe results of each burst. None without probes."""
    probed = [(burst, burst.latency) for burst in source.summary.bursts if burst.latency]
    if not probed:
        return None
    detailed = {view.summary.index for view in source.views}
    spikes = [(burst.index, spike) for burst, latency in probed for spike in latency.spikes]
    more = sum(latency.spikes_count for _, latency in probed) - len(spikes[:SPIKES_MAX])
    bursts = make_table(
        probed,
        {
            "burst": lambda row: str(row[0].index + 1),
            "pairs probed": lambda row: (
                f"{row[1].pairs_count} ({row[1].complete_pairs_count} complete)"
            ),
            "p50 before load": lambda row: time(row[1].fleet.before.p50_s),
            "p50 under load": lambda row: time(row[1].fleet.during.p50_s),
            "p99 under load": lambda row: time(row[1].fleet.during.p99_s),
            "lost under load": lambda row: ratio(row[1].fleet.during.loss_ratio),
            "buffer delay": lambda row: ratio(row[1].fleet.buffer_delay_ratio, 0),
            "worst pair": lambda row: row[1].worst_pair or "unknown",
            "p99 of worst pair": lambda row: time(row[1].worst_p99_s),
            "spikes": lambda row: count(row[1].spikes_count),
        },
        title="Bursts",
    )
    return Section(
        id="latency",
        title="Latency under load",
        paragraphs=(_LATENCY,),
        tables=(
            bursts,
            *(_phases(burst.index, seen) for burst, seen in probed if burst.index in detailed),
            *((_spikes(spikes, more),) if spikes else ()),
        ),
    )


def _phases(burst_index: int, latency: Latency) -> ReportTable:
    fleet = latency.fleet
    return make_table(
        (("before load", fleet.before), ("under load", fleet.during), ("after load", fleet.after)),
        {
            "phase": lambda row: row[0],
            "sent": lambda row: count(row[1].sent_count),
            "lost": lambda row: ratio(row[1].loss_ratio),
            "p50": lambda row: time(row[1].p50_s),
            "p90": lambda row: time(row[1].p90_s),
            "p95": lambda row: time(row[1].p95_s),
            "p99": lambda row: time(row[1].p99_s),
            "maximum": lambda row: time(row[1].max_s),
        },
        title=f"Burst {burst_index + 1}: round-trip time of all pairs",
    )


def _spikes(spikes: list[tuple[int, Spike]], more: int) -> ReportTable:
    return make_table(
        spikes[:SPIKES_MAX],
        {
            "burst": lambda row: str(row[0] + 1),
            "start": lambda row: instant(row[1].from_at),
            "duration": lambda row: time((row[1].to_at - row[1].from_at).total_seconds()),
            "pairs": lambda row: (
                f"{row[1].pairs_count} ({', '.join(row[1].pairs)}"
                f"{', ...' if row[1].pairs_count > len(row[1].pairs) else ''})"
            ),
            "slowest answer": lambda row: (
                "none" if row[1].rtt_max_s is None else time(row[1].rtt_max_s)
            ),
            "lost": lambda row: count(row[1].lost_count),
        },
        title="Spikes: one second or more with slow or no answers",
        numeric_from=2,
        note=f"{more} more are not listed." if more else None,
    )


def reconciliation_section(source: Source) -> Section:
    """Return a section with lag, overhead, bytes, residual and causes, by run and burst."""
    result, counter = source.summary.reconciliation, source.device_counter
    if result is None or counter is None:
        text = (
            "No device counter was read. The report therefore does not show that the traffic "
            "crossed the firewall. It shows what the fleet received."
        )
        return Section(id="reconciliation", title="Reconciliation", paragraphs=(text,))
    lag = "unknown from the data, so there is no residual"
    if result.lag_s is not None:
        lag = f"{time(result.lag_s)} ± {time(result.lag_uncertainty_s)}"
    facts = {
        "source": result.source,
        "layer": layer_label(result.layer),
        "interval": time(result.grain_s),
        "read at": instant(counter.read_at),
        "lag": lag,
        "header overhead": (
            f"{number(result.overhead_ratio)}, {_HEADER_SOURCES[result.overhead_how]}"
        ),
        "compared": f"{result.full_bins_count} samples that are completely inside the windows"
        if result.basis == "rate"
        else "all samples that overlap the bursts, in proportion",
        "counter / expected": f"{size(result.firewall_bytes)} / {size(result.expected_bytes)}",
        "residual": _residual(result),
        "limit": f"± {ratio(source.plan.spec.objective.residual_max_ratio, 1)}",
        "not yet counted": f"{ratio(result.unknown_ratio)} of the fleet's bytes",
        "idle level": _idle_level(result),
    }
    if counter.snat_utilization_ratio is not None:
        facts["SNAT ports used, maximum"] = ratio(counter.snat_utilization_ratio, 0)
    if counter.notes:
        facts["notes of the source"] = "; ".join(counter.notes)
    causes = make_table(
        result.causes,
        {
            "cause": lambda cause: cause.id,
            "explains": lambda cause: signed_ratio(cause.share_ratio),
            "reason": lambda cause: cause.sentence,
        },
        title="Identified causes of the residual",
        numeric_from=TEXT_ONLY,
        note=None if result.causes else "None: the residual is within its uncertainty or 0.5 %.",
    )
    return Section(
        id="reconciliation",
        title="Reconciliation",
        paragraphs=(
            *((_BYPASS,) if result.bypassed else ()),
            _METHOD,
            UNSEEN_BY_BYTES,
        ),
        facts=facts,
        tables=(causes, *_reconciled_bursts(source)),
    )


def _reconciled_bursts(source: Source) -> Iterator[ReportTable]:
    bursts = [
        (burst.index, burst.reconciliation)
        for burst in source.summary.bursts
        if burst.reconciliation is not None
    ]
    if len(bursts) > 1:
        yield make_table(
            bursts,
            {
                "burst": lambda row: str(row[0] + 1),
                "device counter": lambda row: size(row[1].firewall_bytes),
                "expected": lambda row: size(row[1].expected_bytes),
                "residual": lambda row: _residual(row[1]),
                "causes": lambda row: ", ".join(cause.id for cause in row[1].causes) or "none",
            },
            title="Bursts",
        )


def _idle_level(result: Reconciliation) -> str:
    if result.baseline_how is None:
        return "unknown"
    level = rate(result.baseline_bits_per_second)
    uncertainty = rate(result.baseline_uncertainty_bits_per_second)
    return f"{level} ± {uncertainty}, {_IDLE_SOURCES[result.baseline_how]}"


def _residual(result: Reconciliation) -> str:
    if result.residual_ratio is None:
        return "unknown"
    if result.residual_low_ratio is None or result.residual_high_ratio is None:
        return f"{signed_ratio(result.residual_ratio)} ± {ratio(result.residual_uncertainty_ratio)}"
    low, high = signed_ratio(result.residual_low_ratio), signed_ratio(result.residual_high_ratio)
    return f"{signed_ratio(result.residual_ratio)} ({low} to {high} at 95 %)"


def units_section(source: Source) -> Section:
    """Return a section with the units of the device in each burst, or why they are unknown."""
    bursts = [(burst.index, burst.units) for burst in source.summary.bursts]
    sentences = dict.fromkeys(describe_units(units) for _, units in bursts)
    known = [(index, units) for index, units in bursts if units is not None and units.units]
    spread = make_table(
        known,
        {
            "burst": lambda row: str(row[0] + 1),
            "units": lambda row: count(row[1].count),
            "in one second": lambda row: f"{row[1].min_count} to {row[1].max_count}",
            "busiest / mean": lambda row: ratio(row[1].imbalance_ratio, 0),
            "Jain's index": lambda row: number(row[1].jain_ratio),
            "chance of one more unit": lambda row: ratio(row[1].missed_ratio),
            "slow unit": lambda row: row[1].slow or "none",
        },
        title="Units by burst",
        note="A further unit with an equal share would have had no stream with this probability.",
    )
    rows = [(index, units, unit) for index, units in known for unit in units.units]
    table = make_table(
        rows[:UNITS_MAX],
        {
            "burst": lambda row: str(row[0] + 1),
            "unit": lambda row: row[2].address,
            "clients": lambda row: count(row[2].clients_count),
            "streams": lambda row: describe_flows(row[2]),
            "received (payload)": lambda row: (
                f"{rate(row[2].received_bits_per_second)} ± "
                f"{rate(row[2].received_half_width_bits_per_second)}"
            ),
            "traffic (UTC)": lambda row: f"{row[2].first_at:%H:%M:%S} to {row[2].last_at:%H:%M:%S}",
            "changes": lambda row: "; ".join(unit_notes(row[1], row[2].address)) or "none",
        },
        title="Units",
        numeric_from=2,
        note=f"{len(rows) - UNITS_MAX} more are not listed." if len(rows) > UNITS_MAX else None,
    )
    return Section(
        id="units",
        title="Units of the device",
        paragraphs=(_UNITS, " ".join(sentences)),
        tables=(spread, table) if known else (),
    )


def canary_section(source: Source) -> Section | None:
    """Return a section on what the device still blocked under load. None without canaries."""
    known = [(burst.index, burst.canary) for burst in source.summary.bursts if burst.canary]
    if not known:
        return None
    phases = make_table(
        [
            (index, name, getattr(canary, name))
            for index, canary in known
            for name in ("before", "during", "after")
        ],
        {
            "burst": lambda row: str(row[0] + 1),
            "phase": lambda row: row[1],
            "leaked": lambda row: describe_leaks(row[2]),
            "allowed, blocked": lambda row: (
                f"{row[2].allowed_blocked_count} of {row[2].allowed_count}"
            ),
            "blocked late": lambda row: count(row[2].late_count),
            "time until the block, p50": lambda row: time(row[2].decision_p50_s),
            "unknown": lambda row: count(row[2].unknown_count),
        },
        title="Canaries by phase",
        numeric_from=3,
        note="A block without a reset or an answer has no time: the request is silent.",
    )
    signatures = make_table(
        [(index, one) for index, canary in known for one in canary.signatures],
        {
            "burst": lambda row: str(row[0] + 1),
            "signature": lambda row: row[1].name,
            "rule": lambda row: row[1].rule,
            "leaked during the burst": lambda row: describe_leaks(row[1].during),
        },
        title="Canaries by signature",
        numeric_from=TEXT_ONLY,
    )
    leaks = [(index, step) for index, c in known for step in c.steps if step.leaked_count]
    names = dict.fromkeys(canary.consent for _, canary in known)
    return Section(
        id="canary",
        title="What the device still blocked",
        paragraphs=(_CANARY,),
        facts={"consent to the forbidden requests": ", ".join(names)},
        tables=(phases, signatures, *((_leak_steps(leaks),) if leaks else ())),
    )


def _leak_steps(leaks: Sequence[tuple[int, CanaryStep]]) -> ReportTable:
    """Return a table with rate and CPU at the times when canaries leaked."""
    more = len(leaks) > LEAK_STEPS_MAX
    return make_table(
        leaks[:LEAK_STEPS_MAX],
        {
            "burst": lambda row: str(row[0] + 1),
            "from": lambda row: instant(row[1].at),
            "leaked": lambda row: f"{row[1].leaked_count} of {row[1].tested_count}",
            "received (payload)": lambda row: rate(row[1].received_bits_per_second),
            "CPU of the device": lambda row: ratio(row[1].device_cpu_ratio, 0),
        },
        title="Times with leaks",
        numeric_from=2,
        note=f"The first {LEAK_STEPS_MAX} of {len(leaks)}." if more else None,
    )


def trend_section(source: Source) -> Section | None:
    """Return a section with availability, trends and disruptions. None if there are none."""
    series = source.summary.run_trends
    if series is None:
        return None
    facts = {"disruptions": count(series.disruptions_count)}
    if (availability := series.availability) is not None:
        seconds = (availability.up_s, availability.down_s, availability.unknown_s)
        facts |= {
            "available, of planned pair-seconds": ratio(availability.up_ratio),
            "available, of recorded pair-seconds": ratio(availability.known_ratio),
            "available / not available / unknown": (
                f"{' / '.join(map(count, seconds))} pair-seconds"
            ),
        }
    tables = (_trend_table(series), _disruption_table(series))
    return Section(
        id="trends",
        title="Availability and disruptions",
        paragraphs=(
            (
                "A pair-second is available if its rate is at or above the pair's moving median "
                "minus the allowed drop. Seconds without data are unknown."
            ),
        ),
        facts=facts,
        tables=tuple(table for table in tables if table.rows),
    )


def _trend_table(series: RunTrends) -> ReportTable:
    return make_table(
        series.trends,
        {
            "metric": lambda trend: trend.name.replace("_", " "),
            "bursts": lambda trend: str(trend.bursts_count),
            "median": _median,
            "change per hour": lambda trend: f"{signed(trend.percent_per_hour)} %",
            "95 % interval": lambda trend: (
                f"{signed(trend.low_percent_per_hour)} to {signed(trend.high_percent_per_hour)} %"
            ),
            "significant": lambda trend: "yes" if trend.moved else "no",
        },
        title="Trends over the bursts",
        note="Change relative to the median (Theil-Sen slope). A trend is significant if its "
        "interval does not include zero.",
    )


def _disruption_table(series: RunTrends) -> ReportTable:
    shown, total = len(series.disruptions), series.disruptions_count
    return make_table(
        series.disruptions,
        {
            "burst": bursts_of,
            "start": lambda row: instant(row.start_at),
            "duration": lambda row: time(row.duration_s),
            "kind": lambda row: row.kind.value,
            "scope": lambda row: row.scope,
            "pairs": lambda row: f"{row.pairs_count}: {', '.join(row.pairs)}",
            "missing payload": lambda row: size(row.short_bytes),
            "recorded causes": lambda row: "; ".join(row.causes) or "none",
        },
        title="Disruptions",
        numeric_from=TEXT_ONLY,
        note=f"The {shown} most severe of {total}." if shown < total else None,
    )


def _median(trend: Trend) -> str:
    match trend.name:
        case "received":
            return rate(trend.median)
        case "rtt":
            return time(trend.median)
        case "retransmits":
            return ratio(trend.median, 4)
        case _:
            return number(trend.median)


def cost_section(source: Source) -> Section | None:
    """Return a section with the cost at real scale and the date of the prices. None if unknown."""
    price = source.price
    if price is None:
        return None
    bill = price.spent
    facts = {
        "total": _dollar_range(bill.total_usd, bill.total_low_usd, bill.total_high_usd),
        "prices": f"{price.prices}, of {price.prices_as_of}",
        "bytes at real scale, IP layer": size(price.real_ip_bytes),
        "budget": dollars(price.budget_usd) if price.budget_usd is not None else "none",
    }
    if not price.charged:
        facts["charged"] = f"no: {price.not_charged_why}"
    if bill.unknown:
        facts["not included"] = ", ".join(bill.unknown)
    lines = make_table(
        bill.lines,
        {
            "item": lambda line: line.item,
            "quantity": lambda line: quantity(line.quantity, line.unit),
            "unit price": lambda line: unit_price(line.unit_price_usd),
            "sum": lambda line: _dollar_range(line.usd, line.low_usd, line.high_usd),
            "source": lambda line: (
                ", ".join(str(value) for value in (line.source, line.as_of) if value) or "unknown"
            ),
        },
    )
    return Section(
        id="price",
        title="Cost",
        paragraphs=("Estimate from the recorded bytes and list prices. It is not an invoice.",),
        facts=facts,
        tables=(lines,),
    )


def _dollar_range(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "unknown"
    if low is None or high is None or (low == value == high):
        return dollars(value)
    return f"{dollars(value)} ({dollars(low)} to {dollars(high)})"
