"""What a plan promised as evidence, and is not there: then nothing is concluded."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from coordinator.core.measure.evidence import FirewallLedger
from coordinator.core.plan.spec import Plan
from coordinator.core.summary import BurstSummary, Finding, problem

AFTER_BINS: Final = 5.0  # bins by which a metric may lag: Azure's 75 s at 60 s, and 5 min at worst
COARSE_S: Final = 10.0  # s a bin: from here on it is a metric; finer ones are counters


def broken_promises(
    plan: Plan, ledger: FirewallLedger | None, bursts: Sequence[BurstSummary]
) -> Iterator[Finding]:
    """Why the run as a whole proves nothing, however its bursts went.

    Evidence that was promised at launch and is absent makes no smaller claim: it makes none.
    """
    if not plan.is_intact:
        yield problem(
            id="plan-altered",
            weight=106,
            sentence="the stored plan is not the one that was sealed at launch: its SHA-256 is "
            f"{plan.digest()[:16]}..., the seal says {(plan.seal_sha256 or '')[:16]}...",
            next_step="find out who wrote to the table; launch again",
        )
    if plan.ledger is not None and ledger is None:
        yield problem(
            id="ledger-absent",
            weight=105,
            sentence=f"the firewall's own count ({plan.ledger.source}) was to vouch for this run, "
            "and there is none",
            next_step="make the source answer again and recompute, or launch without a ledger",
        )
    if plan.spec.bypasses_device and ledger is not None:
        yield from _short_reference(plan, ledger)
    if plan.ledger is not None and ledger is not None:
        least = plan.ledger.coverage_min_ratio
        thin = {
            burst.index + 1: 1 - held.unknown_ratio
            for burst in bursts
            if (held := burst.reconciliation) is not None and 1 - held.unknown_ratio < least
        }
        if thin:
            worst = min(thin, key=lambda number: thin[number])
            yield problem(
                id="ledger-thin",
                weight=93,
                sentence=f"the firewall's own count ({plan.ledger.source}) was to know {least:.0%} "
                f"of each burst's bytes: of {len(thin)} of {len(bursts)} bursts it knows less, of "
                f"burst {worst} {thin[worst]:.1%}",
                next_step="wait until the metric has settled, then recompute the verdict",
            )


def _short_reference(plan: Plan, ledger: FirewallLedger) -> Iterator[Finding]:
    """A ledger that shows nothing must have gone on long enough to show something.

    A run that passed the device by leaves no rise to tell the lag from, so the ledger must go on
    for as long as a metric of its grain may lag.
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


def fleet_alone(plan: Plan, ledger: FirewallLedger | None) -> Iterator[Finding]:
    """Said first of a run that promised no ledger and has none."""
    if plan.ledger is None and ledger is None:
        where = "passed the firewall by" if plan.spec.bypasses_device else "crossed the firewall"
        yield Finding(
            id="fleet-alone",
            kind="context",
            severity="note",
            weight=104,
            sentence="nothing but the fleet vouches for this run: no firewall ledger was promised, "
            f"so that the traffic {where} is not shown",
            next_step="configure a firewall metric source (BROADSIDE_LEDGER) before the launch",
        )
