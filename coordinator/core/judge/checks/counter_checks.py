"""Checks of the device counter: its record, and its agreement with the fleet."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    CheckResult,
    RunInput,
    inconclusive,
)
from broadside.coordinator.core.judge.checks.pair_texts import LISTED_COUNT
from broadside.coordinator.core.judge.reconciliation.residual_causes import (
    OTHER_TRAFFIC,
    UNSEEN_BY_BYTES,
    DeclarationError,
    certain_declaration_error,
)
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.metrics import RECEIVED, layer_label
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import (
    Finding,
    FindingValue,
    Reconciliation,
    ResidualCause,
    Verdict,
    note,
    problem,
)

# The counter needs to cover this time or one bin, whichever is longer, before the first burst.
COUNTER_LEAD_S: Final = 5.0
# Largest lag of a metric, in bins. Azure's metrics have bins of 60 s. Their lag is usually 75 s,
# and 5 min in the worst case.
AFTER_BINS: Final = 5.0
# Bins of this length or longer are from a metric. Shorter bins are from a counter.
COARSE_S: Final = 10.0
_CONFIGURE = "Configure a `byte_counter` (BROADSIDE_TELEMETRY_FILE) before the launch"
_REPEAT = (
    "Find out why the values are missing: for a polled device, check its connection and `poll_s`; "
    "for a system with history whose values arrive late, set a larger `settle_s`. Then run again, "
    "because a stored verdict does not read the source again"
)
_RESTORE = (
    "Correct this source in the telemetry file (BROADSIDE_TELEMETRY_FILE): address, user, "
    "password or certificate. `broadside doctor` on the host of the coordinator reads the source. "
    "Then run again; or remove its `byte_counter`, and launch without a counter"
)
_CONFIGURE_AGAIN = (
    "Run `broadside doctor` on the host of the coordinator, which lists the configured sources. "
    "Add this source with its `byte_counter` to the telemetry file again "
    "(BROADSIDE_TELEMETRY_FILE), then run again; or launch without a counter: the verdict then "
    "rests on the agents alone"
)
UNKNOWN_STEP: Final = "Find traffic that only the firewall or only the fleet counted"
# Next step for each cause of a residual. Traffic of others is subtracted, so it is no cause.
CAUSE_STEPS: Final = {
    "lost-reports": "Run again with all pairs",
    "bypass": "Check that the routes of clients and servers lead through the firewall, and that "
    "`byte_counter` in the telemetry file counts the interfaces and the direction of this "
    "traffic. Correct what is wrong",
    "duplicate-counting": "Use a counter of one interface or of one direction",
    "metric-declaration": "Check the unit, aggregation and direction of the metric in "
    "`byte_counter` (import: `--metric`)",
    "unknown-bins": _REPEAT,
}
_KEEP = "Record the device counter from some minutes before the first burst to some after the last"


def _all_of(findings: Iterator[Finding]) -> CheckResult:
    """Return an inconclusive result if there are findings."""
    listed = tuple(findings)
    return CheckResult(Verdict.INCONCLUSIVE if listed else Verdict.PASS, listed)


# Record of the counter


def check_counter_record(inputs: RunInput) -> CheckResult:
    """Check that the record of the device counter is as complete as promised at launch.

    Formula: the answer of the source is complete; time covered before the first burst >= max(5 s,
        one bin); known share of each burst's bytes >= the share promised at launch.
    Reads: the bins of the device counter.
    If absent: inconclusive if it was promised.
    """
    return _all_of(_record_findings(inputs))


def _record_findings(inputs: RunInput) -> Iterator[Finding]:
    promise, device_counter = inputs.plan.ledger, inputs.device_counter
    if promise is not None and (device_counter is None or not len(device_counter)):
        why = (
            "when it was judged, the coordinator had no source with a byte_counter."
            if device_counter is None
            else "it returned no data."
            + (_source_report(device_counter.notes) or " It gave no reason.")
        )
        yield problem(
            "device-counter-missing",
            105,
            f"The run was launched with the device counter {promise.source}, but {why}",
            _CONFIGURE_AGAIN if device_counter is None else _RESTORE,
        )
        return
    if device_counter is None:
        return
    if device_counter.partial is not None:
        yield problem(
            "device-counter-partial",
            94,
            f"The device counter {device_counter.source} returned incomplete data "
            f"({device_counter.partial}). Its bytes are not used.",
            "Repair the source so that it returns all its data, then run again",
        )
    yield from _late_counter(inputs.plan, device_counter)
    known = {
        burst.index + 1: 1 - counter.unknown_ratio
        for burst in inputs.bursts
        if (counter := burst.reconciliation) is not None
    }
    least = 0.0 if promise is None else promise.coverage_min_ratio
    thin = [number for number, ratio in known.items() if ratio < least]
    if promise is not None and thin:
        worst = min(thin, key=lambda number: known[number])
        yield problem(
            "device-counter-sparse",
            93,
            f"Burst {worst}: the device counter {promise.source} covers "
            f"{formatting.ratio(known[worst], 1)} of the fleet's bytes; "
            f"{formatting.ratio(least, 0)} are required. {len(thin)} of {len(inputs.bursts)} "
            f"bursts are below this limit.{_source_report(device_counter.notes)}",
            _REPEAT,
        )


def _source_report(notes: Sequence[str]) -> str:
    """Return a sentence with the reports of a counter's source, or an empty text."""
    if not notes:
        return ""
    text = "; ".join(notes[:LISTED_COUNT])
    return f" The source reports: {text[:1].upper()}{text[1:].rstrip('.')}."


def _late_counter(plan: Plan, device_counter: CounterRecord) -> Iterator[Finding]:
    """Yield a finding if the counter does not start early enough before the first burst.

    Without bins before the burst, the counter cannot show if other traffic ended at its start.
    """
    first_s = plan.bursts[0].planned_start_at.timestamp()
    before = (device_counter.end_s <= first_s) & ~np.isnan(device_counter.bytes)
    known_s = float((device_counter.end_s - device_counter.start_s)[before].sum())
    least_s = max(COUNTER_LEAD_S, device_counter.grain_s)
    if len(device_counter) and known_s + device_counter.grain_s / 2 < least_s:
        yield problem(
            "device-counter-late",
            91,
            f"The device counter {device_counter.source} covers {formatting.number(known_s, 3)} s "
            f"before the first burst; {least_s:g} s are required. Other traffic that ended when "
            "the run started would not be detected.",
            _KEEP,
        )


def check_metric_aggregation(inputs: RunInput) -> CheckResult:
    """Check that bytes can be computed from the device metric.

    Formula: its declared aggregation is an average or a total.
    Reads: the declaration of the device metric.
    If absent: the check is skipped without a counter.
    """
    device_counter = inputs.device_counter
    if device_counter is None or device_counter.extreme is None:
        return NOTHING
    return inconclusive(
        "metric-aggregation",
        88,
        f"The values of {device_counter.source} are the {device_counter.extreme} of the samples in "
        "each bin. Bytes cannot be computed from them, so the counter cannot be compared with the "
        "fleet.",
        "Export the average or the total of each bin, and declare it (import: `--metric "
        "aggregation=mean`; device: `aggregation` of the source)",
    )


def check_reference_record(inputs: RunInput) -> CheckResult:
    """Check that the counter of a reference run ends late enough to show that nothing crossed.

    Formula: the last known bin ends >= 5 bins after the last burst (one bin, of bins under 10 s).
    Reads: the bins of the device counter.
    If absent: inconclusive.
    """
    return _all_of(_reference_findings(inputs.plan, inputs.device_counter))


def _reference_findings(plan: Plan, device_counter: CounterRecord | None) -> Iterator[Finding]:
    """Yield a finding if the counter does not continue for the longest possible lag.

    If a run does not cross the device, its counter does not rise, and the lag cannot be estimated.
    """
    if not plan.spec.bypasses_device:
        return
    if device_counter is None:
        if plan.ledger is None:
            yield problem(
                "reference-unwatched",
                103,
                "The run should bypass the firewall (device.path=bypass), but no device counter "
                "was recorded. Nothing proves the bypass, so the run is not a reference.",
                _CONFIGURE,
            )
        return
    standby_s = (
        AFTER_BINS * device_counter.grain_s
        if device_counter.grain_s >= COARSE_S
        else device_counter.grain_s
    )
    ends_s = plan.bursts[-1].planned_end_at.timestamp()
    known = device_counter.end_s[~np.isnan(device_counter.bytes)]
    last_s = float(known.max()) if len(known) else float("-inf")
    if last_s < ends_s + standby_s:
        yield problem(
            "reference-short",
            92,
            f"The device counter {device_counter.source} must continue for {standby_s:g} s after "
            "the last burst, because its bins may be late by this time. It ends earlier, so it "
            "does not prove the bypass.",
            _REPEAT,
        )


# Agreement with the fleet


def check_residual(inputs: BurstInput) -> CheckResult:
    """Check that the bytes of the fleet and of the device counter agree.

    Formula: the larger of abs(lower end) and abs(upper end) of the residual's interval <=
        objective.residual_max_ratio. The interval includes bytes that missing pairs may have sent
        and bins without a counter value.
    Reads: the device counter and its prediction from the records of the fleet.
    If absent: skipped; the check counter-record handles a missing counter.
    """
    burst, counter = inputs.burst, inputs.burst.reconciliation
    if counter is None:
        return NOTHING
    if counter.residual_ratio is None:
        return _no_residual(inputs, counter)
    if counter.rejected_bins_count:
        return inconclusive(
            "device-counter-invalid",
            89,
            f"{counter.rejected_bins_count} bins of the device counter {counter.source} have "
            "impossible values: negative, infinite, reversed or repeated.",
            "Find out why the metric has these values, then run again",
            FindingValue.count(counter.rejected_bins_count),
        )
    if counter.bypassed:
        return NOTHING
    wrong = certain_declaration_error(counter, [burst])
    if wrong is not None:
        return _declared_wrongly(counter, wrong, 1 + counter.residual_ratio)
    limit = inputs.spec.objective.residual_max_ratio
    unseen_s = burst.completeness.planned_s - burst.completeness.measured_s
    received = RECEIVED.of_burst(burst) or 0.0
    fill = (
        (burst.peak_pair_bits_per_second or 0.0) * unseen_s / max(1, burst.duration_s) / received
        if received > 0
        else 0.0
    )
    low, high = counter.residual_ends
    reach = max(abs(low - fill), abs(high)) + counter.unknown_ratio
    measured = (
        f"residual {formatting.signed_ratio(counter.residual_ratio)}, 95 % interval "
        f"{formatting.signed_ratio(low)} to {formatting.signed_ratio(high)}; "
        f"{formatting.size(counter.expected_bytes)} expected, {layer_label(counter.layer)}"
    )
    value = FindingValue.residual(counter.residual_ratio)
    if counter.lag_s is not None and reach <= limit:
        return CheckResult(
            Verdict.PASS,
            (
                note("reconciled", 40, f"Device counter and fleet agree: {measured}.", value=value),
                note("unseen-by-bytes", 11, UNSEEN_BY_BYTES),
            ),
        )
    allowed = f"{formatting.ratio(limit, 1)} are allowed"
    if abs(counter.residual_ratio) <= limit:
        sentence = (
            f"Device counter and fleet may differ by up to {formatting.ratio(reach, 1)}, because "
            f"of uncertainty, missing pairs or unknown bins ({measured}). {allowed}."
        )
    else:
        side = "more" if counter.residual_ratio > 0 else "less"
        sentence = (
            f"The device counter shows {formatting.ratio(abs(counter.residual_ratio), 1)} {side} "
            f"than the fleet ({measured}). {allowed}.{_first_cause(counter)}"
        )
    return inconclusive("residual", 88, sentence, _residual_step(counter, limit), value)


def _first_cause(counter: Reconciliation) -> str:
    """Return the cause that explains most of the residual as a sentence, or an empty text."""
    cause = next((cause for cause in counter.causes if cause.id in CAUSE_STEPS), None)
    named = filter(None, (_other_traffic(counter), cause))
    return "".join(f" {one.sentence}." for one in named)


def _other_traffic(counter: Reconciliation) -> ResidualCause | None:
    """Return the other traffic that was subtracted, or None without any."""
    return next((cause for cause in counter.causes if cause.id == OTHER_TRAFFIC), None)


def _no_residual(inputs: BurstInput, counter: Reconciliation) -> CheckResult:
    """Return the result if the counter cannot be compared with the fleet."""
    if counter.lags_scale_ratio is not None:
        wrong = certain_declaration_error(counter, [inputs.burst])
        if wrong is not None:
            return _declared_wrongly(counter, wrong, counter.lags_scale_ratio)
    if counter.baseline_how is not None and counter.lag_s is None:
        return inconclusive(
            "lag-unknown",
            76,
            f"The lag of the device counter {counter.source} (bins of {counter.grain_s:g} s) is "
            "unknown: the traffic of the fleet is not visible in it, or matches at several lags. "
            "The bytes cannot be compared.",
            "Record the counter from before the first burst to after the last one, use shorter "
            "bins, or leave time between bursts",
        )
    return inconclusive(
        "device-counter-empty",
        75,
        f"The device counter {counter.source} has no value for this burst.",
        _REPEAT,
    )


def _declared_wrongly(
    counter: Reconciliation, wrong: DeclarationError, ratio: float
) -> CheckResult:
    return inconclusive(
        "metric-declaration",
        88,
        f"The device counter {counter.source} has {formatting.number(ratio, 3)} times the bytes "
        f"of the fleet. {wrong.describe()}.",
        f"Check the meaning of the metric's values and declare {wrong.fix} (import: option "
        "`--metric`; device: table `byte_counter` of the source), then measure again",
        FindingValue(value=ratio, text=f"{formatting.number(ratio, 3)} times", worst="high"),
    )


def _residual_step(counter: Reconciliation, limit: float) -> str:
    """Return what you can do to explain the residual or to reduce its interval."""
    if abs(counter.residual_ratio or 0.0) > limit:
        steps = (CAUSE_STEPS[cause.id] for cause in counter.causes if cause.id in CAUSE_STEPS)
        step = next(steps, UNKNOWN_STEP)
        other = _other_traffic(counter)
        if other is None or other.share_ratio < abs(counter.residual_ratio or 0.0):
            return step
        later = step[:1].lower() + step[1:]
        return f"Run again without the other traffic. If the counters still differ, {later}"
    if counter.layer_ratio or counter.overhead_how == "assumed":
        return (
            "Declare the layer and the segment size of the metric (import: `--metric layer=ip "
            "--metric mss_bytes=1448`; device: `layer` and `mss_bytes` of `byte_counter`)"
        )
    return "Reduce the uncertainty: shorter bins, no other traffic before and after, more bursts"


def check_device_fit(inputs: BurstInput) -> CheckResult:
    """Check that the device counter changes over time as the records of the fleet predict.

    Formula: largest distance between the cumulative curves of counted and predicted bytes, scaled
        to the same sum, <= the limit of a Brownian bridge for an error rate of 0.1 %, plus the
        errors of lag, clocks and reading length.
    Reads: the device counter, bin by bin, and the receivers' seconds.
    If absent: skipped; the check residual handles an unknown lag.
    """
    counter = inputs.burst.reconciliation
    if counter is None or counter.fit_distance_ratio is None or counter.fit_limit_ratio is None:
        return NOTHING
    if counter.fit_distance_ratio <= counter.fit_limit_ratio:
        return NOTHING
    return inconclusive(
        "device-shape",
        86,
        f"The device counter {counter.source} has "
        f"{formatting.ratio(counter.fit_distance_ratio, 1)} of the bytes at other times than the "
        "records of the fleet. Clock errors, lag and counter noise explain at most "
        f"{formatting.ratio(counter.fit_limit_ratio, 1)}.",
        "Compare the clocks of the hosts in groups, and look for other traffic through the device",
        FindingValue.share(counter.fit_distance_ratio, "high"),
    )


def check_bypass(inputs: BurstInput) -> CheckResult:
    """Check that the traffic of a reference run (device.path=bypass) did not cross the device.

    Formula: (counted - idle) / fleet bytes + h + share of unknown bins <=
        objective.residual_max_ratio.
    Reads: the device counter, with its idle level before and after the bursts.
    If absent: inconclusive.
    """
    limit, counter = inputs.spec.objective.residual_max_ratio, inputs.burst.reconciliation
    if counter is None or not counter.bypassed or counter.residual_ratio is None:
        return NOTHING
    if counter.rejected_bins_count:
        return NOTHING
    if counter.baseline_how != "quiet":
        return inconclusive(
            "idle-unknown",
            87,
            f"The device counter {counter.source} has no bins without traffic of the run, so its "
            "idle level is unknown and the bypass is not proven.",
            _KEEP,
        )
    value = FindingValue.residual(counter.residual_ratio)
    uncertainty = counter.residual_uncertainty_ratio or 0.0
    measured = (
        f"The device counter {counter.source} shows "
        f"{formatting.signed_ratio(counter.residual_ratio)} (+-{formatting.ratio(uncertainty)}) "
        f"of the fleet's {formatting.size(counter.expected_bytes)} above its idle level; "
        f"{formatting.ratio(limit, 1)} are allowed."
    )
    if max(0.0, counter.residual_ratio) + uncertainty + counter.unknown_ratio <= limit:
        sentence = f"The traffic bypassed the firewall, as planned. {measured}"
        return CheckResult(Verdict.PASS, (note("bypassed", 40, sentence, value=value),))
    if counter.unknown_ratio > limit:
        measured += (
            f" {formatting.ratio(counter.unknown_ratio, 1)} of the bytes are in unknown bins."
        )
    return inconclusive(
        "not-bypassed",
        88,
        f"The run should bypass the firewall (device.path=bypass). {measured} The run is not a "
        "reference.",
        "Remove the firewall from the route, or launch without `device.path=bypass`",
        value,
    )
