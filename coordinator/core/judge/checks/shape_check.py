"""Check that every long part of the window reached the limit, not only the mean."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from broadside.coordinator.core import formatting
from broadside.coordinator.core.judge.checks.check_types import NOTHING, BurstInput, CheckResult
from broadside.coordinator.core.judge.checks.pair_texts import missing_pairs, missing_pairs_step
from broadside.coordinator.core.judge.checks.rate_checks import (
    COMPLETE_RATIO,
    layer_factor,
    limit_of,
)
from broadside.coordinator.core.measure.formulas.steady import Stretch, slowest_stretch, stretch_s
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.resolution import HIDDEN_RATIO, READINGS_A_PART
from broadside.coordinator.core.metrics import layer_label
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import (
    BurstSummary,
    Finding,
    FindingValue,
    Verdict,
    Window,
    note,
    problem,
)
from broadside.exchange.messages import Protocol

# Because of noise, a part of the window may be below the limit by this ratio.
SLOW_RATIO: Final = 0.015
# This number of standard errors is added to the rate from device bins. Receivers and senders count
# their bytes exactly, so nothing is added for them.
SLOW_SIGMAS: Final = 3.0
_STEP = "Read the logs of the device and of the hosts at that time"


def check_shape(inputs: BurstInput) -> CheckResult:
    """Check that every fifth of the window (at least 5 s) reached the limit.

    Formula: lowest mean of a fifth of the window >= limit * (1 - 0.015); for device bins, 3
        standard errors are added to the mean first. The seconds after a collapse are checked in the
        same way.
    Reads: receivers' seconds (if one row covers more than a second, those of the TCP senders, else
        of their hosts' interfaces), senders' seconds, and the bins of the device counter.
    If absent: inconclusive if all readings are longer than half of that part (a note in an import
        of means); the check is skipped without a window.
    """
    limit, window = limit_of(inputs.spec), inputs.burst.window
    if window is None:
        return NOTHING
    findings = [*_ramp(window)]
    if limit is None:
        return CheckResult(Verdict.PASS, tuple(findings))
    decisive = next(_slow_parts(inputs, window, limit), None)
    if decisive is None:
        return CheckResult(Verdict.PASS, tuple(findings))
    is_note = decisive.severity == "note"
    verdict = Verdict.PASS if is_note else Verdict.INCONCLUSIVE
    return CheckResult(verdict, (*findings, decisive))


def _ramp(window: Window) -> Iterator[Finding]:
    if window.ramp_s and window.ramp_bits_per_second is not None:
        yield note(
            "ramp-cut",
            12,
            f"The first {window.ramp_s} of {window.common_s} common seconds are not used, because "
            f"the rate still increased: {formatting.rate(window.ramp_bits_per_second)} of payload.",
            value=FindingValue.time(window.ramp_s),
        )


def _slow_parts(inputs: BurstInput, window: Window, limit: float) -> Iterator[Finding]:
    """Yield the findings in order of precedence. The first one is used."""
    spec, burst, counter = inputs.spec, inputs.burst, inputs.burst.reconciliation
    factor, layer = layer_factor(spec, burst), spec.objective.layer
    least = limit * (1 - SLOW_RATIO)
    below = f"({layer_label(layer)}), below the limit {formatting.rate(limit)}"
    for from_s, length_s, rate in _parts(burst, window):
        if rate * factor < least:
            yield problem(
                "slow-stretch",
                84,
                f"For {length_s} s, starting {from_s} s into the window, the fleet received "
                f"{formatting.rate(rate * factor)} {below}.",
                _STEP,
                FindingValue.rate(rate * factor),
            )
    if counter is not None and counter.slowest_bits_per_second is not None:
        most = counter.slowest_bits_per_second * factor
        noise = SLOW_SIGMAS * (counter.slowest_noise_bits_per_second or 0.0)
        if most + noise * factor < least:
            yield problem(
                "slow-stretch-device",
                84,
                f"For {counter.slowest_s} s the device counter {counter.source} shows at most "
                f"{formatting.rate(most)} {below}. The records of the receivers do not show this.",
                _STEP,
                FindingValue.rate(most),
            )
    slowest = inputs.slowest_sent
    if slowest is not None and slowest.mean * factor < least:
        yield problem(
            "slow-stretch-senders",
            84,
            f"For {slowest.length_s} s, starting {slowest.at} s into the window, the fleet sent "
            f"{formatting.rate(slowest.mean * factor)} {below}. The receivers do not show this.",
            _STEP,
            FindingValue.rate(slowest.mean * factor),
        )
    yield from _not_assessed(inputs, window)
    proven = window.slowest_proven_bits_per_second
    if proven is not None and proven * factor < least:
        yield problem(
            "stretch-unproven",
            79,
            f"Records are missing. Over {window.slowest_s} s the receivers recorded "
            f"{formatting.rate(proven * factor)} {below}, so this part is not proven."
            f"{missing_pairs(burst)}",
            missing_pairs_step(burst),
            FindingValue.rate(proven * factor),
        )


def _not_assessed(inputs: BurstInput, window: Window) -> Iterator[Finding]:
    """Yield a finding if no source shows how the rate changed within the window."""
    counter = inputs.burst.reconciliation
    by_device = counter is not None and counter.slowest_bits_per_second is not None
    if window.reading_s is None or window.slowest_bits_per_second is not None or by_device:
        return
    sentence = (
        f"Changes of the rate within {window.reading_s:g} s are not visible: receivers recorded "
        "means of this length, and neither senders nor the device counter recorded shorter ones. "
        "A part of the window below the limit would not be detected."
    )
    if not inputs.clocks_promised:
        yield note("shape-not-assessed", 30, sentence)
        return
    bin_s = stretch_s(window.window_s) // READINGS_A_PART
    step = f"Set `traffic.interval_s` to 1, or read the device counter in bins of {bin_s} s or less"
    yield problem("shape-not-assessed", 83, sentence, step)


def _parts(burst: BurstSummary, window: Window) -> Iterator[tuple[int, int, float]]:
    """Yield the parts of the window to compare with the limit.

    Each part has its start in the window (s), its length (s) and its rate (bit/s of payload).
    """
    slowest, from_s = window.slowest_bits_per_second, window.slowest_from_s
    if slowest is not None and from_s is not None and window.slowest_s is not None:
        yield from_s, window.slowest_s, slowest
    if burst.cliff is not None:
        at_s = round((burst.cliff.at - window.start_at).total_seconds())
        yield at_s, window.window_s - at_s, burst.cliff.after_bits_per_second


def slowest_sent(spec: RunSpec, burst: BurstMeasurement) -> Stretch | None:
    """Return the slowest part of the window, as the senders recorded it.

    None if too many of their seconds are missing. All received bytes must have been sent. If the
    receivers recorded more, the difference is spread evenly over the missing seconds. The slowest
    part then has the highest rate that is possible.

    Args:
        spec: Specification for the run.
        burst: Burst with the seconds of all flows.

    Returns:
        Start, duration and payload rate of the part. None if too many seconds of the senders are
        missing, or if the window has no such part.
    """
    series, summary = burst.series, burst.summary
    if series.window is None or not summary.flows:
        return None
    if min(flow.sent_pairs_count for flow in summary.flows) < summary.pairs_planned:
        return None
    window = slice(*series.window)
    if float(np.nan_to_num(series.coverage_ratio[window]).min()) < COMPLETE_RATIO:
        return None
    sent = np.nan_to_num(np.sum([flow.sent_bytes for flow in series.flows], axis=0)[window])
    received = np.nan_to_num(series.received_bytes[window])
    if float(sent.sum()) < (1 - HIDDEN_RATIO) * float(received.sum()):
        if spec.traffic.protocol is not Protocol.TCP:
            return None
        known = sent >= (1 - HIDDEN_RATIO) * received
        rest = max(0.0, float(received.sum() - sent[known].sum()))
        sent = np.where(known, sent, rest / max(1, int((~known).sum())))
    return slowest_stretch(sent * 8)
