"""Check that the counter record of a reference run is long enough to show a bypass."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from broadside.coordinator.core.judge.checks.check_types import Check, Result, RunInput, Stage
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.plan.spec import Plan
from broadside.coordinator.core.summary import Finding, Verdict, problem

# Largest lag of a metric, in bins. Azure's metrics have bins of 60 s. Their lag is usually 75 s,
# and 5 min in the worst case.
AFTER_BINS: Final = 5.0
# Bins of this length or longer are from a metric. Shorter bins are from a counter.
COARSE_S: Final = 10.0


def _evaluate(given: RunInput) -> Result:
    found = tuple(_findings(given.plan, given.ledger))
    return Result(Verdict.INCONCLUSIVE if found else Verdict.PASS, found)


def _findings(plan: Plan, ledger: FirewallLedger | None) -> Iterator[Finding]:
    if plan.spec.bypasses_device and ledger is not None:
        yield from _short(plan, ledger)
    elif plan.spec.bypasses_device and plan.ledger is None:
        yield problem(
            id="reference-unwatched",
            weight=103,
            sentence="the run was to pass the firewall by (device.path=bypass), and no ledger of "
            "the firewall was kept: nothing shows that it did, so it is no reference",
            next_step="configure a firewall metric source (BROADSIDE_LEDGER) before the launch",
        )


def _short(plan: Plan, ledger: FirewallLedger) -> Iterator[Finding]:
    """Yield a finding if the counter ends too early to show that no traffic crossed the device.

    If a run does not cross the device, its counter does not rise, and the lag cannot be estimated.
    The counter must therefore continue after the last burst, for the longest lag that is possible
    with this bin length.
    """
    spare_s = AFTER_BINS * ledger.grain_s if ledger.grain_s >= COARSE_S else ledger.grain_s
    ends_s = plan.bursts[-1].planned_end_at.timestamp()
    known = ledger.end_s[~np.isnan(ledger.bytes)]
    last_s = float(known.max()) if len(known) else float("-inf")
    if last_s < ends_s + spare_s:
        yield problem(
            id="reference-short",
            weight=92,
            sentence=f"the ledger {ledger.source} must go on for {spare_s:g} s after the last "
            "burst, for its bins may lag by so much, and it ends before: that nothing crossed the "
            "firewall is not shown",
            next_step="wait until the metric has settled, then recompute the verdict",
        )


REFERENCE_RECORD: Final = Check(
    id="reference-record",
    stage=Stage.EVIDENCE,
    question="Does a reference run's device counter end late enough to show that nothing crossed?",
    formula="the last known bin ends >= 5 bins after the last burst (one bin, of bins under 10 s)",
    reads="the device counter's bins",
    when_absent="inconclusive",
    findings=("reference-short", "reference-unwatched"),
    evaluate=_evaluate,
)
