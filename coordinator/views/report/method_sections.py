"""Report sections about method, deviations from RFC 9411 and recomputation. Pure."""

from collections.abc import Iterator

from broadside.coordinator.core.formatting import ratio, time
from broadside.coordinator.core.judge.bottleneck.device_causes import FLAT_COV_RATIO
from broadside.coordinator.core.measure.aggregate import SUSTAIN_S
from broadside.coordinator.core.measure.completeness import PAIR_FLOOR_RATIO
from broadside.coordinator.core.measure.formulas.steady import RAMP_MAX_RATIO, RAMP_MAX_S
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.thresholds import describe_thresholds
from broadside.coordinator.views.report.document import TEXT_ONLY, ReportTable, Section
from broadside.coordinator.views.report.stored_source import Source
from broadside.exchange.engines import find, measures, ramps_s


def method_section(source: Source) -> Section:
    """Return a section that explains how the metrics were measured."""
    return Section(id="method", title="Method", paragraphs=tuple(_method(source)))


def _method(source: Source) -> Iterator[str]:
    spec, bursts = source.plan.spec, source.summary.bursts
    yield _start(source)
    if source.means_only:
        yield (
            "Rate: the sum of the pairs' mean rates from the imported files. Seconds are not "
            "recorded."
        )
        yield "Window: the time that all pairs have in common. No ramp is removed."
    else:
        ramps = [burst.window.ramp_s for burst in bursts if burst.window is not None]
        ramp = f"{min(ramps)} to {max(ramps)} s" if ramps else "none"
        yield (
            "Rate: the bytes that the receivers counted. Intervals of each receiver are resampled "
            "to UTC seconds by interpolating cumulative bytes, so no byte is lost or counted "
            "twice. Without a receiver's record, the sender's record is used; the share of bytes "
            "that receivers confirm is a separate metric. Missing seconds of a pair count with its "
            "mean."
        )
        yield (
            "Window: the seconds that all measured pairs have in common, inside the planned burst, "
            f"without the ramp at the start ({ramp}; at most {ratio(RAMP_MAX_RATIO, 0)} and "
            f"{RAMP_MAX_S} s). The ramp is determined by the MSER rule (White 1997; White, Cobb "
            "and Spratt 2000)."
        )
    header = bursts[0].header_how if bursts else "unknown"
    is_assumed = any(burst.headers_assumed for burst in bursts)
    yield (
        f"Layer: {_layer(source)}"
        + (". " if spec.objective.target_bits_per_second else "; no target was set. ")
        + f"Payload is converted to the IP layer with the header ratio of each burst ({header}"
        + ("; assumed, because no segment size was recorded)." if is_assumed else ").")
    )
    yield (
        f"Completeness: a pair is measured if {ratio(PAIR_FLOOR_RATIO, 0)} of its seconds are "
        f"recorded and its first data is within {time(spec.late_after_s)} of the planned start. "
        f"Below {ratio(spec.objective.coverage_floor_ratio, 1)} of the planned pair-seconds, the "
        "verdict cannot be a pass. Missing data is never zero: a burst with missing data passes "
        "only if it would pass for every window that is possible with the missing data."
    )
    yield _rule(source)


def _layer(source: Source) -> str:
    return "the IP layer" if source.plan.spec.objective.layer is Layer.IP else "payload"


def _rule(source: Source) -> str:
    """Return the conditions for a pass, or for `measured` if no target was set."""
    spec = source.plan.spec
    objective, thresholds = spec.objective, list(describe_thresholds(spec.objective))
    if objective.target_bits_per_second:
        tolerance = ratio(objective.tolerance_ratio, 0)
        thresholds = [
            (
                "the complete intervals of the received rate and of the device counter's rate "
                f"above the target minus {tolerance}"
            ),
            "no sustained part of the window below that",
            *thresholds,
        ]
    limit = ratio(objective.residual_max_ratio, 1)
    residual = (
        f"a device counter that shows at most {limit} of the fleet's bytes"
        if spec.bypasses_device
        else f"if a device counter was read, a residual that is completely within {limit}"
    )
    intervals = (
        "from the variation between the bursts"
        if source.means_only
        else "from the seconds of each burst and their autocorrelation, and from the variation "
        "between the bursts, with the clock uncertainty added"
    )
    conditions = "; ".join(("the completeness", *thresholds, "consistent records", residual))
    stop = (
        " A burst ends when its rate is certainly above or below the limit, after at least "
        f"{spec.sustain_least_s} s; its interval then includes a confidence sequence."
        if objective.stop
        else ""
    )
    subject = (
        "a pass"
        if thresholds or spec.bypasses_device
        else "the result `measured` (no target was set, so a pass is not possible)"
    )
    return (
        f"Verdict: {subject} needs {conditions}. Each burst must meet these conditions. Intervals "
        f"are 95 %, {intervals}.{stop}"
    )


def _traffic(source: Source) -> str:
    """Return how the engine generated the traffic, in the engine's own description."""
    engine = find(source.plan.traffic.engine)
    if source.means_only or engine is None:
        return "The generation of the traffic is unknown."
    texts = [engine.statement(source.plan.traffic)]
    for share in source.plan.spec.mix:
        other = find(share.traffic.engine)
        if other is not None:
            texts.append(f"{share.pairs_count} pairs differ: {other.statement(share.traffic)}")
    return " ".join(texts)


def _start(source: Source) -> str:
    spec, engine = source.plan.spec, find(source.plan.traffic.engine)
    if source.imported:
        return (
            "The results were measured by other tools and imported. Values that the files do not "
            f"contain are unknown. {_traffic(source)}"
        )
    start = (
        "The engine is executed at that time. The start error shows the delay of the first data."
    )
    if engine is not None and engine.waits_itself:
        start = (
            "The engine waits for that time itself. The start error shows the delay of the first "
            "attempt."
        )
    elif engine is not None and engine.gated:
        start = (
            "The connections are opened before that time and released by a start gate, or the "
            "engine is executed at that time (see the start method below)."
        )
    return (
        f"{_traffic(source)} {spec.pairs_count} pairs of a client and a server ran "
        f"{spec.bursts_count} bursts of {spec.burst_s} s. All pairs of a burst start at the same "
        f"planned time. {start}"
    )


def _load_profile(source: Source) -> str:
    spec = source.plan.spec
    up_s, down_s = ramps_s(spec.traffic)
    if not up_s and not down_s:
        return (
            "All pairs start and stop together. The ramp is removed from the data, and there is no "
            "ramp-down."
        )
    return (
        f"Ramp-up {up_s} s, sustain {spec.burst_s - up_s - down_s} s, ramp-down {down_s} s. All "
        "pairs start and stop together. Only the sustain phase is judged."
    )


def deviations_section(source: Source) -> Section:
    """Return a section with deviations from RFC 9411 by topic."""
    bursts = source.summary.bursts
    windows = [burst.window.window_s for burst in bursts if burst.window is not None]
    covs = [
        flow.second_cov_ratio
        for burst in bursts
        for flow in burst.flows
        if flow.second_cov_ratio is not None
    ]
    spec = source.plan.spec
    measured = frozenset() if source.means_only else measures(source.plan.traffic)
    has_transactions = "success" in measured and "connections" not in measured
    reference = spec.labels.get("reference") or spec.device.get("reference")
    shortest = f"NOT met: the shortest window is {min(windows, default=0)} s"
    not_measured = (
        "TLS handshakes and transactions are not measured."
        if "connections" in measured
        else "Connections per second, concurrent connections and TLS handshakes are not measured."
        if has_transactions
        else "Connections per second, concurrent connections, TLS handshakes and transactions are "
        "not measured."
    )
    rows = (
        (
            "Traffic load profile",
            "init, ramp-up, sustain, ramp-down, collection",
            "unknown (imported)" if source.imported else _load_profile(source),
        ),
        (
            "Sustain phase",
            f"at least {SUSTAIN_S} s recommended",
            "met" if windows and min(windows) >= SUSTAIN_S else shortest,
        ),
        (
            "Traffic mix",
            "application traffic mixes, HTTP or HTTPS objects of defined sizes",
            f"{_traffic(source)} {not_measured}"
            + (" Failed answers and times to the last byte are." if has_transactions else ""),
        ),
        (
            "Inspected throughput",
            "bit/s of examined and allowed traffic, with its layer",
            (
                f"Received rate at {_layer(source)}. The reconciliation shows how much of it "
                "crossed the device."
            ),
        ),
        (
            "Constant rate",
            f"deviation below {ratio(FLAT_COV_RATIO, 0)}",
            f"largest CoV over seconds {ratio(max(covs))}: "
            + ("met" if max(covs) < FLAT_COV_RATIO else "NOT met")
            if covs
            else "unknown",
        ),
        (
            "Failed transactions",
            "below 0.001 %",
            "see Results and Findings"
            if has_transactions
            else "not measured; failed pairs are listed in Completeness",
        ),
        (
            "Reference test",
            "rate of the test bed without the device is higher",
            f"label: {reference}" if reference else "NOT shown by this run",
        ),
        (
            "Device features and rules",
            "recommended features and rule sets",
            "as stated at launch; see Device under test",
        ),
    )
    return Section(
        id="deviations",
        title="Deviations from RFC 9411",
        paragraphs=(
            (
                "RFC 9411 defines benchmarks of network security devices. This run uses its "
                "sustain phase and inspected throughput. The table lists the deviations. A rate "
                "with loss or retransmissions is not a throughput according to RFC 2544 (zero "
                "loss)."
            ),
        ),
        tables=(
            ReportTable(
                columns=("topic", "RFC 9411", "this run"), rows=rows, numeric_from=TEXT_ONLY
            ),
        ),
    )


def recompute_section(source: Source) -> Section:
    """Return a section that explains how to recompute the metrics and check the summary's hash."""
    run_id = source.plan.run_id
    return Section(
        id="recompute",
        title="Recompute",
        paragraphs=(
            (
                "All metrics are computed from stored records. The first command computes the "
                "summary again and compares it with the stored one byte by byte. The hash below is "
                "the hash of these bytes."
            ),
        ),
        facts={"SHA-256 of the stored summary": source.summary_sha256},
        code=(
            f"broadside verdict {run_id} --recompute",
            f"broadside export {run_id} --file {run_id}.json",
            f"broadside raw {run_id} pair-001 --burst 1",
        ),
    )
