"""Check that the bytes of the fleet agree with the device counter."""

from typing import Final

from broadside.coordinator.core import words
from broadside.coordinator.core.figures import RECEIVED
from broadside.coordinator.core.judge.checks.check_types import (
    NOTHING,
    BurstInput,
    Check,
    Result,
    Stage,
    inconclusive,
)
from broadside.coordinator.core.judge.declaration_error import (
    Misreading,
    misreading,
    rates_of,
    said,
)
from broadside.coordinator.core.judge.residual_cause import UNSEEN_BY_BYTES
from broadside.coordinator.core.summary import Reconciliation, Verdict, note


def _evaluate(given: BurstInput) -> Result:
    spec, burst = given.spec, given.burst
    held = burst.reconciliation
    # A missing counter is reported by the check ``counter-record``.
    if held is None:
        return NOTHING
    if held.residual_ratio is None and held.lags_scale_ratio is not None:
        wrong = misreading(held, rates_of([burst]))
        if wrong is not None and wrong.is_sure:
            return _misread(held, wrong, held.lags_scale_ratio)
    if held.residual_ratio is None and held.baseline_how is not None and held.lag_s is None:
        return inconclusive(
            id="lag-unknown",
            weight=76,
            sentence=f"how far the ledger {held.source} runs behind is not told by its bins of "
            f"{held.grain_s:g} s: the fleet's ups and downs are not in it, or in more than one "
            "place, so the ledgers cannot be held together",
            next_step="keep the ledger from before the first burst to after the last one, use "
            "finer bins, or leave time between bursts",
        )
    if held.residual_ratio is None:
        return inconclusive(
            id="ledger-empty",
            weight=75,
            sentence=f"the ledger {held.source} knows no bin of this burst",
            next_step="wait until the metric has settled, then recompute the verdict",
        )
    if held.rejected_bins_count:
        return inconclusive(
            id="ledger-untrue",
            weight=89,
            sentence=f"{held.rejected_bins_count} bins of the ledger {held.source} hold what "
            "no device can have counted: negative, infinite, reversed or repeated",
            next_step="find out why the metric says so, then read it again",
        )
    if held.bypassed:
        return NOTHING
    limit = spec.objective.residual_max_ratio
    wrong = misreading(held, rates_of([burst]))
    if wrong is not None and wrong.is_sure:
        return _misread(held, wrong, 1 + held.residual_ratio)
    planned = burst.completeness.planned_s
    unseen_s = planned - burst.completeness.measured_s
    received = RECEIVED.of_burst(burst) or 0.0
    fill = (
        (burst.peak_pair_bits_per_second or 0.0) * unseen_s / max(1, burst.duration_s) / received
        if received > 0
        else 0.0
    )
    low, high = held.residual_ends
    reach = max(abs(low - fill), abs(high)) + held.unknown_ratio
    differ = (
        "the firewall's ledger and the fleet's differ by "
        f"{words.signed_ratio(held.residual_ratio)} "
        f"({words.signed_ratio(low)} to {words.signed_ratio(high)} at 95 %) of "
        f"{words.size(held.expected_bytes)} at its layer"
    )
    if held.lag_s is None or reach > limit:
        return inconclusive(
            id="residual",
            weight=88,
            sentence=f"{differ}, more than the {words.ratio(limit, 1)} allowed"
            + (
                f" (up to {words.ratio(reach, 1)} with what is unsure, missing or not known yet)"
                if abs(held.residual_ratio) <= limit
                else ""
            ),
            next_step=_next_step(held, limit),
        )
    return Result(
        Verdict.PASS,
        (
            note(
                id="reconciled",
                weight=40,
                sentence=differ,
            ),
            note(
                id="unseen-by-bytes",
                weight=11,
                sentence=UNSEEN_BY_BYTES,
            ),
        ),
    )


def _misread(held: Reconciliation, wrong: Misreading, ratio: float) -> Result:
    """Return the result for a metric with a wrong declaration."""
    return inconclusive(
        id="metric-declaration",
        weight=88,
        sentence=f"the device counter {held.source} shows "
        f"{words.number(ratio, 3)} times the fleet's bytes: {said(wrong)}",
        next_step=f"check what the metric's figures mean, and declare {wrong.fix} (see "
        "docs/imports.md and docs/settings.md), then measure it again",
    )


def _next_step(held: Reconciliation, limit: float) -> str:
    """Return what the user can do to explain the residual or to reduce its interval."""
    if abs(held.residual_ratio or 0.0) > limit:
        return "find out what the firewall saw and the fleet did not, or the reverse"
    if held.layer_ratio or held.overhead_how == "assumed":
        return (
            "declare the metric's layer and the segment size (import: --metric layer=ip --metric "
            "mss_bytes=1448; device counters: BROADSIDE_LEDGER_LAYER, BROADSIDE_LEDGER_MSS_BYTES)"
        )
    return "make the ledger tell more: finer bins, quiet before and after, more bursts"


RESIDUAL: Final = Check(
    id="residual",
    stage=Stage.EVIDENCE,
    question="Do the bytes of the fleet and of the device counter agree?",
    formula="the larger of abs(lower end) and abs(upper end) of the residual's interval <= "
    "objective.residual_max_ratio. The interval includes bytes that missing pairs may have sent "
    "and bins without a counter value",
    reads="the device counter and its prediction from the fleet's records",
    when_absent="skipped; the check counter-record handles a missing counter",
    findings=(
        "lag-unknown",
        "ledger-empty",
        "ledger-untrue",
        "metric-declaration",
        "residual",
        "reconciled",
        "unseen-by-bytes",
    ),
    evaluate=_evaluate,
)
