"""Check that the device counter has the data that was promised at launch."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from broadside.coordinator.core import words
from broadside.coordinator.core.judge.checks.check_types import Check, Result, RunInput, Stage
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.plan.spec import Plan
from broadside.coordinator.core.summary import Finding, Verdict, problem

# The counter must cover this time or one bin, whichever is longer, before the first burst.
BEFORE_S: Final = 5.0


def _evaluate(given: RunInput) -> Result:
    """Return an inconclusive result if the counter has less data than was promised at launch."""
    found = tuple(_findings(given))
    return Result(Verdict.INCONCLUSIVE if found else Verdict.PASS, found)


def _findings(given: RunInput) -> Iterator[Finding]:
    plan, ledger = given.plan, given.ledger
    if plan.ledger is not None and ledger is None:
        yield problem(
            id="ledger-absent",
            weight=105,
            sentence=f"the firewall's own count ({plan.ledger.source}) was to vouch for this "
            "run, and there is none",
            next_step="make the source answer again and recompute, or launch without a ledger",
        )
    if ledger is not None and ledger.partial is not None:
        yield problem(
            id="ledger-partial",
            weight=94,
            sentence=f"the device counter {ledger.source} gave an incomplete answer "
            f"({ledger.partial}): its bytes are not used",
            next_step="make every store or page answer, then recompute the verdict",
        )
    if ledger is not None:
        yield from _late(plan, ledger)
    if plan.ledger is not None and ledger is not None:
        least = plan.ledger.coverage_min_ratio
        thin = {
            burst.index + 1: 1 - held.unknown_ratio
            for burst in given.bursts
            if (held := burst.reconciliation) is not None and 1 - held.unknown_ratio < least
        }
        if thin:
            worst = min(thin, key=lambda number: thin[number])
            yield problem(
                id="ledger-thin",
                weight=93,
                sentence=f"the firewall's own count ({plan.ledger.source}) was to know "
                f"{words.ratio(least, 0)} of each burst's bytes: of {len(thin)} of "
                f"{len(given.bursts)} bursts it knows less, of burst {worst} "
                f"{words.ratio(thin[worst], 1)}",
                next_step="wait until the metric has settled, then recompute the verdict",
            )


def _late(plan: Plan, ledger: FirewallLedger) -> Iterator[Finding]:
    """Yield a finding if the counter does not start early enough before the first burst.

    Without bins before the burst, the counter cannot show if other traffic ended at its start.
    """
    begun_s = plan.bursts[0].planned_start_at.timestamp()
    before = (ledger.end_s <= begun_s) & ~np.isnan(ledger.bytes)
    known_s = float((ledger.end_s - ledger.start_s)[before].sum())
    least_s = max(BEFORE_S, ledger.grain_s)
    if len(ledger) and known_s + ledger.grain_s / 2 < least_s:
        yield problem(
            id="ledger-late",
            weight=91,
            sentence=f"the bins of the ledger {ledger.source} that are dated before the first "
            f"burst come to {words.number(known_s, 3)} s and must come to {least_s:g} s: whether "
            "others' traffic ended as the run began is not shown",
            next_step="keep the ledger from before the first burst to after the last one",
        )


COUNTER_RECORD: Final = Check(
    id="counter-record",
    stage=Stage.EVIDENCE,
    question="Is the device counter's record as complete as promised at launch?",
    formula="the source's answer is complete; time covered before the first burst >= max(5 s, "
    "one bin); known share of each burst's bytes >= the share promised at launch",
    reads="the device counter's bins",
    when_absent="inconclusive if it was promised",
    findings=("ledger-absent", "ledger-late", "ledger-partial", "ledger-thin"),
    evaluate=_evaluate,
)
