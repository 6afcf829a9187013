"""What a plan promised as evidence, and is not there: then nothing is concluded."""

from collections.abc import Iterator, Sequence

from coordinator.core.judge.finding import Finding
from coordinator.core.judge.summary import BurstSummary
from coordinator.core.measure.evidence import FirewallLedger
from coordinator.core.plan.spec import Plan


def broken_promises(
    plan: Plan, ledger: FirewallLedger | None, bursts: Sequence[BurstSummary]
) -> Iterator[Finding]:
    """Why the run as a whole proves nothing, however its bursts went.

    Evidence that was promised at launch and is absent makes no smaller claim: it makes none.
    """
    if not plan.is_intact:
        yield Finding(
            id="plan-altered",
            kind="verdict",
            severity="problem",
            weight=106,
            sentence="the stored plan is not the one that was sealed at launch: its SHA-256 is "
            f"{plan.digest()[:16]}..., the seal says {(plan.seal_sha256 or '')[:16]}...",
            next_step="find out who wrote to the table; launch again",
        )
    if plan.ledger is not None and ledger is None:
        yield Finding(
            id="ledger-absent",
            kind="verdict",
            severity="problem",
            weight=105,
            sentence=f"the firewall's own count ({plan.ledger.source}) was to vouch for this run, "
            "and there is none",
            next_step="make the source answer again and recompute, or launch without a ledger",
        )
    if plan.ledger is not None and ledger is not None:
        least = plan.ledger.coverage_min_ratio
        thin = {
            burst.index + 1: 1 - held.unknown_ratio
            for burst in bursts
            if (held := burst.reconciliation) is not None and 1 - held.unknown_ratio < least
        }
        if thin:
            worst = min(thin, key=lambda number: thin[number])
            yield Finding(
                id="ledger-thin",
                kind="verdict",
                severity="problem",
                weight=93,
                sentence=f"the firewall's own count ({plan.ledger.source}) was to know {least:.0%} "
                f"of each burst's bytes: of {len(thin)} of {len(bursts)} bursts it knows less, of "
                f"burst {worst} {thin[worst]:.1%}",
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
